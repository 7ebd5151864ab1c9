package replication

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/pace"
	"github.com/skepkv/skep/tools/drawn"
)

// onItsWay is what each node is yet to give a session, from what the session is about to ask and has asked nodes for.
// x.mu is held.
func (x *session) onItsWay() []int64 {
	out := make([]int64, len(x.st.nodes))
	for l := range x.loads {
		out[l.node.i] += l.chain.each * int64(len(l.left))
	}
	for i, list := range x.retry {
		for _, w := range list {
			for _, p := range w.pieces {
				out[i] += w.chain.each * int64(p.to-p.from)
			}
		}
	}
	for _, c := range x.chains {
		for i, open := range c.open {
			if b, _ := c.Chunk(i); open && c.spanOf(b).node != nil {
				out[c.spanOf(b).node.i] += c.each
			}
		}
		if c.plan != nil {
			continue
		}
		for i := range out {
			for l := c.lanes[i]; !l.over(c); c.step(&l) {
				n := 1
				if p := l.spans[l.span]; c.Direction.ByLayer() {
					n = p.to - p.from - l.block
				}
				out[i] += c.each * int64(n)
			}
		}
	}
	return out
}

// books is what each node owes, by the books of a client with no session but this, and requires that it is so.
func (r *rig) books(ses skep.Session) (out []int64) {
	r.Helper()
	x := ses.(*session)
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, n := range x.st.nodes {
		out = append(out, n.owed.Load())
	}
	if x.closed {
		require.Equal(r, make([]int64, len(out)), out, "nothing of a session that is closed")
	} else {
		require.Equal(r, x.onItsWay(), out)
	}
	return out
}

// slowed has it be known of a node that its runs are slow, and of the others that theirs are not.
func (r *rig) slowed(node int) {
	now := time.Now()
	for _, n := range r.now.Load().nodes {
		n.runs.Begin(now).End(now, true)
	}
	r.now.Load().nodes[node].runs.Begin(now.Add(-10*time.Second)).End(now, false)
}

// A chain is on two nodes, and neither has given anything. Whoever is to give a block owes it: the one that it is
// planned from, until another one is asked for it.
func TestWhoIsAskedOwesTheBytes(t *testing.T) {
	t.Parallel()
	const n, each = 40, 300
	spoilt := func(r *rig) { r.nodes[1].gate = nil; r.nodes[1].spoilt.Store(true) }
	down := func(r *rig) { r.nodes[1].gate = nil; r.nodes[1].down.Store(true) }
	for name, c := range map[string]struct {
		before func(r *rig)
		then   func(t *testing.T, ses skep.Session)
		moved  bool // to node 0, all of it
		none   bool // nothing is owed
	}{
		"begun":                   {},
		"slow from the beginning": {before: func(r *rig) { r.slowed(1) }, moved: true},
		"down":                    {before: down, moved: true},
		"damaged":                 {before: spoilt, moved: true},
		"late": {
			before: func(r *rig) { r.nodes[0].deaf = true }, // it keeps what it was asked for
			then:   func(*testing.T, skep.Session) { <-time.After(20 * time.Second) },
			moved:  true,
		},
		"stopped": {
			then: func(t *testing.T, ses skep.Session) { require.NoError(t, ses.Stop(t.Context(), -1)) },
			none: true,
		},
		"closed": {then: func(t *testing.T, ses skep.Session) { require.NoError(t, ses.Close(t.Context())) }, none: true},
		"down, and closed": {
			before: down,
			then:   func(t *testing.T, ses skep.Session) { require.NoError(t, ses.Close(t.Context())) },
			none:   true,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := clusterOf(t, twice(2, 4), skep.Cache)
			r.judged()
			keys := chainOf(1, n)
			r.put(keys, 0, n)
			lease := r.find(keys, 10*time.Minute).Lease.ID // of blocks of both nodes, whatever is known of these later
			gate := make(chan struct{})
			for _, x := range r.nodes {
				x.gate = gate
			}
			if c.before != nil {
				c.before(r)
			}
			chain := skep.Chain{Scope: r.scope(), Keys: keys, Lease: lease}
			chain.Dest = skep.Destination{Memory: make([]byte, n*each), Stride: each}
			ses, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{chain}})
			require.NoError(t, err)
			synctest.Wait()
			if c.then != nil {
				c.then(t, ses)
			}
			synctest.Wait()
			got := r.books(ses)
			switch {
			case c.none:
				require.Equal(t, []int64{0, 0}, got, name)
			case c.moved:
				require.Equal(t, []int64{n * each, 0}, got, name)
			default:
				require.EqualValues(t, n*each, got[0]+got[1], name)
				require.Positive(t, got[1], name)
			}
			close(gate)
			if !c.none {
				require.NoError(t, skep.Drain(t.Context(), ses, func(ch *skep.Chunk) error { return ch.Err }), name)
				require.Equal(t, []int64{0, 0}, r.books(ses), name)
			}
			require.NoError(t, ses.Close(t.Context()))
			require.Equal(t, []int64{0, 0}, r.books(ses), name)
		})
	}
}

// A restore under a lease says how large blocks are neither by a lookup nor by a stride. The namespace does.
func TestBytesOfALeaseAreTheNamespaces(t *testing.T) {
	t.Parallel()
	const n, each = 40, 300
	synctest.Test(t, func(t *testing.T) {
		r := clusterOf(t, twice(2, 4), skep.Cache)
		var err error
		r.ns, err = r.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "sized", Chained: true,
			Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4, Bytes: each}})
		require.NoError(t, err)
		keys := chainOf(1, n)
		r.put(keys, 0, n)
		chain := skep.Chain{Scope: r.scope(), Keys: keys, Lease: r.find(keys, 10*time.Minute).Lease.ID}
		gate := make(chan struct{})
		r.nodes[0].gate, r.nodes[1].gate = gate, gate
		ses, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{chain}})
		require.NoError(t, err)
		synctest.Wait()
		owed := r.books(ses)
		require.EqualValues(t, n*each, owed[0]+owed[1])
		close(gate)
		require.NoError(t, skep.Drain(t.Context(), ses, func(ch *skep.Chunk) error { ch.Release(); return ch.Err }))
		require.NoError(t, ses.Close(t.Context()))
	})
}

// Whatever nodes do, and the caller, who is to give what is always in the books.
func TestBooksOfRestoresThatGoWrong(t *testing.T) {
	t.Parallel()
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	rng := rand.New(rand.NewPCG(drawn.Seed(t), 2))
	moved := 0
	for range rounds {
		synctest.Test(t, func(t *testing.T) {
			n := 40 + rng.IntN(400)
			x := plannedCluster(t, twice(3, 4), n)
			x.judged()
			lease := x.find(x.keys, 10*time.Minute).Lease.ID
			for i, f := range x.nodes {
				switch rng.IntN(6) {
				case 0:
					x.paceOf(i, time.Duration(1+rng.IntN(300))*ms)
				case 1:
					f.wrap = (&stall{after: rng.IntN(20), stops: time.Duration(rng.IntN(100)) * ms}).wrap
				case 2:
					f.dies.Store(int64(1 + rng.IntN(20)))
				case 3:
					k := x.keys[rng.IntN(n)]
					f.damaged.Store(&k)
				default:
					x.paceOf(i, ms)
				}
				if rng.IntN(4) == 0 {
					x.slowed(i)
				}
			}
			c := skep.Chain{Scope: x.scope(), Keys: x.keys, Lease: lease, Direction: skep.HeadFirst}
			if rng.IntN(2) == 0 {
				c.Direction = skep.TailFirst
				if rng.IntN(2) == 0 {
					c.Compute = &skep.Compute{Cost: skep.RecomputeCost{PerToken: x.cost}}
				}
			}
			if rng.IntN(4) == 0 {
				c.Deadline = skep.Steady().Add(time.Duration(rng.IntN(1000)) * ms)
			}
			q := &skep.RestoreRequest{Chains: []skep.Chain{c}}
			if rng.IntN(3) == 0 {
				q.Window = int64(300 * (1 + rng.IntN(n)))
			}
			ses, err := x.Restore(t.Context(), q)
			require.NoError(t, err)
			was := x.books(ses)
			into := make([]skep.Chunk, 8)
			for over := false; !over; {
				switch rng.IntN(60) {
				case 0:
					at := rng.IntN(n) * shape.BlockTokens
					_, _ = ses.Claim(t.Context(), 0, skep.Only(at, at+shape.BlockTokens), skep.Busy)
				case 1:
					require.NoError(t, ses.Stop(t.Context(), -1))
				case 2:
					over = rng.IntN(4) == 0
				default:
					within, cancel := context.WithTimeout(t.Context(), 20*ms)
					k, err := ses.Next(within, into)
					cancel()
					over = errors.Is(err, io.EOF)
					for i := range into[:k] {
						into[i].Release()
					}
				}
				got := x.books(ses)
				for i := range got {
					if got[i] > was[i] {
						moved++
					}
				}
				was = got
				synctest.Wait()
				x.books(ses)
			}
			require.NoError(t, ses.Close(t.Context()))
			require.Equal(t, []int64{0, 0, 0}, x.books(ses))
		})
	}
	t.Logf("%d times a node came to owe more", moved)
}

// What a probe takes of a node that gives this client bytes says nothing of the node at rest.
func TestAProbeOfALadenNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, keys := slowly(t, 40)
		n, f := r.now.Load().nodes[1], r.nodes[1]
		f.lag.Store(int64(50 * ms))
		for range 100 {
			r.find(keys, skep.NoLease)
		}
		<-time.After(10 * time.Second) // no probe is under way
		atRest := restLine(n).Expect(time.Now())
		require.True(t, pace.Lookups.Slow(atRest, ms), "it is slow")
		n.owed.Add(1 << 20)
		f.lag.Store(int64(3 * time.Second))
		for range 3 {
			r.find(keys, skep.NoLease)
			<-time.After(5 * time.Second)
		}
		synctest.Wait()
		require.Equal(t, 3*time.Second, n.lookups.Line(true).Expect(time.Now()))
		require.Equal(t, atRest, restLine(n).Expect(time.Now()))
		n.owed.Add(-1 << 20)
	})
}

// What is planned from a node and begun at another one, since that brings it sooner, is owed by that one.
func TestWhatIsBegunElsewhereOfAPlan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := plannedCluster(t, twice(2, 4), 400, ms, 50*ms)
		x.judged()
		x.cost = time.Second
		x.begin(false, skep.Chain{})
		was, all := x.books(x.ses), int64(0)
		for into := make([]skep.Chunk, 4); ; {
			k, err := x.ses.Next(t.Context(), into)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			for i := range into[:k] {
				into[i].Release()
			}
			got := x.books(x.ses)
			if got[0] > was[0] {
				all += got[0] - was[0]
			}
			was = got
		}
		require.Positive(t, all, "it is begun there")
		require.Less(t, x.nodes[1].asked.Load(), int64(150))
		require.NoError(t, x.ses.Close(t.Context()))
	})
}

// A layer of a long chain is one piece, and all of it is missed: no more of that waits for the reader than of anything
// else, each block is missed once, and what its node no longer owes is as much.
func TestAMissedLayerDoesNotFillUpWhatIsReady(t *testing.T) {
	t.Parallel()
	const n, layers, bytes = 3*mostReady + 7, 3, 3 * 2 * 2 * 8 * 2 * 4
	for name, stored := range map[string]bool{"nowhere": false, "stopped": true} {
		r := clusterOf(t, twice(2, 4), skep.Cache)
		sh := skep.Shape{Kind: skep.Attention, Layers: layers, KVHeads: 2, HeadDim: 8, Element: skep.F16, BlockTokens: 4}
		ns, err := skep.OpenNamespace(t.Context(), r.Store, skep.NamespaceSpec{Tenant: "t", Name: "layers", Shape: sh,
			Chained: true})
		require.NoError(t, err)
		keys := chainOf(1, n)
		if stored {
			q := &skep.PutRequest{Scope: ns.Scope()}
			for _, k := range keys {
				q.Blocks = append(q.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: make([]byte, bytes)}}})
			}
			_, err = r.Put(t.Context(), q)
			require.NoError(t, err)
			gate := make(chan struct{})
			for _, x := range r.nodes {
				x.gate = gate
			}
		}
		ses, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: ns.Scope(), Keys: keys,
			Direction: skep.LayersUp, Dest: skep.Destination{Memory: make([]byte, n*bytes), Stride: bytes}}}})
		require.NoError(t, err)
		if stored {
			require.NoError(t, ses.Stop(t.Context(), -1))
		}
		x := ses.(*session)
		type item struct{ block, layer int }
		missed, into := map[item]int{}, make([]skep.Chunk, 100)
		for {
			x.mu.Lock()
			ready := len(x.ready)
			x.mu.Unlock()
			if !stored { // else what was begun before the Stop is missed, too
				require.LessOrEqual(t, ready, mostReady, name)
			}
			r.books(ses)
			got, err := ses.Next(t.Context(), into)
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			for _, ch := range into[:got] {
				require.Error(t, ch.Err)
				missed[item{ch.Block, ch.Layers.From}]++
			}
		}
		require.Len(t, missed, n*layers, name)
		for at, times := range missed {
			require.Equal(t, 1, times, "%s: %+v", name, at)
		}
		require.NoError(t, ses.Close(t.Context()))
	}
}
