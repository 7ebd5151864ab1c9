package memstore_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// What follows is this Store's own: its clock, its order of delivery, its policies.

var ctx = context.Background()

// clock is time that a test moves.
type clock struct{ now time.Time }

func (c *clock) time() time.Time         { return c.now }
func (c *clock) forward(d time.Duration) { c.now = c.now.Add(d) }

// bench is a Store with a chained namespace of opaque 100-byte blocks.
type bench struct {
	*testing.T
	*clock
	st *memstore.Store
	sc skep.Scope
}

func newBench(t *testing.T, o memstore.Options) *bench {
	c := &clock{time.Unix(1_700_000_000, 0)}
	o.Clock = c.time
	b := &bench{T: t, clock: c, st: memstore.New(o)}
	b.sc.Namespace = b.space("t", "n")
	t.Cleanup(func() { require.NoError(t, b.st.Close()) })
	return b
}

func (b *bench) space(tenant, name string) skep.NamespaceID {
	n, err := b.st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: tenant, Name: name, Chained: true, Shape: skep.Shape{BlockTokens: 4, Bytes: 100}})
	require.NoError(b, err)
	return n.ID
}

func chain(name string, n int) []skep.Key {
	keys := make([]skep.Key, n)
	for i := range keys {
		keys[i] = skep.KeyOf(fmt.Append(nil, name, i))
	}
	return keys
}

// put puts keys as one chain and gives the outcomes.
func (b *bench) put(sc skep.Scope, keys []skep.Key) []skep.PutResult {
	r := &skep.PutRequest{Scope: sc}
	for i := range keys {
		r.Blocks = append(r.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: make([]byte, 100)}}})
	}
	res, err := b.st.Put(ctx, r)
	require.NoError(b, err)
	return res
}

func (b *bench) lookup(keys []skep.Key, lease time.Duration) skep.LookupResult {
	res, err := b.st.Lookup(ctx, &skep.LookupRequest{Scope: b.sc, Keys: keys, Lease: lease})
	require.NoError(b, err)
	return res
}

func (b *bench) found(keys []skep.Key) int { return b.lookup(keys, skep.NoLease).Blocks }

func (b *bench) stats() skep.Stats {
	s, err := b.st.Stats(ctx)
	require.NoError(b, err)
	return s
}

func TestLeasesEndWithTheClock(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{TenantLeaseBytes: 250})
	a, c := chain("a", 2), chain("c", 2)
	b.put(b.sc, a)
	b.put(b.sc, c)
	l := b.lookup(a, 0).Lease
	require.Equal(t, b.now.Add(skep.DefaultLease), l.Until)
	require.True(t, b.lookup(c, 0).LeaseDenied)
	require.NotZero(t, b.lookup(a, time.Second).Lease.ID, "a block under two leases is counted once")
	require.EqualValues(t, 200, b.stats().LeasedBytes)

	b.forward(skep.DefaultLease - time.Nanosecond)
	require.Equal(t, 1, b.stats().Leases, "the shorter one is over")
	renewed, err := b.st.Renew(ctx, l.ID, time.Minute)
	require.NoError(t, err)
	require.Equal(t, b.now.Add(time.Minute), renewed.Until)
	b.forward(time.Minute)
	require.Zero(t, b.stats().Leases)
	require.Zero(t, b.stats().LeasedBytes)
	_, err = b.st.Renew(ctx, l.ID, time.Minute)
	require.ErrorIs(t, err, skep.LeaseExpired)
	require.NotZero(t, b.lookup(c, 0).Lease.ID)
}

func TestTheColdestChainIsEvictedFromItsTail(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{CapacityBytes: 1000})
	cold, warm, hot := chain("cold", 4), chain("warm", 4), chain("hot", 4)
	b.put(b.sc, warm)
	b.put(b.sc, cold)
	require.Equal(t, 4, b.found(warm), "and so used after cold")
	b.put(b.sc, hot)
	require.Equal(t, []int{2, 4, 4}, []int{b.found(cold), b.found(warm), b.found(hot)})
	require.EqualValues(t, 2, b.stats().Evicted)
	require.LessOrEqual(t, b.stats().BlockBytes, int64(1000))
}

func TestAChainLongerThanTheStoreKeepsItsHead(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{CapacityBytes: 1000})
	keys := chain("long", 20)
	res := b.put(b.sc, keys)
	require.Equal(t, 10, b.found(keys))
	for i, r := range res {
		want := skep.PutResult{Outcome: skep.Committed}
		if i >= 10 {
			want = skep.PutResult{Outcome: skep.Declined, Reason: skep.Full}
		}
		require.Equal(t, want, r, "block %d", i)
	}
	require.Zero(t, b.stats().Evicted)
}

func TestPinsEndWithTheClock(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{CapacityBytes: 400})
	keys := chain("pinned", 2)
	b.put(b.sc, keys)
	_, err := b.st.Hint(ctx, b.sc, keys, skep.Hint{Pin: time.Minute})
	require.NoError(t, err)
	b.put(b.sc, chain("x", 3))
	require.Equal(t, 2, b.found(keys))
	b.forward(time.Minute)
	b.put(b.sc, chain("y", 4))
	require.Zero(t, b.found(keys))
}

func TestADroppedBlockGoesFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{CapacityBytes: 200})
	a, c, d := chain("a", 1), chain("c", 1), chain("d", 1)
	b.put(b.sc, a)
	b.put(b.sc, c)
	_, err := b.st.Hint(ctx, b.sc, c, skep.Hint{Drop: true})
	require.NoError(t, err)
	require.Equal(t, 1, b.found(c), "removed when room is needed, not before")
	_, err = b.st.Hint(ctx, b.sc, c, skep.Hint{Drop: true})
	require.NoError(t, err)
	b.put(b.sc, d)
	require.Equal(t, []int{1, 0, 1}, []int{b.found(a), b.found(c), b.found(d)})
}

func TestATenantsQuota(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{TenantBytes: 250})
	res := b.put(b.sc, chain("a", 3))
	require.Equal(t, skep.PutResult{Outcome: skep.Declined, Reason: skep.Quota}, res[2])
	other := skep.Scope{Namespace: b.space("another", "n")}
	require.Equal(t, skep.Committed, b.put(other, chain("a", 1))[0].Outcome)
	w, err := b.st.Want(ctx, &skep.WantRequest{Scope: b.sc, Keys: chain("b", 1), Bytes: 100})
	require.NoError(t, err)
	require.Equal(t, []skep.Want{{Outcome: skep.Declined, Reason: skep.Quota}}, w)
	require.Equal(t, map[string]int64{"over quota": 1}, b.stats().PutDeclined)
}

func TestChunksComeInTheDirectionAsked(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	defer st.Close()
	shape := skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 1, HeadDim: 4, Element: skep.F16, BlockTokens: 2}
	n, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
	require.NoError(t, err)
	keys := chain("a", 3)
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: n.ID}}
	for i := range keys {
		r.Blocks = append(r.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: make([]byte, 64)}}})
	}
	_, err = st.Put(ctx, r)
	require.NoError(t, err)
	for d, want := range map[skep.Direction]string{
		skep.HeadFirst:  "0:0-2 1:0-2 2:0-2 ",
		skep.TailFirst:  "2:0-2 1:0-2 0:0-2 ",
		skep.LayersUp:   "0:0-1 1:0-1 2:0-1 0:1-2 1:1-2 2:1-2 ",
		skep.LayersDown: "0:1-2 1:1-2 2:1-2 0:0-1 1:0-1 2:0-1 ",
	} {
		s, err := st.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: r.Scope, Keys: keys, Direction: d}}})
		require.NoError(t, err)
		got := ""
		for into := make([]skep.Chunk, 1); ; {
			if _, err := s.Next(ctx, into); err == io.EOF {
				break
			}
			got += fmt.Sprintf("%d:%d-%d ", into[0].Block, into[0].Layers.From, into[0].Layers.To)
		}
		require.Equal(t, want, got, d)
		require.NoError(t, s.Close(ctx))
	}
}

func TestPrioritiesAndDeadlines(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{})
	keys := chain("a", 2)
	b.put(b.sc, keys)
	one := skep.Chain{Scope: b.sc, Keys: keys}
	urgent, late := one, one
	urgent.Priority = 1
	late.Deadline = b.now.Add(time.Second)
	s, err := b.st.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{one, late, urgent}})
	require.NoError(t, err)
	defer s.Close(ctx)
	next := func() skep.Chunk {
		into := make([]skep.Chunk, 1)
		_, err := s.Next(ctx, into)
		require.NoError(t, err)
		return into[0]
	}
	require.Equal(t, 2, next().Chain, "the highest priority")
	require.NoError(t, s.Reprioritise(ctx, 0, 5, time.Time{}))
	require.Equal(t, 0, next().Chain)
	require.NoError(t, s.Reprioritise(ctx, 0, -1, time.Time{}))
	require.Equal(t, 2, next().Chain)
	require.Equal(t, 1, next().Chain, "the nearest deadline")
	b.forward(time.Second)
	missed := next()
	require.Equal(t, 1, missed.Chain)
	require.ErrorIs(t, missed.Err, skep.Deadline)
	require.NoError(t, next().Err)
}

func TestClaimsMeetWhatWasLoaded(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{})
	keys := chain("a", 5) // of 4 tokens each
	b.put(b.sc, keys[:4])
	s, err := b.st.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: b.sc, Keys: keys, Blocks: skep.Only(1, 5), Direction: skep.TailFirst}}})
	require.NoError(t, err)
	defer s.Close(ctx)
	into := make([]skep.Chunk, 2) // block 4, which is missed, and block 3
	_, err = s.Next(ctx, into)
	require.NoError(t, err)
	for _, c := range []struct {
		name    string
		ask     skep.Range
		granted skep.Range
		jump    int
	}{
		{"outside of the blocks asked for", skep.Range{From: 0, To: 4}, skep.Range{From: 0, To: 4}, 4},
		{"half a block", skep.Range{From: 4, To: 6}, skep.Range{From: 4, To: 4}, 4},
		{"a block and a half", skep.Range{From: 2, To: 10}, skep.Range{From: 2, To: 8}, 8},
		{"the rest of a claimed block", skep.Range{From: 5, To: 8}, skep.Range{From: 5, To: 8}, 8},
		{"into what was loaded", skep.Range{From: 8, To: 20}, skep.Range{From: 8, To: 12}, 16},
		{"what was loaded", skep.Range{From: 12, To: 16}, skep.Range{From: 12, To: 12}, 16},
		{"what was missed", skep.Range{From: 16, To: 20}, skep.Range{From: 16, To: 20}, 20},
	} {
		got, err := s.Claim(ctx, 0, c.ask.Subset(), skep.Idle)
		require.NoError(t, err)
		require.Equal(t, skep.Claim{Granted: c.granted, Next: c.jump}, got, c.name)
	}
}

func TestBrokenPromisesAreCounted(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{})
	keys := chain("a", 3)
	b.put(b.sc, keys)
	l := b.lookup(keys, 0).Lease
	_, err := b.st.Delete(ctx, b.sc, keys[2:])
	require.NoError(t, err)
	for _, lease := range []skep.LeaseID{0, l.ID} {
		s, err := b.st.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: b.sc, Keys: keys, Lease: lease}}})
		require.NoError(t, err)
		require.NoError(t, s.Close(ctx))
	}
	require.EqualValues(t, 1, b.stats().BrokenPromises)
}

func TestASlowReaderIsToldWhatItLost(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{EventBuffer: 4, Epoch: 9})
	st, err := b.st.Events(ctx, skep.Cursor{}, false)
	require.NoError(t, err)
	b.put(b.sc, chain("a", 10))
	into := make([]skep.Event, 20)
	n, err := st.Next(ctx, into)
	require.NoError(t, err)
	require.Equal(t, 5, n)
	require.Equal(t, skep.EventGap, into[0].Kind)
	require.EqualValues(t, 6, into[0].Lost)
	for i, e := range into[:n] {
		require.Equal(t, skep.Cursor{Epoch: 9, Seq: uint64(6 + i)}, e.Cursor)
	}
	again, err := b.st.Events(ctx, skep.Cursor{Epoch: 9, Seq: 3}, false)
	require.NoError(t, err)
	n, err = again.Next(ctx, into[:1])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, 4, into[0].Lost, "3, 4, 5 and 6")
}

func TestMemoryIsBudgeted(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{MemoryBytes: 1000})
	m, err := b.st.Alloc(ctx, 800)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err = b.st.Alloc(short, 300)
	require.ErrorIs(t, err, skep.NoMemory)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = b.st.Alloc(ctx, 1001)
	require.ErrorIs(t, err, skep.NoMemory, "never to be had, so nothing to wait for")

	big := &skep.BeginRequest{Scope: b.sc, Manifest: skep.Manifest{{Name: "x", Size: 300}}}
	_, err = b.st.Begin(ctx, big)
	require.ErrorIs(t, err, skep.NoMemory)

	got := make(chan error)
	go func() {
		m, err := b.st.Alloc(ctx, 300)
		if err == nil {
			m.Release()
		}
		got <- err
	}()
	m.Release()
	m.Release()
	require.NoError(t, <-got, "the release ends the wait")

	// Open writers hold memory, and give it back when their time is up.
	_, err = b.st.Begin(ctx, &skep.BeginRequest{Scope: b.sc, Manifest: skep.Manifest{{Name: "x", Size: 900}}})
	require.NoError(t, err)
	_, err = b.st.Begin(ctx, big)
	require.ErrorIs(t, err, skep.NoMemory)
	b.forward(skep.DefaultPutTimeout)
	w, err := b.st.Begin(ctx, big)
	require.NoError(t, err)
	require.NoError(t, w.Abort(ctx))
	for _, row := range b.stats().Memory {
		if row.Name == "lent and open block writers" {
			require.Zero(t, row.Used)
		}
	}
}

func TestReleasedBytesArePoisoned(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{PoisonReleased: true})
	keys := chain("a", 1)
	b.put(b.sc, keys)
	for range 2 { // the second reads what the first one's poison did not reach
		s, err := b.st.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: b.sc, Keys: keys}}})
		require.NoError(t, err)
		into := make([]skep.Chunk, 1)
		_, err = s.Next(ctx, into)
		require.NoError(t, err)
		lent := into[0].Data[0]
		require.Equal(t, make([]byte, 100), lent)
		into[0].Release()
		require.EqualValues(t, memstore.Poison, lent[99])
		require.NoError(t, s.Close(ctx))
	}
}

func TestAWholeBlockIsNotReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{})
	old, fresh := chain("old", 2), chain("fresh", 1)
	b.put(b.sc, old)
	_, err := b.st.Put(ctx, &skep.PutRequest{Scope: b.sc, Blocks: []skep.Block{{Key: fresh[0], Replaces: &old[0], Parts: []skep.Part{{Bytes: make([]byte, 100)}}}}})
	require.NoError(t, err)
	require.Equal(t, 2, b.found(old), "others descend from it")
}

func TestALeasedPartialTailIsReplacedToo(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{})
	tail, whole := chain("tail", 1), chain("whole", 1)
	block := skep.Block{Key: tail[0], ValidTokens: 1, Parts: []skep.Part{{Bytes: make([]byte, 100)}}}
	put := func() {
		_, err := b.st.Put(ctx, &skep.PutRequest{Scope: b.sc, Blocks: []skep.Block{block}})
		require.NoError(t, err)
	}
	replace := func() { // the second time it exists, and says again what it replaces
		kept := block
		block = skep.Block{Key: whole[0], Replaces: &tail[0], Parts: block.Parts}
		put()
		require.Zero(t, b.found(tail))
		block = kept
	}
	for range 2 {
		put()
		require.NotZero(t, b.lookup(tail, 0).Lease.ID)
		replace()
		require.Zero(t, b.stats().LeasedBytes)
	}
}

// The keys of an unchained namespace may name a block twice: it is leased once.
func TestABlockNamedTwiceIsLeasedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, memstore.Options{TenantLeaseBytes: 150})
	n, err := b.st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "loose", Shape: skep.Shape{BlockTokens: 4, Bytes: 100}})
	require.NoError(t, err)
	b.sc.Namespace = n.ID
	key := chain("a", 1)[0]
	b.put(b.sc, []skep.Key{key})
	for range 3 {
		l := b.lookup([]skep.Key{key, key}, time.Minute)
		require.Equal(t, 2, l.Blocks)
		require.False(t, l.LeaseDenied)
		require.EqualValues(t, 100, b.stats().LeasedBytes)
		require.NoError(t, b.st.Release(ctx, l.Lease.ID))
		require.Zero(t, b.stats().LeasedBytes)
	}
}
