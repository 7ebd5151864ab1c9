package serve

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/drawn"
	"github.com/skepkv/skep/wire"
)

// chainer is a client with books of its own: of each block of its chains, whether it was acknowledged and not deleted
// since, and whether it may be there.
type chainer struct {
	t     *testing.T
	r     *rand.Rand
	st    *replication.Store
	scope skep.Scope
	keys  [][]skep.Key
	acked [][]bool
	maybe [][]bool
	did   map[string]int
}

const stormChain = 48

func newChainer(t *testing.T, r *rand.Rand, addr string, class skep.Class, number int) *chainer {
	st, err := replication.Connect(wire.Options{Addr: addr})
	require.NoError(t, err)
	t.Cleanup(func() { st.Close() })
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: "default", Name: fmt.Sprint("storm", number), Chained: true,
		Class: class, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
	require.NoError(t, err)
	c := &chainer{t: t, r: r, st: st, scope: ns.Scope(), did: map[string]int{}}
	for n := range 4 {
		var keys []skep.Key
		for i := range stormChain {
			var parent *skep.Key
			if i > 0 {
				parent = &keys[i-1]
			}
			keys = append(keys, skep.ChainKey(parent, []uint32{uint32(number), uint32(n), uint32(i)}))
		}
		c.keys = append(c.keys, keys)
		c.acked, c.maybe = append(c.acked, make([]bool, stormChain)), append(c.maybe, make([]bool, stormChain))
	}
	return c
}

func stormValue(k skep.Key) []byte { return storetest.Payload(k, skep.PartKV, 100+int(k[0])*50) }

// step does one call. quiet says that no node is away.
func (c *chainer) step(quiet bool) {
	n := c.r.IntN(len(c.keys))
	keys, acked, maybe := c.keys[n], c.acked[n], c.maybe[n]
	ctx := c.t.Context()
	switch op := c.r.IntN(10); {
	case op < 4:
		from := c.r.IntN(stormChain)
		if sure := slices.Index(acked, false); sure >= 0 && from > sure {
			from = sure // a chain is put in order
		}
		to := min(stormChain, from+1+c.r.IntN(12))
		q := &skep.PutRequest{Scope: c.scope, Depth: from}
		if from > 0 {
			q.Parent, q.Ancestors = &keys[from-1], keys[:from-1]
		}
		for i := from; i < to; i++ {
			q.Blocks = append(q.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: stormValue(keys[i])}}})
			maybe[i] = true
		}
		res, err := c.st.Put(ctx, q)
		if err != nil {
			c.did["put refused"]++
			assert.False(c.t, quiet, "%v", err)
			return
		}
		for i, x := range res {
			if x.Outcome == skep.Committed || x.Outcome == skep.Exists {
				acked[from+i] = true
				c.did["put"]++
			} else {
				c.did["put declined"]++
			}
		}
	case op < 5:
		// Up to the end of the group: of what has lost its beginning nobody knows where else it should be, and it has
		// one copy until a repair that comes after its beginning.
		at := c.r.IntN(stormChain)
		to := at - at%16 + 16
		for i := at; i < to; i++ {
			acked[i] = false
		}
		if _, err := c.st.Delete(ctx, c.scope, keys[at:to]); err != nil {
			c.did["delete refused"]++
			assert.False(c.t, quiet, "%v", err)
			return
		}
		c.did["delete"]++
		for i := at; i < to; i++ {
			maybe[i] = false
		}
	default:
		sure := slices.Index(acked, false)
		if sure < 0 {
			sure = stormChain
		}
		found, err := c.st.Lookup(ctx, &skep.LookupRequest{Scope: c.scope, Keys: keys})
		if !assert.NoError(c.t, err) {
			return
		}
		assert.GreaterOrEqual(c.t, found.Blocks, sure, "what was acknowledged is found")
		for i := range found.Blocks {
			assert.True(c.t, maybe[i], "block %d was deleted and is found", i)
		}
		err = skep.Load(ctx, c.st, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: keys[:found.Blocks],
			Lease: found.Lease.ID}}}, func(ch *skep.Chunk) error {
			if ch.Err != nil {
				assert.GreaterOrEqual(c.t, ch.Block, sure, "what was acknowledged is read: %v", ch.Err)
				c.did["missed"]++
				return nil
			}
			c.did["read"]++
			assert.True(c.t, bytes.Equal(stormValue(keys[ch.Block]), ch.AppendTo(nil)), "wrong bytes")
			return nil
		})
		assert.NoError(c.t, err)
		assert.NoError(c.t, c.st.Release(ctx, found.Lease.ID))
	}
}

// Nodes stop and start one after the other, now and then with empty drives, while clients with books of their own
// put, read and delete, and the nodes repair. What was acknowledged is found and read at any time, though each node
// is lost in turn; nothing that was deleted comes back.
func TestRepairStorm(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(drawn.Seed(t), 11))
	r := newRingOf(t, 3, 2, func(c *Config) {
		c.RESP, c.HTTP = None, None
		c.Peers.RepairEvery = Duration(time.Second)
	})
	var clients []*chainer
	for i := range 3 {
		clients = append(clients, newChainer(t, rand.New(rand.NewPCG(rnd.Uint64(), 1)), "unix:"+r.configs[i].Unix, skep.Durable, i))
	}
	all := func(steps int, quiet bool) {
		var wait sync.WaitGroup
		for _, c := range clients {
			wait.Go(func() {
				for range steps {
					c.step(quiet)
				}
			})
		}
		wait.Wait()
	}
	rounds := 6
	if testing.Short() {
		rounds = 3
	}
	for round := range rounds {
		all(30, true)
		down := (round + rnd.IntN(2)) % 3
		require.NoError(t, r.nodes[down].stop())
		all(30, false)
		if rnd.IntN(2) == 0 || round == 0 {
			require.NoError(t, os.RemoveAll(r.configs[down].Dir))
		}
		r.nodes[down] = start(t, r.configs[down], Options{Again: r.again[down]})
		all(30, false) // while it is filled
		r.repaired(t)
	}
	all(50, true)
	sum := map[string]int{}
	for _, c := range clients {
		for what, n := range c.did {
			sum[what] += n
		}
	}
	t.Log(sum)
	for _, what := range []string{"put", "put declined", "read", "delete", "delete refused"} {
		require.Positive(t, sum[what], what)
	}
}

// repaired waits until every node has sent what it should, and has begun to do so after this was called.
func (r *ring) repaired(t *testing.T) {
	t.Helper()
	for i := range r.nodes {
		c, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + r.configs[i].Unix})
		require.NoError(t, err)
		defer c.Close()
		first := int64(-1)
		storetest.Eventually(t, "every node has repaired", func() bool {
			s, err := askRepair(t.Context(), c)
			if err != nil {
				return false
			}
			if first < 0 {
				first = s.Runs
			}
			return s.Runs >= first+2 && s.Error == "" && s.Declined+s.Away == 0
		})
	}
}
