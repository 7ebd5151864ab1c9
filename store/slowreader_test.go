package store

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/storetest"
)

// A restore whose reader is slow finds what lay in memory when it looked on the drives, where memory was needed for
// others meanwhile: a lease keeps its promise as long as it lasts.
func TestASlowReaderGetsFromDrivesWhatLeftMemory(t *testing.T) {
	t.Parallel()
	const size, blocks = 8 << 10, 64
	for name, way := range map[string]skep.Direction{"by blocks": skep.TailFirst, "by layers": skep.LayersDown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := &testClock{now: time.Now()}
			s, _, _ := openRig(t, func(o *Options) { o.Clock, o.CacheBytes = clock.get, 1<<20 })
			defer func() { require.NoError(t, s.Close()) }()
			shape := skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 1, HeadDim: 64, Element: skep.BF16,
				BlockTokens: 16}
			spec := skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true}
			ns, err := s.OpenNamespace(t.Context(), spec)
			require.NoError(t, err)
			put := func(first, n int) skep.Chain {
				c := skep.Chain{Scope: skep.Scope{Namespace: ns.ID}, Keys: chainKeys(first, n)}
				req := &skep.PutRequest{Scope: c.Scope}
				for _, k := range c.Keys {
					req.Blocks = append(req.Blocks, skep.Block{Key: k,
						Parts: []skep.Part{{Bytes: storetest.Payload(k, skep.PartKV, size)}}})
				}
				res, err := s.Put(t.Context(), req)
				require.NoError(t, err)
				requireOutcome(t, skep.Committed, res)
				return c
			}
			slow, others := put(1, blocks), put(2, 2*blocks)
			all := func(c skep.Chain, each func(*skep.Chunk)) {
				ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
				require.NoError(t, err)
				eachChunk(t, ses, each)
				require.NoError(t, ses.Close(t.Context()))
			}
			all(slow, func(ch *skep.Chunk) { ch.Release() })
			found, err := s.Lookup(t.Context(),
				&skep.LookupRequest{Scope: slow.Scope, Keys: slow.Keys, Lease: 5 * time.Minute})
			require.NoError(t, err)
			require.Equal(t, blocks, found.Blocks)

			slow.Lease, slow.Direction = found.Lease.ID, way
			ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{slow}, Window: size / 2})
			require.NoError(t, err)
			defer func() { require.NoError(t, ses.Close(context.WithoutCancel(t.Context()))) }()
			var first [1]skep.Chunk
			_, err = ses.Next(t.Context(), first[:])
			require.NoError(t, err)
			require.NoError(t, first[0].Err)
			require.Equal(t, skep.TierDRAM, first[0].Tier)
			clock.pass(11 * time.Second)
			var held []skep.Chunk
			all(others, func(ch *skep.Chunk) { held = append(held, *ch) })
			require.Positive(t, s.cache.Stats().Revocations)
			first[0].Release()
			tiers := map[skep.Tier]int{}
			eachChunk(t, ses, func(ch *skep.Chunk) {
				require.NoError(t, ch.Err)
				tiers[ch.Tier]++
				want := storetest.Payload(slow.Keys[ch.Block], skep.PartKV, size)
				if way == skep.LayersDown {
					want = want[ch.Layers.From*size/2 : ch.Layers.To*size/2]
				}
				require.True(t, slices.Equal(want, slices.Concat(ch.Data...)))
				ch.Release()
			})
			require.Positive(t, tiers[skep.TierDevice])
			require.Zero(t, s.count.Broken.Load())
			for i := range held {
				held[i].Release()
			}
		})
	}
}

// Layers of one block are of one version of it, also where it is put anew while a slow reader has some of them and the
// memory that the others were in is needed for others: those are missed.
func TestLayersOfABlockAreOfOneVersion(t *testing.T) {
	t.Parallel()
	const size, blocks = 8 << 10, 64
	clock := &testClock{now: time.Now()}
	s, _, _ := openRig(t, func(o *Options) { o.Clock, o.CacheBytes = clock.get, 1<<20 })
	defer func() { require.NoError(t, s.Close()) }()
	shape := skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 1, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}
	ns, err := s.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape})
	require.NoError(t, err)
	put := func(first, n int, v byte) skep.Chain {
		c := skep.Chain{Scope: skep.Scope{Namespace: ns.ID}, Keys: chainKeys(first, n)}
		req := &skep.PutRequest{Scope: c.Scope}
		for _, k := range c.Keys {
			parts := []skep.Part{{Bytes: bytes.Repeat([]byte{v}, size)}}
			req.Blocks = append(req.Blocks, skep.Block{Key: k, Parts: parts})
		}
		res, err := s.Put(t.Context(), req)
		require.NoError(t, err)
		requireOutcome(t, skep.Committed, res)
		return c
	}
	restore := func(c skep.Chain, window int64) skep.Session {
		ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}, Window: window})
		require.NoError(t, err)
		return ses
	}
	slow, others := put(1, blocks, 'a'), put(2, 2*blocks, 'o')
	ses := restore(slow, 0)
	eachChunk(t, ses, func(ch *skep.Chunk) { ch.Release() })
	require.NoError(t, ses.Close(t.Context()))

	slow.Direction = skep.LayersDown
	ses = restore(slow, size/2)
	defer func() { require.NoError(t, ses.Close(context.WithoutCancel(t.Context()))) }()
	versions := map[int]map[byte]bool{}
	got := func(ch *skep.Chunk) {
		if ch.Err == nil {
			if versions[ch.Block] == nil {
				versions[ch.Block] = map[byte]bool{}
			}
			for _, x := range slices.Concat(ch.Data...) {
				versions[ch.Block][x] = true
			}
		}
		ch.Release()
	}
	for range blocks / 2 {
		var first [1]skep.Chunk
		_, err := ses.Next(t.Context(), first[:])
		require.NoError(t, err)
		got(&first[0])
	}
	clock.pass(11 * time.Second)
	var held []skep.Chunk
	other := restore(others, 0)
	eachChunk(t, other, func(ch *skep.Chunk) { held = append(held, *ch) })
	require.NoError(t, other.Close(t.Context()))
	put(1, blocks, 'b')
	eachChunk(t, ses, got)
	for block, of := range versions {
		require.Len(t, of, 1, "block %d", block)
	}
	for i := range held {
		held[i].Release()
	}
}

// Memory may have the version that was there before for a moment longer than the index: nobody takes that for the one
// that lies where the index says. What was read from there is that one.
func TestWhatIsInMemoryIsOfAPlace(t *testing.T) {
	t.Parallel()
	const size = 8 << 10
	for name, c := range map[string]struct{ chained, late, known bool }{
		"that version":      {known: true},
		"the one before":    {late: true},
		"there is no other": {chained: true, late: true, known: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openTest(t, small(t.TempDir()))
			sc, keys := openSpace(t, s, "n", skep.Cache, 1, c.chained), chainKeys(1, 1)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, size))
			requireChain(t, s, sc, keys, size)
			ns, tag, err := s.names.Resolve("test", sc)
			require.NoError(t, err)
			plan, err := layout.PlanChain(&skep.Chain{Scope: sc, Keys: keys}, ns.Info.Shape)
			require.NoError(t, err)
			fp := s.names.Fingerprint(ns.Instance, tag, keys[0])
			if c.late {
				s.cache.Remove(memory.IDOf(fp, skep.PartKV))
				b, err := s.arena.TryAlloc(size, memory.BudgetIO)
				require.NoError(t, err)
				_, err = s.cache.Put(memory.Item{ID: memory.IDOf(fp, skep.PartKV), Bufs: []*memory.Buffer{b},
					Length: size, Where: 1})
				require.NoError(t, err)
			}
			asked := &restore.Asked{ChainPlan: plan, NS: ns, Tag: tag}
			f := s.restores.Source.Locate([]restore.Ask{{Asked: asked, Blocks: []int{0}}})[0]
			defer f.LetGo(s.restores.Source)
			require.NoError(t, f.Err)
			require.NotNil(t, f.Memory)
			require.Equal(t, c.known, f.Where != 0)
		})
	}
}
