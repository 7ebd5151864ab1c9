package replication

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/placement"
)

// second is another client of the same nodes, which knows nothing of what the first did.
func (r *rig) second() *rig {
	r.Helper()
	x := &rig{T: r.T, group: r.group, table: placement.New(three(len(r.nodes), r.group))}
	var stores []skep.Store
	for _, n := range r.nodes {
		x.nodes = append(x.nodes, &fallible{Store: n.Store, open: true})
		stores = append(stores, x.nodes[len(x.nodes)-1])
	}
	var err error
	x.Store, err = New(Options{Map: three(len(r.nodes), r.group), Stores: stores})
	require.NoError(r, err)
	r.Cleanup(func() { assert.NoError(r, x.Close()) })
	x.ns, err = x.OpenNamespace(r.Context(), r.ns.NamespaceSpec)
	require.NoError(r, err)
	return x
}

// What one client put another finds, wants no more and deletes: blocks that were put in the middle of a group by
// somebody who did not know where it begins, too.
func TestClientsFindOneAnothersBlocks(t *testing.T) {
	t.Parallel()
	for _, g := range []int{1, 4, 16} {
		a := cluster(t, 3, g)
		b := a.second()
		for c := range 8 {
			keys := chainOf(c, 40)
			for _, at := range [][2]int{{21, 30}, {0, 5}, {30, 40}, {5, 21}} { // 21 is loose: nobody has put 20
				a.put(keys, at[0], at[1])
			}
			require.Equal(t, 40, b.find(keys, skep.NoLease).Blocks, "groups of %d", g)
			wants, err := b.Want(t.Context(), &skep.WantRequest{Scope: b.scope(), Keys: keys})
			require.NoError(t, err)
			for i, w := range wants {
				require.Equal(t, skep.Want{Outcome: skep.Exists}, w, "block %d", i)
			}
			for i, err := range b.restore(keys, 0) {
				require.NoError(t, err, "block %d", i)
			}
			n, err := b.Delete(t.Context(), b.scope(), keys[10:])
			require.NoError(t, err)
			require.Equal(t, 30, n)
			require.Equal(t, 10, a.find(keys, skep.NoLease).Blocks)
			fresh := a.second()
			require.Equal(t, 10, fresh.find(keys, skep.NoLease).Blocks)
			fresh.put(keys, 10, 40) // behind what its lookup found
			for i := 10; i < 40; i++ {
				at, ok := fresh.known.Get(fresh.scope(), keys[i])
				require.True(t, ok)
				require.Equal(t, keys[placement.Anchor(i, g)], at.Anchor, "block %d is not loose", i)
			}
			require.Equal(t, 40, a.find(keys, skep.NoLease).Blocks)
		}
	}
}

// A client that has seen nothing of a chain puts blocks in the middle of a group where it belongs, if the caller says which
// blocks come before.
func TestAPutNamesItsAncestors(t *testing.T) {
	t.Parallel()
	a := cluster(t, 3, 16)
	for c := range 8 {
		keys, b := chainOf(c, 40), a.second()
		a.put(keys, 0, 21)
		q := b.request(keys, 21, 30)
		q.Ancestors = keys[14:20]
		res, err := b.Put(t.Context(), q)
		require.NoError(t, err)
		for i, x := range res {
			require.Equal(t, skep.Committed, x.Outcome)
			at, ok := b.known.Get(b.scope(), keys[21+i])
			require.True(t, ok)
			require.Equal(t, keys[16], at.Anchor, "block %d is in its group", 21+i)
		}
		w, err := a.second().Begin(t.Context(), &skep.BeginRequest{Scope: b.scope(), Parent: &keys[29], Depth: 30, Key: keys[30], Ancestors: keys[:29],
			Manifest: skep.Manifest{{Name: skep.PartKV, Size: 300}}})
		require.NoError(t, err)
		require.NoError(t, w.Write(t.Context(), skep.PartKV, 0, payload(keys[30])))
		_, err = w.Commit(t.Context(), skep.AckCommitted)
		require.NoError(t, err)
		fresh := a.second()
		require.Equal(t, 31, fresh.find(keys, skep.NoLease).Blocks)
		for i, err := range fresh.restore(keys[:31], 0) {
			require.NoError(t, err, "block %d", i)
		}
		q = b.request(keys, 21, 22)
		q.Ancestors = chainOf(c, 21)
		_, err = b.Put(t.Context(), q)
		require.ErrorIs(t, err, skep.Invalid)
		require.ErrorContains(t, err, "ancestors")
	}
}

// A partial tail is dropped when it is replaced, whichever node it is on, and a whole block is not.
func TestATailOnAnotherNodeIsReplaced(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	elsewhere := 0
	for c := range 12 {
		keys, tail := chainOf(c, 5), skep.KeyOf(fmt.Appendf(nil, "tail %d", c))
		r.put(keys, 0, 4)
		old := append(append([]skep.Key{}, keys[:4]...), tail)
		q := r.request(old, 4, 5)
		if q.Blocks[0].ValidTokens = 2; c%4 == 3 {
			q.Blocks[0].ValidTokens = 0
		}
		_, err := r.Put(t.Context(), q)
		require.NoError(t, err)
		q = r.request(keys, 4, 5)
		q.Blocks[0].Replaces = &tail
		_, err = r.Put(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, 5, r.find(keys, skep.NoLease).Blocks)
		want := 4
		if c%4 == 3 {
			want = 5 // whole: others may follow it
		}
		require.Equal(t, want, r.find(old, skep.NoLease).Blocks)
		if r.node(keys, 4) != r.node(old, 4) {
			elsewhere++
		}
	}
	require.Positive(t, elsewhere)
}

// Each node is given its part of the caller's memory, and what lies between two blocks where that is the Store's to
// fill: so a node's drives may read into it.
func TestNodesLoadIntoTheCallersMemory(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	ns, err := r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "odd", Chained: true, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4, Bytes: 5000}})
	require.NoError(t, err)
	keys := chainOf(1, 24)
	q := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	for _, k := range keys {
		q.Blocks = append(q.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: make([]byte, 5000)}}})
	}
	_, err = r.Put(t.Context(), q)
	require.NoError(t, err)
	mem := make([]byte, 24*8192)
	var blocks atomic.Int64
	for _, x := range r.nodes {
		x.saw = func(r skep.RestoreRequest) {
			for _, c := range r.Chains {
				part, _ := c.Blocks.In(len(c.Keys))
				blocks.Add(int64(part.Len()))
				off := uintptr(unsafe.Pointer(&c.Dest.Memory[0])) - uintptr(unsafe.Pointer(&mem[0]))
				assert.Zero(t, off%8192)
				assert.Less(t, off, uintptr(len(mem)))
				assert.Zero(t, c.Dest.Stride)
				assert.Len(t, c.Dest.Memory, part.Len()*8192)
			}
		}
	}
	require.NoError(t, skep.Load(t.Context(), r.Store, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: q.Scope, Keys: keys, Dest: skep.Destination{Memory: mem}}}},
		func(c *skep.Chunk) error { return c.Err }))
	require.EqualValues(t, 24, blocks.Load())
}

// A stop waits for a node that has been asked and does not answer: it may still write.
func TestAStopWaitsForANodeThatWasAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := cluster(t, 2, 16) // all of it is on one of them
		keys := chainOf(1, 8)
		r.put(keys, 0, 8)
		on := r.nodes[r.node(keys, 0)]
		on.gate, on.deaf = make(chan struct{}), true
		s, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: r.scope(), Keys: keys}}})
		require.NoError(t, err)
		stopped := make(chan error, 1)
		go func() { stopped <- s.Stop(t.Context(), 0) }()
		synctest.Wait()
		require.Empty(t, stopped, "the node may still write")
		close(on.gate)
		require.NoError(t, <-stopped)
		require.NoError(t, s.Close(t.Context()))
		require.NoError(t, r.Close())
	})
}

// A reader of events begins behind what had happened when it asked, though a node tells of it late.
func TestAReaderBeginsBehindWhatHasHappened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := cluster(t, 2, 16)
		keys := chainOf(1, 8)
		r.put(keys, 0, 2)
		on := r.nodes[r.node(keys, 0)]
		on.told = make(chan struct{})
		first, err := r.Events(t.Context(), skep.Cursor{}, false)
		require.NoError(t, err)
		r.put(keys, 2, 4)
		begun := make(chan skep.EventStream, 1)
		go func() {
			st, err := r.Events(t.Context(), skep.Cursor{}, false)
			assert.NoError(t, err)
			begun <- st
		}()
		synctest.Wait()
		require.Empty(t, begun)
		close(on.told)
		second := <-begun
		r.put(keys, 4, 5)
		var into [1]skep.Event
		_, err = second.Next(t.Context(), into[:])
		require.NoError(t, err)
		require.Equal(t, keys[4], into[0].Key)
		_, err = first.Next(t.Context(), into[:])
		require.NoError(t, err)
		require.Equal(t, keys[2], into[0].Key)
		require.NoError(t, r.Close())
	})
}
