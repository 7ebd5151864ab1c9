package store

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/storetest"
)

// More than may be under way is refused at once, before any of it is done, and what is
// under way is not hurt. Afterwards everything is accepted again.
func TestOverloadIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, func(o *Options) { o.CallBytes = 4 * putState(1) })
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(0, 1), 5000))
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
	var wg sync.WaitGroup
	errs := make(chan error, 20)
	for i := range 20 {
		wg.Go(func() {
			key := keyOf(uint32(1000 + i))
			_, err := s.Put(testContext(t), &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: content(key, skep.PartKV, 1, 5000)}}}}})
			errs <- err
		})
	}
	var refused *skep.Error
	for range 16 { // four are under way, and held
		err := <-errs
		requireKind(t, skep.Overloaded, err)
		require.True(t, errors.As(err, &refused))
		require.Positive(t, refused.RetryAfter)
	}
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	require.EqualValues(t, 16, st.Overloaded)
	r.each(func(_ int, d *device.Fault) { d.Release() })
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(2, 3), 5000))
	requireChain(t, s, sc, chainKeys(2, 3), 5000)
	bytes, _ := s.calls.Under()
	require.Zero(t, bytes, "nothing is under way")
	require.NoError(t, s.Close())
}

// spacesOf are namespaces of tenants that share a store.
func spacesOf(t testing.TB, s *Store, tenants ...string) (list []skep.Scope) {
	for _, tenant := range tenants {
		spec := skep.NamespaceSpec{Tenant: tenant, Name: "n", Shape: anySize, Chained: true}
		ns, err := s.OpenNamespace(testContext(t), spec)
		require.NoError(t, err)
		list = append(list, skep.Scope{Namespace: ns.ID})
	}
	return list
}

// A tenant that has as much under way as it can get, be it in one call or in many, leaves enough for another's call.
func TestCallsAreShared(t *testing.T) {
	t.Parallel()
	const unknown = 16 << 10
	s, _, _ := openRig(t, func(o *Options) { o.CallBytes = restore.CallState + unknown*restore.BlockState })
	defer func() { require.NoError(t, s.Close()) }()
	both := spacesOf(t, s, "greedy", "modest")
	greedy, modest := both[0], both[1]
	restore := func(keys int) (skep.Session, error) {
		c := skep.Chain{Scope: greedy, Keys: chainKeys(1, keys)}
		return s.Restore(testContext(t), &skep.RestoreRequest{Chains: []skep.Chain{c}})
	}
	for name, keys := range map[string]int{"in one call": 2 * unknown, "in some": unknown / 8, "in many": 1} {
		t.Run(name, func(t *testing.T) {
			var held []skep.Session
			var err error
			for {
				var ses skep.Session
				if ses, err = restore(keys); err != nil {
					break
				}
				held = append(held, ses)
			}
			requireKind(t, skep.Overloaded, err)
			var refused *skep.Error
			require.ErrorAs(t, err, &refused)
			require.Positive(t, refused.RetryAfter)
			known := chainKeys(2+keys, 4)
			requireOutcome(t, skep.Committed, putRun(t, s, modest, known, 5000))
			requireChain(t, s, modest, known, 5000)
			for _, ses := range held {
				require.NoError(t, ses.Close(testContext(t)))
			}
			bytes, _ := s.calls.Under()
			require.Zero(t, bytes)
			require.Zero(t, s.calls.Tenants())
		})
	}
}

// Who has been given every chunk holds what claims go by, and no more, for as long as it keeps the session.
func TestADeliveredSessionHoldsLittle(t *testing.T) {
	t.Parallel()
	const unknown, sessions = 16 << 10, 3
	s, _, _ := openRig(t, func(o *Options) { o.CallBytes = unknown*restore.BlockState + sessions*(restore.CallState+unknown) })
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	var kept []skep.Session
	into := make([]skep.Chunk, 256)
	for range sessions { // a lone tenant may have everything, one after the other
		c := skep.Chain{Scope: sc, Keys: chainKeys(1, unknown)}
		ses, err := s.Restore(testContext(t), &skep.RestoreRequest{Chains: []skep.Chain{c}})
		require.NoError(t, err)
		kept = append(kept, ses)
		under, _ := s.calls.Under()
		require.Greater(t, under, int64(unknown*restore.BlockState))
		n := 0
		for err == nil {
			var more int
			more, err = ses.Next(testContext(t), into)
			n += more
		}
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, unknown, n)
	}
	under, _ := s.calls.Under()
	require.EqualValues(t, sessions*(restore.CallState+unknown), under)
	for _, ses := range kept {
		claim, err := ses.Claim(testContext(t), 0, skep.Only(0, 1), skep.Idle)
		require.NoError(t, err)
		require.Equal(t, skep.Range{From: 0, To: 1}, claim.Granted, "what did not come may be claimed still")
		require.NoError(t, ses.Close(testContext(t)))
	}
	under, _ = s.calls.Under()
	require.Zero(t, under)
	require.NoError(t, s.Close())
}

// A call that is larger than everything may still be the only one.
func TestOneLargeCallIsServed(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) { o.CallBytes = 1 })
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(0, 20), 5000))
	requireChain(t, s, sc, chainKeys(0, 20), 5000)
	require.NoError(t, s.Close())
}

func TestMemoryIsAccountedFor(t *testing.T) {
	t.Parallel()
	s := openTest(t, small(t.TempDir()))
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, row := range st.Memory {
		require.False(t, seen[row.Name], row.Name)
		seen[row.Name] = true
		if row.Name != rowIndex && row.Name != rowFilter {
			require.Positive(t, row.Cap, row.Name)
		}
		if row.Cap > 0 {
			require.LessOrEqual(t, row.Used, row.Cap, row.Name)
		}
	}
}

// Caps that do not fit each other are refused, with what would.
func TestMemoryCapsAreChecked(t *testing.T) {
	t.Parallel()
	open := func(change func(o *Options)) error {
		o := small(t.TempDir())
		change(&o)
		s, err := Open(testContext(t), o)
		if err == nil {
			require.NoError(t, s.Close())
		}
		return err
	}
	err := open(func(o *Options) { o.MemoryBytes = 64 << 20 })
	requireKind(t, skep.Invalid, err)
	require.ErrorContains(t, err, "memory bytes is 67108864, must be at least")

	err = open(func(o *Options) { o.IndexBytes = 10_000 }) // 4 MiB of 8 KiB blocks: 512 slots
	requireKind(t, skep.Invalid, err)
	require.ErrorContains(t, err, "index bytes is 10000, must be at least")

	require.NoError(t, open(func(o *Options) { o.IndexBytes = 64 << 10 }))
	require.NoError(t, open(func(o *Options) { o.MemoryBytes = 2 << 30 }))
	requireKind(t, skep.Invalid, open(func(o *Options) { o.MemoryBytes, o.IndexBytes = 2<<30, 2<<30 }))
}

// An index that fills up, because blocks are smaller than was said, makes cleaning drop
// blocks: puts go on and its cap holds.
func TestFullIndexIsCleaned(t *testing.T) {
	t.Parallel()
	o := small(t.TempDir())
	o.BlockBytes, o.IndexBytes, o.SpaceTimeout = 64<<10, 64*600, 5*time.Second
	s := openTest(t, o)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	stored := 0
	for i := range 200 {
		for _, r := range putRun(t, s, sc, chainKeys(i, 10), 3000) {
			if r.Outcome == skep.Committed {
				stored++
			}
		}
		require.LessOrEqual(t, s.index.Stats().Blocks, uint64(600))
	}
	t.Logf("%d of 2000 stored", stored)
	require.Greater(t, stored, 700, "more than it holds")
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	require.Positive(t, st.Evicted)
}

// Many sessions and puts that need more memory of the store than there is take turns;
// none waits for what another holds while that waits for it.
func TestScarceMemoryIsNoDeadlock(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) {
		o.IOBytes, o.CacheBytes, o.CapacityBytes, o.SegmentBytes, o.OpTimeout = 16<<20, -1, 256<<20, 4<<20, hangs
	})
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	const chains, length, size = 8, 6, 512 << 10 // 3 MiB each
	for i := range chains {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(i, length), size))
	}
	wg := storetest.NewCrew(t)
	for g := range 24 {
		wg.Go(func(t testing.TB) {
			for i := range 3 {
				if g%4 == 0 { // not aligned: copies are made
					keys := chainKeys(100+10*g+i, length)
					r := &skep.PutRequest{Scope: sc}
					for _, k := range keys {
						r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: append([]byte{0}, content(k, skep.PartKV, 1, size)...)[1:]}}})
					}
					res, err := s.Put(testContext(t), r)
					require.NoError(t, err)
					requireOutcome(t, skep.Committed, res)
					continue
				}
				requireChain(t, s, sc, chainKeys((g+i)%chains, length), size)
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.Close())
}

// An index whose cap is what the devices' blocks take is opened, and one of less is not, by what the policy takes.
func TestTheCapOfTheIndexIsReckonedByPolicy(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"cost", "lru", "s3fifo"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			o := small(tempRoot(t, "store"))
			o.Policy, o.IndexBytes = policy, 1
			_, err := Open(testContext(t), o)
			var e *skep.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, "index bytes", e.Field)
			require.Contains(t, e.Limit, fmt.Sprintf("at %d bytes a block", index.BytesPerBlock(policy)))
			var least int64
			_, err = fmt.Sscanf(fmt.Sprint(e.Limit), "at least %d:", &least)
			require.NoError(t, err)
			require.Zero(t, least%index.BytesPerBlock(policy))
			o.Dir, o.IndexBytes = tempRoot(t, "enough"), least
			s, err := Open(testContext(t), o)
			require.NoError(t, err)
			require.NoError(t, s.Close())
		})
	}
}
