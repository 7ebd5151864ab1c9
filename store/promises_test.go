package store

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// One test for each promise that the long ones break too rarely: what tools/mutants
// breaks must not depend on luck to be noticed.

// putVersion puts one block of an unchained namespace with the bytes of a version.
func putVersion(t *testing.T, s *Store, sc skep.Scope, k skep.Key, version int) {
	t.Helper()
	r := &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, version, 8<<10)}}}}}
	res, err := s.Put(testContext(t), r)
	require.NoError(t, err)
	requireOutcome(t, skep.Committed, res)
}

// rowsOf is a group's rows as the catalog has them.
func rowsOf(t *testing.T, s *Store, num uint32) map[layout.Location][]byte {
	rows := map[layout.Location][]byte{}
	require.NoError(t, s.catalog.ScanGroup(testContext(t), num, func(l layout.Location, row []byte) error {
		rows[l] = append([]byte{}, row...)
		return nil
	}))
	return rows
}

// Of two rows of one block an open believes the newer, wherever they lie.
func TestTwoRowsOfABlock(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"the older lies before", "the older lies behind"} {
		t.Run(name, func(t *testing.T) {
			s, _, o := openRig(t, nil)
			sc := openSpace(t, s, "n", skep.Durable, 1, false)
			k := keyOf(1)
			putVersion(t, s, sc, k, 1)
			old := rowsOf(t, s, 1)
			require.Len(t, old, 1)
			putVersion(t, s, sc, k, 2)
			require.NoError(t, s.Close())

			c, err := catalog.Open(filepath.Join(o.Dir, "catalog"), catalog.Options{FS: o.CatalogFS})
			require.NoError(t, err)
			b := c.NewBatch()
			for l, row := range old {
				if name == "the older lies behind" {
					l.Page, l.Device = 30, 1 // where nothing is: whoever believes it finds damage
				}
				b.PutBlock(l, row)
			}
			require.NoError(t, c.Commit(testContext(t), b, true))
			require.NoError(t, c.Close())

			s, err = Open(context.Background(), o)
			require.NoError(t, err)
			list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: []skep.Key{k}})
			require.NoError(t, err)
			require.NoError(t, list[0].err)
			require.Equal(t, content(k, skep.PartKV, 2, 8<<10), list[0].data)
			require.NoError(t, s.Close())
		})
	}
}

// Of several at once who put one key of a chain, one is the first.
func TestTwoWritersOfAKey(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	putRun(t, s, sc, chainKeys(1, 1), 8<<10) // so that the group is open
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
	k := chainKeys(2, 1)
	const writers = 4
	outcomes := make(chan skep.Outcome, writers)
	var wg, began sync.WaitGroup
	began.Add(writers)
	for v := range writers {
		wg.Go(func() {
			began.Done()
			res, err := s.Put(testContext(t), &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: k[0], Parts: []skep.Part{{Bytes: content(k[0], skep.PartKV, v, 8<<10)}}}}})
			if err == nil {
				outcomes <- res[0].Outcome
			}
		})
	}
	require.NoError(t, waitHeld(r, 1))
	began.Wait()
	r.each(func(_ int, d *device.Fault) { d.Release() })
	wg.Wait()
	close(outcomes)
	count := map[skep.Outcome]int{}
	for o := range outcomes {
		count[o]++
	}
	require.Equal(t, map[skep.Outcome]int{skep.Committed: 1, skep.Exists: writers - 1}, count)
}

// waitHeld returns when the drives of a rig hold n operations between them.
func waitHeld(r *rig, n int) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hangs); ; <-tick.C {
		held := 0
		r.each(func(_ int, d *device.Fault) { held += d.Held() })
		if held >= n {
			return nil
		}
		if time.Now().After(end) {
			return context.DeadlineExceeded
		}
	}
}

// A group's generation is in the catalog for good before a byte is written under it.
func TestGenerationIsSyncedFirst(t *testing.T) {
	t.Parallel()
	s, r, crash := crashRig(t, func(o *Options) { o.SpaceTimeout = hangs })
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Put(context.Background(), putRequest(sc, nil, 0, chainKeys(1, 1), 8<<10))
	}()
	require.NoError(t, waitHeld(r, 1)) // a header
	o := crash("headers under way")
	r.each(func(_ int, d *device.Fault) { d.Release() })
	<-done
	require.NoError(t, s.Close())

	c, err := catalog.Open(filepath.Join(o.Dir, "catalog"), catalog.Options{FS: o.CatalogFS})
	require.NoError(t, err)
	groups, err := c.Groups(testContext(t))
	require.NoError(t, err)
	require.NotEmpty(t, groups)
	for _, g := range groups {
		require.Positive(t, g.Generation)
	}
	require.NoError(t, c.Close())
}

// Sequence numbers and generations are never given out twice, also when the root row is
// older than what a crash left.
func TestNumbersAreGivenOutOnce(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, crash := crashRig(t, func(o *Options) { o.SegmentBytes, o.CapacityBytes = 64<<10, 8<<20 })
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	for i := range 40 {
		putRun(t, s, sc, []skep.Key{keyOf(uint32(i))}, 8<<10)
	}
	last := s.root.Last()
	generations := map[uint64]uint32{}
	note := func(s *Store) {
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		for g := range s.space.Inside().Groups.Each() {
			if other, ok := generations[g.Generation]; ok && other != g.Num {
				t.Errorf("groups %d and %d have generation %d", g.Num, other, g.Generation)
			}
			generations[g.Generation] = g.Num
		}
	}
	note(s)
	require.Greater(t, len(generations), 2)
	o := crash("full of rows")
	require.NoError(t, s.Close())
	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.GreaterOrEqual(t, s.root.Last(), last)
	for i := range 10 {
		putRun(t, s, sc, []skep.Key{keyOf(uint32(100 + i))}, 8<<10)
	}
	note(s)
	require.NoError(t, s.Close())
}

// Nor are those of purges and deletions, of which no block's row tells: a purge with the number of an
// earlier one would make the salt's new tag dead, and a block with the number of an earlier tombstone
// would be taken away by a rebuild.
func TestNumbersOfPurgesAndDeletionsAreGivenOutOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(t *testing.T, s *Store, sc skep.Scope, key skep.Key)
	}{
		{"purges of a salt", func(t *testing.T, s *Store, sc skep.Scope, _ skep.Key) {
			require.NoError(t, s.Purge(testContext(t), skep.Purge{Salt: &sc}))
		}},
		{"deletions", func(t *testing.T, s *Store, sc skep.Scope, key skep.Key) {
			n, err := s.Delete(testContext(t), sc, []skep.Key{key})
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := testContext(t)
			s, _, crash := crashRig(t, func(*Options) {})
			sc := openSpace(t, s, "n", skep.Durable, 1, false)
			sc.Salt = "salt"
			for i := range 5 {
				requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{keyOf(uint32(i))}, 8<<10))
			}
			for i := range 5 {
				c.do(t, s, sc, keyOf(uint32(i)))
			}
			last := s.root.Last()
			o := crash("all are answered")
			require.NoError(t, s.Close())
			s, err := Open(ctx, o)
			require.NoError(t, err)
			require.GreaterOrEqual(t, s.root.Last(), last)
			require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &sc}))
			requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{keyOf(9)}, 8<<10))
			require.NoError(t, s.Close())
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireChain(t, s, sc, []skep.Key{keyOf(9)}, 8<<10)
			require.NoError(t, s.Close())
		})
	}
}

// The segments of a group that a restore reads are nobody else's, although cleaning has
// emptied the group meanwhile.
func TestRestoreDuringCleaning(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) {
		o.SegmentBytes, o.CapacityBytes = 64<<10, 2*(9*64<<10+8<<10)
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{keyOf(1)}, 8<<10))
	g := s.space.Pin(1) // as a restore does
	require.NotNil(t, g)
	taken := func() bool {
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		for i, d := range g.Drives {
			if slices.Contains(d.Free, g.Segments[i]) {
				return true
			}
			for o := range s.space.Inside().Groups.Each() {
				for j := range o.Drives {
					if o != g && o.Drives[j] == d && o.Segments[j] == g.Segments[i] {
						return true
					}
				}
			}
		}
		return false
	}
	more := 5 // after the group was cleaned: enough to open another in its place
	for i := range 300 {
		if g.Life.State() >= space.Emptied {
			more--
		}
		if more == 0 {
			break
		}
		putRun(t, s, sc, []skep.Key{keyOf(uint32(100 + i))}, 8<<10)
		require.False(t, taken(), "after %d puts", i)
	}
	require.Zero(t, more, "the group was cleaned")
	eventually(t, "its drives are told", func() bool { return isFreed(g) })
	require.NoError(t, s.cleaner.Clean(testContext(t), g, false), "the cleaner goes round once more")
	require.False(t, taken(), "under a reader")
	s.space.Unpin(g)
	eventually(t, "the segments are free", taken)
}

// Cleaning leaves a group alone to which something is still being written.
func TestVictimsAreAtRest(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, nil)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 1), 8<<10))
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Put(context.Background(), putRequest(sc, nil, 0, chainKeys(2, 1), 8<<10))
	}()
	require.NoError(t, waitHeld(r, 1))
	g := openedBy(s, space.User)
	s.space.Seal(g)
	require.False(t, s.space.Claim(g, space.Claim{By: space.Cleaner}))
	r.each(func(_ int, d *device.Fault) { d.Release() })
	<-done
	eventually(t, "the group is at rest", func() bool { return s.space.Claim(g, space.Claim{By: space.Cleaner}) })
	require.NoError(t, s.Close())
}

// A lease given between the verdict and the eviction counts.
func TestLeaseAfterTheVerdict(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 2)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
	var recs []segment.Record
	var refs []index.Ref
	ns := s.names.Get(sc.Namespace)
	for l, row := range rowsOf(t, s, 1) {
		var rec segment.Record
		require.NoError(t, segment.DecodeRecord(row, &rec))
		recs = append(recs, rec)
		refs = append(refs, index.Ref{FP: s.names.Fingerprint(ns.Instance, namespaces.Tag{}, rec.Key), Location: l.Pack()})
	}
	verdicts := []index.Verdict{index.Drop, index.Drop}
	res, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys, Lease: time.Minute})
	require.NoError(t, err)
	require.Equal(t, 2, res.Blocks)
	require.NoError(t, s.rows.Evict(s.space.Find(1), recs, refs, verdicts))
	require.Equal(t, []index.Verdict{index.Must, index.Must}, verdicts)
	requireChain(t, s, sc, keys, 8<<10)
}

// However full the store is of blocks that must be kept, cleaning can move them: puts of
// what may be evicted go on for ever.
func TestCleaningHasAGroupOfItsOwn(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) {
		o.SegmentBytes, o.CapacityBytes, o.SpaceTimeout = 64<<10, 2*(8*64<<10+8<<10), hangs
	})
	defer func() { require.NoError(t, s.Close()) }()
	durable, cache := openSpace(t, s, "durable", skep.Durable, 1, false), openSpace(t, s, "cache", skep.Cache, 1, false)
	kept := 0
	for i := range 300 {
		if i%12 == 0 && kept < 20 { // some in each group, a quarter of all
			requireOutcome(t, skep.Committed, putRun(t, s, durable, []skep.Key{keyOf(uint32(i), 1)}, 8<<10))
			kept++
		}
		requireOutcome(t, skep.Committed, putRun(t, s, cache, []skep.Key{keyOf(uint32(i), 2)}, 8<<10))
	}
	for i := range kept {
		requireChain(t, s, durable, []skep.Key{keyOf(uint32(12*i), 1)}, 8<<10)
	}
	require.Empty(t, unsound(s))
}

// What is restored by ranges (some heads of all layers) is checked granule by granule:
// whichever is wrong, its bytes do not come out.
func TestEveryGranuleOfARangeIsChecked(t *testing.T) {
	t.Parallel()
	shape := skep.Shape{Kind: skep.Attention, Layers: 3, KVHeads: 4, HeadDim: 64, Element: skep.F16, BlockTokens: 16}
	s, r, _ := openRig(t, func(o *Options) { o.DeviceCount = 1 })
	defer func() { require.NoError(t, s.Close()) }()
	n, err := s.OpenNamespace(testContext(t), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Class: skep.Durable, Chained: true})
	require.NoError(t, err)
	sc := skep.Scope{Namespace: n.ID}
	size := 2 * shape.Layers * shape.KVHeads * shape.HeadDim * 2 * shape.BlockTokens
	parts := 2 * shape.Layers // a layer's K or V, one granule each
	keys := chainKeys(1, parts)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, size))
	whole := make([]byte, r.mems[0].Size())
	r.mems[0].Peek(0, whole)
	for i, k := range keys { // of block i slice i is wrong, in its first head
		bytes0 := content(k, skep.PartKV, 1, size)
		at := int64(strings.Index(string(whole), string(bytes0)))
		require.Positive(t, at)
		off := i * size / parts
		r.mems[0].Poke(at+int64(off), []byte{bytes0[off] ^ 1})
	}
	list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys, Heads: skep.Only(0, 1)})
	require.NoError(t, err)
	for i, g := range list {
		require.ErrorIs(t, g.err, skep.Damaged, "block %d, of which slice %d is wrong", i, i)
	}
}
