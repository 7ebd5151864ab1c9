package replication

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/drawn"
)

// twice is three, with two nodes for each block.
func twice(n, g int) *clustermap.Map {
	m := three(n, g)
	m.Replicas = 2
	return m
}

func openTwice(g int) func(t *testing.T, c storetest.Config) skep.Store {
	return func(t *testing.T, c storetest.Config) skep.Store {
		lacks(t, c)
		switch name := t.Name(); {
		case strings.HasSuffix(name, "/Stats"):
			t.Skip("what is stored is the sum of what the nodes say: a copy counts")
		case strings.HasSuffix(name, "/when_everything_is_leased,_puts_are_declined_and_reads_go_on"):
			t.Skip("of two copies one is leased: the other makes room")
		}
		s, err := New(Options{Map: twice(3, g), Stores: memstores(3, c)})
		require.NoError(t, err)
		return s
	}
}

func TestContractOfReplicas(t *testing.T) {
	t.Parallel()
	for _, g := range []int{2, 16} {
		t.Run(fmt.Sprintf("groups of %d", g), func(t *testing.T) { storetest.Test(t, openTwice(g)) })
	}
}

func TestRandomOfReplicas(t *testing.T) {
	t.Parallel()
	for _, g := range []int{2, 16} {
		t.Run(fmt.Sprintf("groups of %d", g), func(t *testing.T) {
			storetest.Random(t, openTwice(g), storetest.RandomOptions{Ops: 1000, Copied: true})
		})
	}
}

// has says whether a node is one of those that block i of a chain is on.
func (r *rig) has(node int, keys []skep.Key, i int) bool {
	slot := r.table.Slot(r.table.Space("t", "n"), keys[i-i%r.group])
	return slices.Contains(r.table.Nodes(slot), uint16(node))
}

// Whichever node is lost, all that was acknowledged is found and read, under a lease that was given before and without.
// Durable blocks that fewer nodes than two can take are declined; of others there is one copy.
func TestANodeThatIsDownUnderReplicas(t *testing.T) {
	t.Parallel()
	const n = 80
	for _, class := range []skep.Class{skep.Durable, skep.Cache} {
		for down := range 3 {
			r := clusterOf(t, twice(3, 4), class)
			keys, other := chainOf(1, n), chainOf(2, n)
			for _, x := range r.put(keys, 0, n) {
				require.Equal(t, skep.Committed, x.Outcome)
			}
			for i := range keys {
				copies := 0
				for k, x := range r.nodes {
					list, err := x.Store.Want(t.Context(), &skep.WantRequest{Scope: skep.Scope{Namespace: 1}, Keys: keys[i : i+1]})
					require.NoError(t, err)
					require.Equal(t, r.has(k, keys, i), list[0].Outcome == skep.Exists, "block %d on node %d", i, k)
					if list[0].Outcome == skep.Exists {
						copies++
					}
				}
				require.Equal(t, 2, copies)
			}
			found := r.find(keys, time.Minute)
			r.nodes[down].down.Store(true)
			require.Equal(t, n, r.find(keys, skep.NoLease).Blocks)
			for _, lease := range []skep.LeaseID{found.Lease.ID, 0} {
				for i, err := range r.restore(keys, lease) {
					require.NoError(t, err, "block %d", i)
				}
			}
			for i, x := range r.put(other, 0, n) {
				if class == skep.Durable && r.has(down, other, i) {
					require.Equal(t, skep.PutResult{Reason: skep.Unavailable}, x, "block %d", i)
				} else {
					require.Equal(t, skep.PutResult{Outcome: skep.Committed}, x, "block %d", i)
				}
			}
			require.Equal(t, n, r.find(other, skep.NoLease).Blocks)
			r.nodes[down].down.Store(false)
			wants, err := r.Want(t.Context(), &skep.WantRequest{Scope: r.scope(), Keys: other, Bytes: n * 300})
			require.NoError(t, err)
			again := r.put(other, 0, n)
			for i := range wants {
				require.Equal(t, class == skep.Durable && r.has(down, other, i), wants[i].Wanted, "block %d", i)
				require.NotEqual(t, skep.Declined, again[i].Outcome, "block %d", i)
			}
			r.nodes[(down+1)%3].down.Store(true)
			require.Equal(t, n, r.find(other, skep.NoLease).Blocks, "put again, it is on two nodes")
		}
	}
}

// A node answers a put with an error that says it has no room, as it does before it knows for certain: its copies are
// declined for that reason, and those of other nodes stay.
func TestANodeThatHasNoRoomUnderReplicas(t *testing.T) {
	t.Parallel()
	const n = 40
	for _, kind := range []skep.Kind{skep.Full, skep.ReadOnly} {
		for _, class := range []skep.Class{skep.Durable, skep.Cache} {
			r := clusterOf(t, twice(3, 4), class)
			r.nodes[1].noRoom = kind
			keys := chainOf(1, n)
			for i, x := range r.put(keys, 0, n) {
				if class == skep.Durable && r.has(1, keys, i) {
					require.Equal(t, skep.PutResult{Reason: kind}, x, "block %d", i)
				} else {
					require.Equal(t, skep.PutResult{Outcome: skep.Committed}, x, "block %d", i)
				}
			}
		}
	}
}

// Chains of one block go to each node in one put. Each is on its own two nodes, and where one of them is down a durable
// one is declined by itself.
func TestChainsOfOneGoToEachNodeInOnePut(t *testing.T) {
	t.Parallel()
	const n = 64
	for _, class := range []skep.Class{skep.Durable, skep.Cache} {
		r := clusterOf(t, twice(3, 4), class)
		of := func(keys []skep.Key) []skep.PutResult {
			q := r.request(keys, 0, n)
			q.Each = true
			out, err := r.Put(t.Context(), q)
			require.NoError(t, err)
			require.Len(t, out, n)
			return out
		}
		runs := func(keys []skep.Key) (q *skep.RunsRequest) {
			q = &skep.RunsRequest{Scope: r.scope(), Lease: skep.NoLease}
			for i := range keys {
				q.Runs = append(q.Runs, keys[i:i+1])
			}
			return q
		}
		keys, other := chainOf(1, n), chainOf(2, n)
		for _, x := range of(keys) {
			require.Equal(t, skep.PutResult{Outcome: skep.Committed}, x)
		}
		for k, x := range r.nodes {
			require.EqualValues(t, 1, x.arrived.Load(), "puts of node %d", k)
			list, err := x.Store.Want(t.Context(), &skep.WantRequest{Scope: skep.Scope{Namespace: 1}, Keys: keys})
			require.NoError(t, err)
			for i := range keys {
				require.Equal(t, r.has(k, keys[i:i+1], 0), list[i].Outcome == skep.Exists, "block %d on node %d", i, k)
			}
		}
		for _, x := range of(keys) {
			require.Equal(t, skep.PutResult{Outcome: skep.Exists}, x)
		}
		r.nodes[1].down.Store(true)
		for i, x := range of(other) {
			if class == skep.Durable && r.has(1, other[i:i+1], 0) {
				require.Equal(t, skep.PutResult{Reason: skep.Unavailable}, x, "block %d", i)
			} else {
				require.Equal(t, skep.PutResult{Outcome: skep.Committed}, x, "block %d", i)
			}
		}
		found, err := r.LookupRuns(t.Context(), runs(other))
		require.NoError(t, err)
		for i, x := range found.Runs {
			require.Equal(t, 1, x.Blocks, "block %d is on a node that is up", i)
		}
	}
}

// A lookup asks each node for its half, and the other one for what a node has lost.
func TestWhatOneNodeLacksAnotherHas(t *testing.T) {
	t.Parallel()
	r := clusterOf(t, twice(3, 4), skep.Cache)
	const n = 120
	keys := chainOf(1, n)
	r.put(keys, 0, n)
	lost := map[skep.Key]bool{}
	for i := 1; i < n; i += 7 { // of each of these one copy
		for k, x := range r.nodes {
			if r.has(k, keys, i) && !lost[keys[i]] {
				gone, err := x.Store.Delete(t.Context(), skep.Scope{Namespace: 1}, keys[i:i+1])
				require.NoError(t, err)
				require.Equal(t, 1, gone)
				lost[keys[i]] = true
			}
		}
	}
	for _, old := range []bool{false, true} {
		for _, x := range r.nodes {
			x.old = old
		}
		found := r.find(keys, time.Minute)
		// Copies of a group may have lost different blocks: then it ends at the first that the better copy has not.
		require.Positive(t, found.Blocks)
		if !old {
			_, blocks := r.held()
			require.Equal(t, found.Blocks, blocks, "leased is what was found")
		}
		for i, err := range r.restore(keys[:found.Blocks], found.Lease.ID) {
			require.NoError(t, err, "block %d", i)
		}
		require.NoError(t, r.Release(t.Context(), found.Lease.ID))
		leases, _ := r.held()
		require.Zero(t, leases)
	}
	whole := clusterOf(t, twice(3, 4), skep.Cache)
	whole.put(keys, 0, n)
	for i := 0; i < n; i += 4 { // of each group one copy has lost its first block
		for k, x := range whole.nodes {
			if whole.has(k, keys, i) {
				_, err := x.Store.Delete(t.Context(), skep.Scope{Namespace: 1}, keys[i:i+1])
				require.NoError(t, err)
				break
			}
		}
	}
	require.Equal(t, n, whole.find(keys, time.Minute).Blocks)
	for i, err := range whole.restore(keys, 0) {
		require.NoError(t, err, "block %d", i)
	}
}

// A node that dies while it is read from, or whose blocks are damaged, is replaced by another one, which writes to the
// same memory only when the first does not any more. Where that is not known, the blocks are misses.
func TestARunIsLoadedFromAnotherNode(t *testing.T) {
	t.Parallel()
	const n = 200
	for name, c := range map[string]struct {
		breaks func(f *fallible)
		misses bool
	}{
		"dead before":        {func(f *fallible) { f.down.Store(true) }, false},
		"dead in the middle": {func(f *fallible) { f.dies.Store(7) }, false},
		"damaged":            {func(f *fallible) { f.spoilt.Store(true) }, false},
		"memory is held":     {func(f *fallible) { f.dies.Store(7); f.holds.Store(true) }, true},
	} {
		for _, direction := range []skep.Direction{skep.HeadFirst, skep.TailFirst} {
			r := clusterOf(t, twice(3, 4), skep.Cache)
			keys := chainOf(1, n)
			r.put(keys, 0, n)
			found := r.find(keys, time.Minute)
			w := &writers{of: map[skep.Key]int{}}
			for _, x := range r.nodes {
				x.writers = w
			}
			c.breaks(r.nodes[1])
			mem := make([]byte, n*300)
			missed, seen := 0, map[int]bool{}
			err := skep.Load(t.Context(), r.Store, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: r.scope(), Keys: keys,
				Lease: found.Lease.ID, Direction: direction, Dest: skep.Destination{Memory: mem, Stride: 300}}}}, func(ch *skep.Chunk) error {
				require.False(t, seen[ch.Block], "%s: block %d twice", name, ch.Block)
				if seen[ch.Block] = true; ch.Err != nil {
					missed++
					require.True(t, c.misses, "%s: block %d: %v", name, ch.Block, ch.Err)
					require.ErrorIs(t, ch.Err, skep.Unavailable)
				} else {
					require.Equal(t, payload(keys[ch.Block]), mem[300*ch.Block:300*ch.Block+300], "%s: block %d", name, ch.Block)
				}
				return nil
			})
			if c.misses {
				require.ErrorIs(t, err, skep.NotReleased)
			} else {
				require.NoError(t, err)
			}
			require.Len(t, seen, n)
			require.Equal(t, c.misses, missed > 0, name)
			w.mu.Lock()
			require.False(t, w.two, "%s: two nodes at once wrote to one block", name)
			w.mu.Unlock()
		}
	}
}

// A deletion counts blocks, not copies, and names the node that it did not reach, which has its copies yet.
func TestADeletionReachesAllCopies(t *testing.T) {
	t.Parallel()
	r := clusterOf(t, twice(3, 4), skep.Cache)
	keys := chainOf(1, 20)
	r.put(keys, 0, 20)
	n, err := r.Delete(t.Context(), r.scope(), append([]skep.Key{keys[19], chainOf(2, 1)[0]}, keys[15:]...))
	require.NoError(t, err)
	require.Equal(t, 5, n)
	require.Equal(t, 15, r.find(keys, skep.NoLease).Blocks)
	down := r.node(keys, 0)
	r.nodes[down].down.Store(true)
	_, err = r.Delete(t.Context(), r.scope(), keys[:1])
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorContains(t, err, r.now.Load().nodes[down].Name)
	require.Zero(t, r.find(keys, skep.NoLease).Blocks)
	r.nodes[down].down.Store(false)
	require.Positive(t, r.find(keys, skep.NoLease).Blocks, "nobody told the node")
	_, err = r.Delete(t.Context(), r.scope(), keys[:1])
	require.NoError(t, err)
	require.Zero(t, r.find(keys, skep.NoLease).Blocks)
}

// Keys that stand alone have one copy: they are written over, and the last one counts.
func TestKeysThatStandAloneHaveOneCopy(t *testing.T) {
	t.Parallel()
	r := clusterOf(t, twice(3, 4), skep.Cache)
	ns, err := skep.OpenNamespace(t.Context(), r.Store, skep.NamespaceSpec{Tenant: "t", Name: "alone", Shape: shape})
	require.NoError(t, err)
	for _, k := range chainOf(1, 20) {
		_, err := r.Put(t.Context(), &skep.PutRequest{Scope: ns.Scope(), Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: payload(k)}}}}})
		require.NoError(t, err)
	}
	st, err := r.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 20, st.Blocks)
}

// A block that is written part by part is committed on the nodes that are left, where they are enough.
func TestAWriterOfReplicas(t *testing.T) {
	t.Parallel()
	for _, class := range []skep.Class{skep.Durable, skep.Cache} {
		r := clusterOf(t, twice(3, 4), class)
		keys := chainOf(1, 1)
		begin := func(k skep.Key) skep.BlockWriter {
			w, err := r.Begin(t.Context(), &skep.BeginRequest{Scope: r.scope(), Key: k, Manifest: skep.Manifest{{Name: skep.PartKV, Size: 300}}})
			require.NoError(t, err)
			return w
		}
		w := begin(keys[0])
		require.NoError(t, w.Write(t.Context(), skep.PartKV, 0, payload(keys[0])[:100]))
		_, err := w.Commit(t.Context(), skep.AckCommitted)
		require.ErrorIs(t, err, skep.Invalid, "bytes are missing")
		require.NoError(t, w.Write(t.Context(), skep.PartKV, 100, payload(keys[0])[100:]))
		out, err := w.Commit(t.Context(), skep.AckCommitted)
		require.NoError(t, err)
		require.Equal(t, skep.Committed, out.Outcome)
		r.nodes[r.node(keys, 0)].down.Store(true)
		require.Equal(t, 1, r.find(keys, skep.NoLease).Blocks)
		_, err = r.Begin(t.Context(), &skep.BeginRequest{Scope: r.scope(), Key: keys[0], Manifest: skep.Manifest{{Name: skep.PartKV, Size: 300}}})
		if class == skep.Durable {
			require.ErrorIs(t, err, skep.Unavailable)
		} else {
			require.NoError(t, err)
		}
	}
}

// Nodes are taken away and come back, one at a time, while blocks are put, looked up, restored and deleted. What two
// nodes acknowledged is found and read at any time, as long as nobody deleted it or a block before it.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	for g := range 2 {
		rnd := rand.New(rand.NewPCG(seed, uint64(g)))
		r := clusterOf(t, twice(4, 4), skep.Durable)
		w := &writers{of: map[skep.Key]int{}}
		for _, x := range r.nodes {
			x.writers = w
		}
		const chains, long = 6, 60
		var keys [chains][]skep.Key
		var acked [chains][long]bool // two nodes have said so since it was deleted
		var maybe [chains][long]bool // somebody may have it
		for c := range keys {
			keys[c] = chainOf(c, long)
		}
		down := -1
		for op := range 600 {
			c := rnd.IntN(chains)
			sure := slices.Index(acked[c][:], false)
			if sure < 0 {
				sure = long
			}
			switch rnd.IntN(10) {
			case 0, 1: // a node goes, or comes back
				for _, x := range r.nodes {
					x.dies.Store(0)
					x.down.Store(false)
				}
				if down < 0 {
					if down = rnd.IntN(len(r.nodes)); rnd.IntN(2) == 0 {
						r.nodes[down].dies.Store(1 + rnd.Int64N(30)) // in the middle of a restore
					} else {
						r.nodes[down].down.Store(true)
					}
				} else {
					down = -1
				}
			case 2, 3, 4:
				from := rnd.IntN(sure + 1)
				to := min(long, from+1+rnd.IntN(20))
				if from == to {
					continue
				}
				for i, x := range r.put(keys[c], from, to) {
					maybe[c][from+i] = true
					acked[c][from+i] = acked[c][from+i] || x.Outcome == skep.Committed || x.Outcome == skep.Exists
				}
			case 5:
				if rnd.IntN(4) > 0 {
					continue
				}
				at := rnd.IntN(long)
				_, err := r.Delete(t.Context(), r.scope(), keys[c][at:at+1])
				acked[c][at] = false
				if err == nil {
					maybe[c][at] = false
				}
				require.True(t, err == nil || down >= 0, "op %d: %v", op, err)
			case 6, 7:
				found := r.find(keys[c], skep.NoLease).Blocks
				require.GreaterOrEqual(t, found, sure, "op %d: chain %d", op, c)
				for i := range found {
					require.True(t, maybe[c][i], "op %d: block %d of chain %d is found and was deleted or never put", op, i, c)
				}
			default:
				lease := r.find(keys[c], time.Minute).Lease.ID
				for i, err := range r.restore(keys[c], lease) { // which compares bytes
					require.True(t, i >= sure || err == nil, "op %d: block %d of chain %d: %v", op, i, c, err)
				}
			}
		}
		w.mu.Lock()
		require.False(t, w.two, "two nodes at once wrote to one block")
		w.mu.Unlock()
	}
}

// A chain that goes by layers goes on by layers at the other node.
func TestLayersAreLoadedFromAnotherNode(t *testing.T) {
	t.Parallel()
	for _, direction := range []skep.Direction{skep.LayersUp, skep.LayersDown} {
		r := clusterOf(t, twice(3, 4), skep.Cache)
		sh := skep.Shape{Kind: skep.Attention, Layers: 3, KVHeads: 2, HeadDim: 8, Element: skep.F16, BlockTokens: 4}
		ns, err := skep.OpenNamespace(t.Context(), r.Store, skep.NamespaceSpec{Tenant: "t", Name: "layers", Shape: sh, Chained: true})
		require.NoError(t, err)
		const n, bytes = 60, 3 * 2 * 2 * 8 * 2 * 4
		keys := chainOf(1, n)
		q := &skep.PutRequest{Scope: ns.Scope()}
		var want []byte
		for _, k := range keys {
			b := storetest.Payload(k, skep.PartKV, bytes)
			want = append(want, b...)
			q.Blocks = append(q.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: b}}})
		}
		_, err = r.Put(t.Context(), q)
		require.NoError(t, err)
		found, err := r.Lookup(t.Context(), &skep.LookupRequest{Scope: ns.Scope(), Keys: keys, Lease: time.Minute})
		require.NoError(t, err)
		require.Equal(t, n, found.Blocks)
		r.nodes[2].dies.Store(5)
		mem, chunks := make([]byte, n*bytes), 0
		err = skep.Load(t.Context(), r.Store, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: ns.Scope(), Keys: keys, Lease: found.Lease.ID,
			Direction: direction, Dest: skep.Destination{Memory: mem, Stride: bytes}}}}, func(ch *skep.Chunk) error {
			chunks++
			return ch.Err
		})
		require.NoError(t, err)
		require.Equal(t, 3*n, chunks)
		require.True(t, r.nodes[2].down.Load(), "it died in the middle")
		require.Equal(t, want, mem)
	}
}
