package replication

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/keeper"
	"github.com/skepkv/skep/replication/lives"
	"github.com/skepkv/skep/replication/placement"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/drawn"
)

// shared is a Store that stays open for others.
type shared struct{ skep.Store }

func (shared) Close() error         { return nil }
func (s shared) Unwrap() skep.Store { return s.Store }

// crew is a rig whose nodes each have a Store of the whole cluster, as servers do, by which they repair.
type crew struct {
	*rig
	keepers []*keeper.Keeper
	of      []*Store
}

func crewOf(t *testing.T, m *clustermap.Map, class skep.Class, o storetest.Config) *crew {
	t.Helper()
	c := &crew{rig: &rig{T: t, group: m.Group, table: placement.New(m)}}
	for _, st := range memstores(len(m.Nodes), o) {
		c.nodes = append(c.nodes, &fallible{Store: st})
		c.keepers = append(c.keepers, keeper.New(c.nodes[len(c.nodes)-1]))
	}
	c.Store = c.client(m)
	for range m.Nodes {
		c.of = append(c.of, c.client(m))
	}
	t.Cleanup(func() {
		for _, k := range c.keepers {
			assert.NoError(t, k.Close())
		}
	})
	var err error
	spec := skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true, Class: class}
	c.ns, err = c.OpenNamespace(t.Context(), spec)
	require.NoError(t, err)
	return c
}

// client is a Store of the nodes of a map, which are those of the crew by their numbers.
func (c *crew) client(m *clustermap.Map) *Store {
	c.Helper()
	var stores []skep.Store
	for _, n := range m.Nodes {
		stores = append(stores, shared{c.keepers[n.ID-1]})
	}
	s, err := New(Options{Map: m, Stores: stores})
	require.NoError(c, err)
	c.Cleanup(func() { assert.NoError(c, s.Close()) })
	return s
}

// repair has every node that is up repair once, and adds up what they did.
func (c *crew) repair() (sum Repaired) {
	c.Helper()
	for i := range c.keepers {
		if c.nodes[i].down.Load() {
			continue
		}
		r, err := c.of[i].Repair(c.Context(), RepairOptions{Keeper: c.keepers[i]})
		require.NoError(c, err)
		sum.Blocks += r.Blocks
		sum.Copied += r.Copied
		sum.Bytes += r.Bytes
		sum.Declined += r.Declined
		sum.Away += r.Away
		sum.Strays += r.Strays
		sum.Unread += r.Unread
		sum.LeftOut += r.LeftOut
	}
	return sum
}

// putWithoutB puts the first n blocks of a chain while node b is away.
func (c *crew) putWithoutB(keys []skep.Key, n int) {
	c.Helper()
	c.nodes[1].down.Store(true)
	c.put(keys, 0, n)
	c.nodes[1].down.Store(false)
}

// keysOf is which keys a node has, whatever the map says.
func (c *crew) keysOf(node int) map[skep.Key]bool {
	c.Helper()
	list, err := c.nodes[node].Store.Namespaces(c.Context())
	require.NoError(c, err)
	out := map[skep.Key]bool{}
	for _, ns := range list {
		keys, next, err := c.nodes[node].Store.ListKeys(c.Context(), ns.ID, 0, 1<<20)
		require.NoError(c, err)
		require.Zero(c, next)
		for _, k := range keys {
			out[k] = true
		}
	}
	return out
}

// right checks that of a chain each node has what it should, and no other block.
func (c *crew) right(keys []skep.Key) {
	c.Helper()
	for k := range c.nodes {
		has := c.keysOf(k)
		for i := range keys {
			require.Equal(c, c.has(k, keys, i), has[keys[i]], "block %d on node %d", i, k)
		}
	}
}

// What a node missed while it was away, and what it has lost, it has again after the others have repaired, and then
// any one node is enough.
func TestANodeGetsItsCopiesAgain(t *testing.T) {
	t.Parallel()
	for _, class := range []skep.Class{skep.Cache, skep.Durable} {
		c := crewOf(t, twice(3, 4), class, storetest.Config{})
		const n = 120
		old, missed := chainOf(1, n), chainOf(2, n)
		c.put(old, 0, n)
		c.nodes[1].down.Store(true)
		c.put(missed, 0, n)
		require.Positive(t, c.repair().Away)
		c.nodes[1].down.Store(false)
		c.nodes[1].Store = memstore.New(memstore.Options{}) // with empty drives
		mine := 0
		for _, keys := range [][]skep.Key{old, missed} {
			for i := range keys {
				if c.has(1, keys, i) {
					mine++
				}
			}
		}
		r := c.repair()
		require.EqualValues(t, mine, r.Copied)
		require.EqualValues(t, 300*mine, r.Bytes)
		require.Zero(t, r.Declined+r.Away+r.Strays)
		c.right(old)
		if class == skep.Cache {
			c.right(missed)
		}
		puts := c.nodes[0].arrived.Load() + c.nodes[1].arrived.Load() + c.nodes[2].arrived.Load()
		require.Zero(t, c.repair().Copied, "there is nothing left to do")
		require.Equal(t, puts, c.nodes[0].arrived.Load()+c.nodes[1].arrived.Load()+c.nodes[2].arrived.Load())
		c.nodes[0].down.Store(true)
		require.Equal(t, n, c.find(old, skep.NoLease).Blocks)
		for i, err := range c.restore(old, 0) { // which compares bytes
			require.NoError(t, err, "block %d", i)
		}
	}
}

// A copy is the block: its parts, its name, and how many of its tokens are valid.
func TestACopyIsTheBlock(t *testing.T) {
	t.Parallel()
	c := crewOf(t, twice(2, 4), skep.Cache, storetest.Config{})
	keys := chainOf(1, 11)
	c.nodes[1].down.Store(true)
	q := &skep.PutRequest{Scope: c.scope()}
	for i, k := range keys {
		b := skep.Block{Key: k, Name: fmt.Appendf(nil, "engine's %d", i)}
		b.Parts = []skep.Part{{Name: skep.PartKV, Bytes: payload(k)}}
		for extra := range i % 3 {
			name := fmt.Sprint("part", extra)
			b.Parts = append(b.Parts, skep.Part{Name: name, Bytes: storetest.Payload(k, name, 7+5000*extra)})
		}
		if i == len(keys)-1 {
			b.ValidTokens = 3
		}
		q.Blocks = append(q.Blocks, b)
	}
	_, err := c.Put(t.Context(), q)
	require.NoError(t, err)
	c.nodes[1].down.Store(false)
	require.EqualValues(t, len(keys), c.repair().Copied)
	var lists [2][]skep.StoredBlock
	for i := range lists {
		l, _ := skep.As[blockLister](c.nodes[i].Store)
		lists[i], _, err = l.ListBlocks(t.Context(), 1, 4, 0, 100)
		require.NoError(t, err)
		require.Len(t, lists[i], len(keys))
	}
	require.Equal(t, lists[0], lists[1])
	c.nodes[0].down.Store(true)
	found := c.find(keys, skep.NoLease)
	require.Equal(t, 10*4+3, found.Tokens)
	for i, b := range q.Blocks {
		for _, p := range b.Parts {
			of := skep.Chain{Scope: c.scope(), Keys: keys, Part: p.Name, Blocks: skep.Only(i, i+1)}
			err := skep.Load(t.Context(), c.Store, &skep.RestoreRequest{Chains: []skep.Chain{of}}, func(ch *skep.Chunk) error {
				require.NoError(t, ch.Err)
				require.Equal(t, p.Bytes, ch.AppendTo(nil))
				return nil
			})
			require.NoError(t, err)
		}
	}
}

// By a map with a node more, or with one out, blocks go where they are looked for from then on. With one copy, too.
func TestBlocksGoWhereTheMapSays(t *testing.T) {
	t.Parallel()
	for _, copies := range []int{1, 2} {
		for name, change := range map[string]func(m *clustermap.Map){
			"one more": func(m *clustermap.Map) { m.Nodes[3].State = clustermap.Up },
			"one out":  func(m *clustermap.Map) { m.Nodes[0].State = clustermap.Out },
		} {
			t.Run(fmt.Sprintf("%s, %d copies", name, copies), func(t *testing.T) {
				t.Parallel()
				m := three(4, 4)
				m.Replicas, m.Epoch = copies, 1
				m.Nodes[3].State = clustermap.Out
				c := crewOf(t, m, skep.Cache, storetest.Config{})
				const n = 200
				keys := chainOf(1, n)
				c.put(keys, 0, n)
				require.Zero(t, c.repair().Copied)
				next := *m
				next.Epoch, next.Nodes = 2, slices.Clone(m.Nodes)
				change(&next)
				require.NoError(t, c.Follow(t.Context(), &next))
				if copies == 1 {
					require.Less(t, c.find(keys, skep.NoLease).Blocks, n)
				}
				for _, s := range c.of {
					require.NoError(t, s.Follow(t.Context(), &next))
				}
				r := c.repair()
				require.Positive(t, r.Strays)
				require.Less(t, r.Copied, int64(n*copies*2/3), "what has not moved is not sent")
				require.Equal(t, n, c.find(keys, skep.NoLease).Blocks)
				for i, err := range c.restore(keys, 0) {
					require.NoError(t, err, "block %d", i)
				}
				require.Zero(t, c.repair().Copied)
			})
		}
	}
}

// A repair says by which map it went, and that its map has this node not.
func TestARepairSaysByWhichMap(t *testing.T) {
	t.Parallel()
	c := crewOf(t, twice(2, 4), skep.Cache, storetest.Config{})
	r, err := c.of[0].Repair(t.Context(), RepairOptions{Keeper: c.keepers[0]})
	require.NoError(t, err)
	require.EqualValues(t, max(c.of[0].Map().Epoch, 1), r.Epoch)
	r, err = c.of[0].Repair(t.Context(), RepairOptions{Keeper: keeper.New(nil)})
	require.NoError(t, err)
	require.Zero(t, r.Epoch)
}

// Where there is no room to spare, or there has been evicted since, blocks of class Cache do not go; durable ones do.
func TestACopyTakesNoOthersRoom(t *testing.T) {
	t.Parallel()
	for _, class := range []skep.Class{skep.Cache, skep.Durable} {
		c := crewOf(t, twice(2, 4), class, storetest.Config{CapacityBytes: 2 * 300 * 32})
		c.nodes[1].down.Store(true)
		keys := chainOf(1, 8)
		require.NoError(t, func() error { _, err := c.keepers[0].Put(t.Context(), c.request(keys, 0, 4)); return err }())
		c.nodes[1].down.Store(false)
		other := chainOf(2, 31) // one is left
		_, err := c.nodes[1].Store.Put(t.Context(), c.request(other, 0, 31))
		require.NoError(t, err)
		r, err := c.of[0].Repair(t.Context(), RepairOptions{Keeper: c.keepers[0]})
		require.NoError(t, err)
		if class == skep.Durable {
			require.EqualValues(t, 4, r.Copied)
		} else {
			require.Equal(t, Repaired{Blocks: 4, Declined: 4, Epoch: r.Epoch}, r)
		}
	}
	k := keeper.New(nil)
	empty := skep.Stats{CapacityBytes: 100, Groups: 1, FreeGroups: 9, DeviceBytes: 100}
	require.True(t, k.Spared(1, &empty))
	empty.Evicted = 5
	require.False(t, k.Spared(1, &empty), "it has evicted since")
	require.True(t, k.Spared(1, &empty), "and no more")
	require.False(t, k.Spared(1, &skep.Stats{CapacityBytes: 100, Groups: 10, DeviceBytes: 100, Evicted: 5}))
	require.True(t, k.Spared(1, &skep.Stats{CapacityBytes: 100, DeviceBytes: 90, Evicted: 5}), "it grows yet")
	require.True(t, k.Spared(1, &skep.Stats{Evicted: 5}), "it has no cap")
	require.True(t, k.Spared(1, &skep.Stats{CapacityBytes: 20, Groups: 5, FreeGroups: 5, DeviceBytes: 100, Evicted: 5}),
		"it was given drives beyond its cap")
}

// A node that a copy is going to has carried out a deletion already, of which the sender hears later: what was sent
// meanwhile is deleted again, before the deletion has ended.
func TestACopyDoesNotOutliveADeletion(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(ctx context.Context, st skep.Store, keys []skep.Key) error{
		"delete": func(ctx context.Context, st skep.Store, keys []skep.Key) error {
			_, err := st.Delete(ctx, skep.Scope{Namespace: 1}, keys)
			return err
		},
		"purge": func(ctx context.Context, st skep.Store, _ []skep.Key) error {
			return st.Purge(ctx, skep.Purge{Namespace: 1})
		},
		"purge of a tenant": func(ctx context.Context, st skep.Store, _ []skep.Key) error {
			return st.Purge(ctx, skep.Purge{Tenant: "t"})
		},
		"delete namespace": func(ctx context.Context, st skep.Store, _ []skep.Key) error {
			return st.DeleteNamespace(ctx, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := crewOf(t, twice(2, 4), skep.Cache, storetest.Config{})
			keys := chainOf(1, 40)
			c.nodes[1].down.Store(true)
			c.put(keys, 0, 40)
			c.nodes[1].down.Store(false)
			early := name == "delete namespace" // then it is given the namespace again
			if early {
				require.NoError(t, remove(t.Context(), c.nodes[1], keys))
			}
			c.nodes[1].held = make(chan struct{})
			c.nodes[1].arrived.Store(0)
			done := make(chan error)
			go func() {
				_, err := c.of[0].Repair(t.Context(), RepairOptions{Keeper: c.keepers[0]})
				done <- err
			}()
			require.Eventually(t, func() bool { return c.nodes[1].arrived.Load() > 0 }, time.Minute, time.Millisecond)
			if !early {
				require.NoError(t, remove(t.Context(), c.nodes[1], keys)) // which has nothing yet
			}
			deleted := make(chan error)
			go func() { deleted <- remove(t.Context(), c.keepers[0], keys) }()
			require.Eventually(t, func() bool {
				st, err := c.nodes[0].Store.Stats(t.Context())
				return err == nil && st.Blocks == 0
			}, time.Minute, time.Millisecond)
			close(c.nodes[1].held)
			require.NoError(t, <-deleted)
			require.Empty(t, c.keysOf(1))
			require.NoError(t, <-done)
			require.Empty(t, c.keysOf(1))
			list, err := c.nodes[1].Store.Namespaces(t.Context())
			require.NoError(t, err)
			require.Equal(t, early, len(list) == 0)
		})
	}
}

// A deletion of what went to a node that does not answer says so.
func TestADeletionNamesTheNodeThatACopyWentTo(t *testing.T) {
	t.Parallel()
	c := crewOf(t, twice(2, 4), skep.Cache, storetest.Config{})
	keys := chainOf(1, 4)
	c.putWithoutB(keys, 4)
	require.EqualValues(t, 4, c.repair().Copied)
	c.nodes[1].down.Store(true)
	_, err := c.keepers[0].Delete(t.Context(), skep.Scope{Namespace: 1}, keys[:1])
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorContains(t, err, "node is b")
	c.nodes[1].down.Store(false)
	n, err := c.Delete(t.Context(), c.scope(), keys)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Empty(t, c.keysOf(0))
	require.Empty(t, c.keysOf(1))
	require.True(t, c.keepers[0].Idle(), "it is recalled once")
}

// sends notes that a node of two sends the other one a block.
func (c *crew) sends(i int, key skep.Key) *keeper.Flight {
	c.Helper()
	f, err := c.keepers[i].Depart(c.Context(), 1, []skep.StoredBlock{{Key: key}})
	require.NoError(c, err)
	v := c.of[i].now.Load()
	sp, err := c.of[i].spaces.heard(v.nodes[i], lives.Life{}, c.ns)
	require.NoError(c, err)
	f.Sends(target{many{c.of[i], v}, sp, v.nodes[1-i], v.nodes[i]})
	return f
}

// Two nodes have copies of a block under way to each other that neither knows to have arrived. Deletions that come to both
// do not call each other for ever.
func TestTwoRecallsDoNotCallEachOther(t *testing.T) {
	t.Parallel()
	c := crewOf(t, twice(2, 4), skep.Cache, storetest.Config{})
	keys := chainOf(1, 4)
	c.put(keys, 0, 4)
	for i := range c.keepers {
		f := c.sends(i, keys[0])
		f.Doubt.Store(true)
		f.End()
	}
	for range 2 {
		_, err := c.keepers[0].Delete(t.Context(), skep.Scope{Namespace: 1}, keys[:1])
		require.ErrorIs(t, err, skep.Unavailable, "what is in doubt may come yet")
	}
	require.False(t, c.keepers[0].Idle())
	require.False(t, c.keepers[1].Idle())
}

// Two nodes have sent each other a block, which is deleted at both at once: neither recall waits for the other one.
func TestNodesThatSentEachOtherABlock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := crewOf(t, twice(2, 4), skep.Cache, storetest.Config{})
		keys := chainOf(1, 4)
		c.put(keys, 0, 4)
		for i := range c.keepers {
			c.sends(i, keys[0]).End()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n, err := c.Delete(ctx, c.scope(), keys)
		require.NoError(t, err)
		require.Equal(t, 4, n)
		for i, k := range c.keepers {
			require.Empty(t, c.keysOf(i))
			require.True(t, k.Idle())
		}
	})
}

// Nodes repair all the time while clients put and delete: what was deleted is nowhere, what was stored is where the
// map says.
func TestRepairsBesideClients(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	c := crewOf(t, twice(4, 4), skep.Durable, storetest.Config{})
	ctx, stop := context.WithCancel(t.Context())
	var repairs sync.WaitGroup
	for i, k := range c.keepers {
		repairs.Go(func() {
			for ctx.Err() == nil {
				_, err := c.of[i].Repair(ctx, RepairOptions{Keeper: k})
				assert.True(t, err == nil || ctx.Err() != nil, "%v", err)
			}
		})
	}
	const clients, long = 4, 40
	var wait sync.WaitGroup
	var stored [clients][long]bool
	for w := range clients {
		wait.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			keys := chainOf(w, long)
			for range 300 {
				from := rnd.IntN(long)
				to := min(long, from+1+rnd.IntN(8))
				if rnd.IntN(2) == 0 {
					_, err := c.Delete(ctx, c.scope(), keys[from:to])
					assert.NoError(t, err)
					for i := from; i < to; i++ {
						stored[w][i] = false
						for k := range c.nodes {
							list, err := c.nodes[k].Store.Want(ctx, &skep.WantRequest{Scope: skep.Scope{Namespace: 1}, Keys: keys[i : i+1]})
							assert.NoError(t, err)
							assert.NotEqual(t, skep.Exists, list[0].Outcome,
								"seed %d: block %d of chain %d is back on node %d", seed, i, w, k)
						}
					}
					continue
				}
				q := c.request(keys, from, to)
				q.Ancestors = keys[:max(0, from-1)]
				out, err := c.Put(ctx, q)
				assert.NoError(t, err)
				for i, x := range out {
					stored[w][from+i] = x.Outcome != skep.Declined
				}
				if rnd.IntN(3) == 0 { // a node loses what it got
					for k := range c.nodes {
						if c.has(k, keys, from) {
							_, err := c.nodes[k].Store.Delete(ctx, skep.Scope{Namespace: 1}, keys[from:from+1])
							assert.NoError(t, err)
							break
						}
					}
				}
			}
		})
	}
	wait.Wait()
	stop()
	repairs.Wait()
	c.repair()
	for w := range clients {
		keys := chainOf(w, long)
		for k := range c.nodes {
			has := c.keysOf(k)
			for i := range keys {
				want := stored[w][i] && c.has(k, keys, i)
				if !want || !slices.Contains(stored[w][i-i%4:i], false) { // else nobody can tell which group it is of
					require.Equal(t, want, has[keys[i]], "seed %d: block %d of chain %d on node %d", seed, i, w, k)
				}
			}
		}
	}
}
