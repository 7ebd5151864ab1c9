package replication

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// ways are how blocks [from, to) of a chain are put. They give the reason why these were not taken.
var ways = map[string]func(x *fenced, keys []skep.Key, from, to int) skep.Kind{
	"put": func(x *fenced, keys []skep.Key, from, to int) (why skep.Kind) {
		q := x.request(keys, from, to)
		q.Ancestors = keys[:from-1]
		out, err := x.Put(x.Context(), q)
		require.NoError(x, err)
		for _, r := range out {
			require.Equal(x, out[0], r)
		}
		return out[0].Reason
	},
	"begin": func(x *fenced, keys []skep.Key, from, to int) skep.Kind {
		for i := from; i < to; i++ {
			w, err := x.Begin(x.Context(), &skep.BeginRequest{Scope: x.scope(), Parent: &keys[i-1],
				Ancestors: keys[:i-1], Depth: i, Key: keys[i], Manifest: skep.Manifest{{Name: skep.PartKV, Size: 300}}})
			require.NoError(x, err)
			require.NoError(x, w.Write(x.Context(), skep.PartKV, 0, payload(keys[i])))
			out, err := w.Commit(x.Context(), skep.AckCommitted)
			require.NoError(x, err)
			if out.Outcome == skep.Declined {
				return out.Reason
			}
		}
		return 0
	},
}

// comeBack has nodes that were killed serve again.
func (x *fenced) comeBack(nodes ...int) {
	x.Helper()
	for _, i := range nodes {
		x.start(i)
		x.nodes[i].down.Store(false)
		require.NoError(x, x.fences[i].Return(x.Context(), x.council))
	}
	x.follow()
	for range 3 {
		x.repair()
	}
}

// What goes on with a group all of whose nodes are down is not taken: nobody would find it when they are back. What
// begins a group is, and is found.
func TestADurableGroupIsNotContinuedElsewhere(t *testing.T) {
	t.Parallel()
	for way, put := range ways {
		for copies := 1; copies <= 2; copies++ {
			t.Run(fmt.Sprint(way, copies), func(t *testing.T) {
				t.Parallel()
				m := three(4, 4)
				m.Replicas = copies
				x := fencedCrew(t, m, skep.Durable)
				keys := chainOf(0, 40)
				x.put(keys, 0, 2)
				var of []int
				for i := range x.nodes {
					if x.keysOf(i)[keys[0]] {
						of = append(of, i)
					}
				}
				require.Len(t, of, copies)
				for _, i := range of {
					x.kill(i)
				}
				require.Equal(t, skep.Unavailable, put(x, keys, 2, 4))
				require.Zero(t, x.findLive(keys[2:4]))
				require.Zero(t, put(x, keys, 4, 8))

				x.comeBack(of...)
				require.Zero(t, put(x, keys, 2, 4))
				x.comeBack()
				require.Equal(t, 8, x.find(keys, skep.NoLease).Blocks)
			})
		}
	}
}

// Where one of a group's nodes is there yet, and has what is gone on with, the group is continued, and is whole when
// the other one is back.
func TestADurableGroupIsContinuedWhereItIs(t *testing.T) {
	t.Parallel()
	for way, put := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			x := fencedCrew(t, twice(4, 4), skep.Durable)
			keys := chainOf(0, 4)
			x.put(keys, 0, 2)
			at := x.node(keys, 0)
			x.kill(at)
			require.Zero(t, put(x, keys, 2, 4))
			require.Equal(t, 4, x.find(keys, skep.NoLease).Blocks)
			x.comeBack(at)
			require.Equal(t, 4, x.find(keys, skep.NoLease).Blocks)
			require.Len(t, x.keysOf(at), 4)
		})
	}
}

// While a node is down a put waits for the one before, which is on its way with what it goes on with.
func TestAPutWaitsForWhatItGoesOnWith(t *testing.T) {
	t.Parallel()
	for way, put := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				x := fencedCrew(t, twice(4, 4), skep.Durable)
				keys := chainOf(0, 4)
				x.kill(x.node(keys, 0))
				held := make(chan struct{})
				for _, n := range x.nodes {
					n.held = held
				}
				first, second := make(chan []skep.PutResult, 1), make(chan skep.Kind, 1)
				go func() {
					out, err := x.Put(t.Context(), x.request(keys, 0, 2))
					assert.NoError(t, err)
					first <- out
				}()
				synctest.Wait()
				go func() { second <- put(x, keys, 2, 4) }()
				synctest.Wait()
				require.Empty(t, second)
				close(held)
				for _, r := range <-first {
					require.Equal(t, skep.Committed, r.Outcome)
				}
				require.Zero(t, <-second)
				require.Equal(t, 4, x.find(keys, skep.NoLease).Blocks)
			})
		})
	}
}

// While a node is down, blocks of a chain are written as they are computed: a writer is begun before the one before it
// has committed, and a commit waits for the one before it where that is under way. What goes on with one that was
// aborted is declined, once.
func TestWritersThatAreOpenTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := fencedCrew(t, three(3, 4), skep.Durable)
		keys := chainOf(0, 4)
		at := x.node(keys, 0)
		x.kill((at + 1) % len(x.nodes))
		var list []skep.BlockWriter
		for i := range 3 {
			list = append(list, x.begins(keys, i))
		}
		held := make(chan struct{})
		x.nodes[at].held = held
		done := make(chan error, len(list))
		for _, w := range list {
			go func() {
				out, err := w.Commit(t.Context(), skep.AckCommitted)
				if err == nil && out.Outcome != skep.Committed {
					err = fmt.Errorf("%v", out)
				}
				done <- err
			}()
			synctest.Wait()
		}
		require.Empty(t, done)
		close(held)
		for range list {
			require.NoError(t, <-done)
		}
		require.Equal(t, 3, x.find(keys, skep.NoLease).Blocks)

		_, err := x.nodes[at].Store.Delete(t.Context(), skep.Scope{Namespace: 1}, keys[2:3])
		require.NoError(t, err)
		w, child := x.begins(keys, 2), x.begins(keys, 3)
		require.NoError(t, w.Abort(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = child.Commit(ctx, skep.AckCommitted)
		require.Equal(t, skep.Deadline, skep.KindOf(err), "it stays open")
		out, err := child.Commit(t.Context(), skep.AckCommitted)
		require.NoError(t, err)
		require.Equal(t, skep.PutResult{Reason: skep.Unavailable}, out, "nobody would find it")
		_, err = child.Commit(t.Context(), skep.AckCommitted)
		require.Equal(t, skep.Closed, skep.KindOf(err))
	})
}

// Writers that are open together, where fewer nodes than all are enough: each of two nodes takes one of their blocks.
func TestADurableWriterIsNotCommittedApartFromItsChain(t *testing.T) {
	t.Parallel()
	m := twice(3, 4)
	m.Acks = 1
	r := clusterOf(t, m, skep.Durable)
	keys := chainOf(1, 2)
	a := r.node(keys, 0)
	b := (a + 1) % 3
	if !r.has(b, keys, 0) {
		b = (a + 2) % 3
	}
	parent, child := r.begins(keys, 0), r.begins(keys, 1)
	r.nodes[b].down.Store(true)
	out, err := parent.Commit(t.Context(), skep.AckCommitted)
	require.NoError(t, err)
	require.Equal(t, skep.Committed, out.Outcome)
	r.nodes[b].down.Store(false)
	r.nodes[a].noRoom = skep.Full
	out, err = child.Commit(t.Context(), skep.AckCommitted)
	require.NoError(t, err)
	require.Equal(t, skep.PutResult{Reason: skep.Full}, out, "acknowledged, and not found")

	_, err = child.Commit(t.Context(), skep.AckCommitted)
	require.Equal(t, skep.Closed, skep.KindOf(err))
	_, err = r.Begin(t.Context(), &skep.BeginRequest{Scope: r.scope(), Parent: &keys[0], Ancestors: keys[1:], Depth: 2,
		Key: keys[1], Manifest: skep.Manifest{{Name: skep.PartKV, Size: 300}}})
	require.ErrorContains(t, err, "ancestors", "it is its own")

	r.nodes[a].noRoom = 0
	_, err = r.nodes[a].Store.Delete(t.Context(), skep.Scope{Namespace: 1}, keys)
	require.NoError(t, err)
	_, err = r.nodes[b].Store.Delete(t.Context(), skep.Scope{Namespace: 1}, keys)
	require.NoError(t, err)
	child = r.begins(keys, 1)
	r.nodes[a].noRoom = skep.Full
	out, err = child.Commit(t.Context(), skep.AckCommitted)
	require.NoError(t, err)
	require.Equal(t, skep.Declined, out.Outcome, "its parent may come to the other node")
}

// Where fewer nodes than all are enough for a durable block, one that lacks what the block goes on with is not enough:
// the block would be acknowledged, and not found.
func TestADurableBlockIsNotTakenApartFromItsChain(t *testing.T) {
	t.Parallel()
	m := twice(3, 4)
	m.Acks = 1
	r := clusterOf(t, m, skep.Durable)
	keys, other := chainOf(1, 4), chainOf(2, 4)
	r.put(other, 0, 2)
	a := r.node(keys, 0)
	b := (a + 1) % 3
	if !r.has(b, keys, 0) {
		b = (a + 2) % 3
	}
	r.nodes[b].down.Store(true)
	require.Equal(t, skep.Committed, r.put(keys, 0, 2)[0].Outcome)
	r.nodes[b].down.Store(false)

	r.nodes[a].down.Store(true) // it does not answer, and may have it
	for _, x := range r.put(keys, 2, 4) {
		require.Equal(t, skep.PutResult{Reason: skep.Unavailable}, x)
	}
	r.nodes[a].down.Store(false)
	_, err := r.nodes[b].Store.Delete(t.Context(), skep.Scope{Namespace: 1}, keys[2:])
	require.NoError(t, err)
	r.nodes[a].noRoom = skep.Full
	for _, x := range r.put(keys, 2, 4) {
		require.Equal(t, skep.PutResult{Reason: skep.Full}, x)
	}
	for _, x := range r.put(other, 2, 4) {
		require.Equal(t, skep.Committed, x.Outcome, "its other node has the chain")
	}
	require.Equal(t, 4, r.find(other, skep.NoLease).Blocks)

	r.nodes[a].noRoom = 0
	for _, x := range r.put(keys, 2, 4) {
		require.NotEqual(t, skep.Declined, x.Outcome)
	}
	require.Equal(t, 4, r.find(keys, skep.NoLease).Blocks)
}
