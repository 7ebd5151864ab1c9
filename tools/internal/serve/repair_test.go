package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/keeper"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/member"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

// A node whose drives were replaced has its copies again, sent by the others, and then it is enough by itself. Asked,
// a node repairs at once and says how it stands.
func TestNodesSendEachOtherWhatIsMissing(t *testing.T) {
	t.Parallel()
	r := newRingOf(t, 2, 2, func(c *Config) {
		c.RESP, c.HTTP = None, "127.0.0.1:0"
		c.Peers.RepairEvery = Duration(time.Second)
	})
	open := func() *replication.Store {
		st, err := replication.Connect(wire.Options{Addr: "unix:" + r.configs[0].Unix})
		require.NoError(t, err)
		t.Cleanup(func() { st.Close() })
		return st
	}
	st := open()
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: "default", Name: "n", Chained: true,
		Class: skep.Durable, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
	require.NoError(t, err)
	const n = 100
	var keys []skep.Key
	q := &skep.PutRequest{Scope: ns.Scope()}
	for i := range n {
		var parent *skep.Key
		if i > 0 {
			parent = &keys[i-1]
		}
		keys = append(keys, skep.ChainKey(parent, []uint32{uint32(i)}))
		value := storetest.Payload(keys[i], skep.PartKV, 10_000+i)
		q.Blocks = append(q.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: value}}})
	}
	storetest.Eventually(t, "both nodes take it", func() bool { // it exists where a repair was quicker with the second copy
		res, err := st.Put(t.Context(), q)
		require.NoError(t, err)
		return !slices.ContainsFunc(res, func(x skep.PutResult) bool { return x.Outcome == skep.Declined })
	})
	require.NoError(t, r.nodes[1].stop())
	r.configs[1].Dir = local(t).Dir // with other drives
	r.nodes[1] = start(t, r.configs[1], Options{Again: r.again[1]})
	one, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + r.configs[1].Unix})
	require.NoError(t, err)
	defer one.Close()
	require.Eventually(t, func() bool {
		st, err := one.Stats(t.Context())
		return err == nil && st.Blocks == n
	}, time.Minute, 10*time.Millisecond)

	zero, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + r.configs[0].Unix})
	require.NoError(t, err)
	defer zero.Close()
	ask := func(begin bool) (s member.Repairs) {
		in, err := json.Marshal(member.AskRepair{Begin: begin})
		require.NoError(t, err)
		out, err := zero.Admin(t.Context(), "cluster repair", in)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(out, &s))
		return s
	}
	next := ask(true).Next
	var s *member.Repair
	require.Eventually(t, func() bool {
		now, err := askRepair(t.Context(), zero)
		s = now.Last
		return err == nil && s != nil && s.Number >= next
	}, time.Minute, 10*time.Millisecond)
	require.EqualValues(t, n, s.Blocks)
	require.Zero(t, s.Declined+s.Away+s.Strays)
	_, text := get(t, http.DefaultClient, "http://"+r.nodes[0].at("http")+"/metrics", "")
	_, text, _ = strings.Cut(text, "\nskep_repair_copies_total ")
	text, _, _ = strings.Cut(text, "\n")
	sent, err := strconv.Atoi(text)
	require.NoError(t, err)
	require.GreaterOrEqual(t, sent, n, "and what a repair sent that was quicker than the put")
	_, err = zero.Admin(t.Context(), "cluster repair", json.RawMessage(`{"begun": 1}`))
	require.ErrorIs(t, err, skep.Invalid)

	steer := func(job, action string) (list []struct{ Name, State, Detail string }) {
		in, err := json.Marshal(map[string]string{"job": job, "action": action})
		require.NoError(t, err)
		out, err := zero.Admin(t.Context(), "steer", in)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(out, &list))
		return list
	}
	steer("repair", "start")
	require.Eventually(t, func() bool {
		out, err := zero.Admin(t.Context(), "jobs", nil)
		return err == nil && bytes.Contains(out, []byte(fmt.Sprintf("%d blocks looked at; 0 copies", n)))
	}, time.Minute, 10*time.Millisecond)

	require.NoError(t, r.nodes[0].stop())
	r.configs[0].Unix = r.configs[1].Unix
	st = open()
	got, err := st.OpenNamespace(t.Context(), ns.NamespaceSpec)
	require.NoError(t, err)
	seen := 0
	all := skep.Chain{Scope: skep.Scope{Namespace: got.ID}, Keys: keys}
	err = skep.Load(t.Context(), st, &skep.RestoreRequest{Chains: []skep.Chain{all}}, func(c *skep.Chunk) error {
		seen++
		require.NoError(t, c.Err)
		require.Equal(t, q.Blocks[c.Block].Parts[0].Bytes, c.AppendTo(nil))
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, n, seen)
}

// Copies go at peers.repair_idle_rate while clients use neither node, and at peers.repair_rate while they use the one
// that sends, or the one that is sent to.
func TestClientsSlowRepairsDown(t *testing.T) {
	t.Parallel()
	r := newRingOf(t, 2, 2, func(c *Config) {
		c.RESP, c.Peers.RepairEvery = None, Duration(time.Hour)
	})
	nodes := []*wire.Client{r.operator(0, ""), r.operator(1, "")}
	var at []*skep.Namespace
	for _, c := range nodes {
		ns, err := skep.OpenNamespace(t.Context(), c, skep.NamespaceSpec{Tenant: "default", Name: "n", Chained: true,
			Class: skep.Durable, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
		require.NoError(t, err)
		at = append(at, ns)
	}
	keys := uint32(0)
	// sent is the rate at which the first node has sent the second one a block that only that one has not.
	sent := func() int64 {
		keys++
		key := skep.ChainKey(nil, []uint32{keys})
		_, err := at[0].Put(t.Context(), []skep.Key{key}, 0, []byte("v"))
		require.NoError(t, err)
		out, err := nodes[0].Admin(t.Context(), "cluster repair", json.RawMessage(`{"begin": true}`))
		require.NoError(t, err)
		var s member.Repairs
		require.NoError(t, json.Unmarshal(out, &s))
		next := s.Next
		storetest.Eventually(t, "it is sent", func() bool {
			s, err = askRepair(t.Context(), nodes[0])
			return err == nil && s.Last != nil && s.Last.Number >= next
		})
		return s.Last.Rate
	}
	uses := func(node int) {
		for range 20 {
			_, err := nodes[node].Lookup(t.Context(), &skep.LookupRequest{Scope: at[node].Scope(),
				Keys: []skep.Key{skep.KeyOf([]byte("none"))}, Lease: skep.NoLease})
			require.NoError(t, err)
		}
	}
	c := r.configs[0].Peers
	for _, busy := range []int{0, 1} {
		storetest.Eventually(t, "clients use neither", func() bool {
			for _, n := range nodes {
				if st, err := n.Stats(t.Context()); err != nil || !st.Idle {
					return false
				}
			}
			return sent() == int64(c.RepairIdleRate)
		})
		storetest.Eventually(t, fmt.Sprintf("clients use node %d", busy), func() bool {
			uses(busy)
			return sent() == int64(c.RepairRate)
		})
	}
}

// A node that was away, and is back with what it had, is filled by the others although their next look is an hour
// away. The nodes need no more rights for it than are documented, of cache blocks neither.
func TestANodeThatCameBackIsFilled(t *testing.T) {
	t.Parallel()
	const mine, nodes, all = "token-of-tenant-mine", "token-of-the-nodes-00", "token-of-an-operator"
	token := write(t, "token", nodes)
	r := newRingOf(t, 2, 2, func(c *Config) {
		c.RESP, c.Peers.TokenFile, c.Peers.RepairEvery = None, token, Duration(time.Hour)
		c.Credentials = []CredentialConfig{credential(t, "mine", mine, "read", "write"),
			credential(t, auth.AnyTenant, nodes, "read", "write"), credential(t, auth.AnyTenant, all, "read", "admin")}
	})
	st, err := replication.Connect(wire.Options{Addr: "unix:" + r.configs[0].Unix, Token: mine})
	require.NoError(t, err)
	defer st.Close()
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: "mine", Name: "n", Chained: true,
		Class: skep.Cache, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
	require.NoError(t, err)
	zero := r.operator(0, all)
	require.Eventually(t, func() bool {
		s, err := askRepair(t.Context(), zero)
		return err == nil && s.Runs > 0
	}, time.Minute, 10*time.Millisecond, "after its start a node repairs")
	require.NoError(t, r.nodes[1].stop())
	key := skep.KeyOf([]byte("k"))
	res, err := ns.Put(t.Context(), []skep.Key{key}, 0, []byte("v"))
	require.NoError(t, err)
	require.Equal(t, skep.Committed, res[0].Outcome)
	r.nodes[1] = start(t, r.configs[1], Options{Again: r.again[1]})
	one := r.operator(1, all)
	require.Eventually(t, func() bool {
		st, err := one.Stats(t.Context())
		return err == nil && st.Blocks == 1
	}, time.Minute, 10*time.Millisecond)
}

// Whoever deletes a namespace that a repair has given to another node is told where it is left, and by which right of
// the nodes' token it would not be. The next deletion finds it there.
func TestADeletionThatTheNodesTokenMayNotPassOn(t *testing.T) {
	t.Parallel()
	const mine, nodes = "token-of-tenant-mine", "token-of-the-nodes-00"
	token := write(t, "token", nodes)
	r := newRingOf(t, 2, 2, func(c *Config) {
		c.RESP, c.Peers.TokenFile, c.Peers.RepairEvery = None, token, Duration(time.Second)
		c.Credentials = []CredentialConfig{credential(t, "mine", mine, "read", "write", "admin"),
			credential(t, auth.AnyTenant, nodes, "read", "write")}
	})
	zero, one := r.operator(0, mine), r.operator(1, mine)
	ns, err := skep.OpenNamespace(t.Context(), zero, skep.NamespaceSpec{Tenant: "mine", Name: "n", Chained: true,
		Class: skep.Durable, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
	require.NoError(t, err)
	_, err = ns.Put(t.Context(), []skep.Key{skep.KeyOf([]byte("k"))}, 0, []byte("v"))
	require.NoError(t, err)
	var there []skep.NamespaceInfo
	require.Eventually(t, func() bool {
		there, err = one.NamespacesOf(t.Context(), "mine")
		if err != nil || len(there) == 0 {
			return false
		}
		n, err := one.CountBlocks(t.Context(), there[0].ID)
		return err == nil && n == 1
	}, time.Minute, 10*time.Millisecond, "a repair gave it to the other node")
	err = zero.DeleteNamespace(t.Context(), ns.ID)
	require.ErrorIs(t, err, skep.Denied)
	require.ErrorContains(t, err, "peers.token_file")
	require.ErrorContains(t, err, "the right admin of tenant '*' at node b")
	// It was deleted at the first node, which the second one's next repair may have given it back by now.
	require.Eventually(t, func() bool {
		left := 0
		for _, c := range []*wire.Client{one, zero} {
			list, err := c.NamespacesOf(t.Context(), "mine")
			for _, n := range list {
				err = c.DeleteNamespace(t.Context(), n.ID)
			}
			if err != nil {
				left++
			}
			if list, err = c.NamespacesOf(t.Context(), "mine"); err != nil || len(list) > 0 {
				left++
			}
		}
		return left == 0
	}, time.Minute, 10*time.Millisecond, "the next deletion finds it where it is")
}

// operator is a client of one node.
func (r *ring) operator(i int, token string) *wire.Client {
	c, err := wire.Dial(r.Context(), wire.Options{Addr: "unix:" + r.configs[i].Unix, Token: token})
	require.NoError(r, err)
	r.Cleanup(func() { c.Close() })
	return c
}

// askRepair is how a node's repair stands.
func askRepair(ctx context.Context, c *wire.Client) (s member.Repairs, err error) {
	out, err := c.Admin(ctx, "cluster repair", json.RawMessage(`{}`))
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	return s, err
}

// ofTwo is the repairer of one of two nodes whose Stores are in memory, with a block that the other one has not.
// Nobody has begun a repair. stop is called when the other node is asked what it wants.
func ofTwo(t *testing.T, stop func()) *repairer {
	m := &clustermap.Map{Epoch: 1, Seed: clustermap.Seed{1}, Group: 16, Replicas: 2, Nodes: []clustermap.Node{
		{ID: 1, Name: "a", Addr: "a", Weight: 1}, {ID: 2, Name: "b", Addr: "b", Weight: 1}}}
	k := keeper.New(memstore.New(memstore.Options{}))
	b := asked{memstore.New(memstore.Options{}), stop}
	whole, err := replication.New(replication.Options{Map: m, Stores: []skep.Store{k, b}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, whole.Close()) })
	ns, err := skep.OpenNamespace(t.Context(), k, skep.NamespaceSpec{Tenant: "t", Name: "n", Chained: true,
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
	require.NoError(t, err)
	_, err = ns.Put(t.Context(), []skep.Key{skep.KeyOf([]byte("k"))}, 0, []byte("v"))
	require.NoError(t, err)
	return &repairer{whole: whole, others: &others{}, keeper: k, every: time.Hour, log: slog.New(slog.DiscardHandler),
		wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// asked is a Store that has something done when it is asked what it wants.
type asked struct {
	skep.Store
	then func()
}

func (a asked) Want(ctx context.Context, q *skep.WantRequest) ([]skep.Want, error) {
	a.then()
	return a.Store.Want(ctx, q)
}

// Who waits for the turn to repair can leave: a job that is stopped answers at once.
func TestWhoWaitsToRepairCanLeave(t *testing.T) {
	t.Parallel()
	r := ofTwo(t, func() {})
	r.turn <- struct{}{} // another one repairs
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.once(ctx), skep.Deadline)
	require.Zero(t, r.state().Runs)
}

// A repair that is stopped is none that was made: it says so, and what the one before it found still counts.
func TestAStoppedRepairIsNotTheLast(t *testing.T) {
	t.Parallel()
	stop := func() {}
	r := ofTwo(t, func() { stop() })
	stopped := func() {
		ctx, cancel := context.WithCancel(t.Context())
		stop = cancel
		require.ErrorIs(t, r.once(ctx), context.Canceled)
		stop = func() {}
		require.Contains(t, r.state().Error, "canceled")
		require.Zero(t, r.state().Copied)
	}
	stopped()
	require.Nil(t, r.state().Last)
	require.NoError(t, r.once(t.Context()))
	stopped()
	s := r.state()
	require.Empty(t, s.Last.Error)
	require.Equal(t, []int64{3, 2, 1}, []int64{s.Number, s.Last.Number, s.Last.Copied})
}

// How the repairs stand is told as it was before who asks for one has it begun: the number that he waits for is that
// of one which begins then, or before it.
func TestAnAskedRepairIsOneThatComes(t *testing.T) {
	t.Parallel()
	r := ofTwo(t, func() {})
	answer := make(chan json.RawMessage, 1)
	r.mu.Lock() // how they stand cannot be told yet
	go func() {
		out, err := (&server{repair: r}).adminRepair([]byte(`{"begin": true}`))
		assert.NoError(t, err)
		answer <- out
	}()
	for range 1000 {
		runtime.Gosched()
	}
	require.Empty(t, r.wake)
	r.mu.Unlock()
	var told member.Repairs
	require.NoError(t, json.Unmarshal(<-answer, &told))
	require.Len(t, r.wake, 1)
	require.NoError(t, r.once(t.Context()))
	require.EqualValues(t, []int64{1, 1}, []int64{told.Next, r.state().Last.Number})
}

// A node is sent what it has not when it is seen for the first time, was started, or was away for some looks: not each
// time that it is too busy to answer one.
func TestWhoIsSeenAnew(t *testing.T) {
	t.Parallel()
	first, second, none := time.Unix(1, 0), time.Unix(2, 0), time.Time{}
	s := sights{}
	for i, step := range []struct {
		opened time.Time
		again  bool
	}{{none, false}, {first, true}, {first, false},
		{none, false}, {first, false}, {none, false}, {none, false}, {first, false},
		{second, true}, {none, false}, {first, true},
		{none, false}, {none, false}, {none, false}, {first, true}, {first, false}} {
		require.Equal(t, step.again, s.see(map[uint64]time.Time{2: step.opened, 3: none}), "look %d", i)
	}
	require.False(t, s.see(nil))
	require.True(t, s.see(map[uint64]time.Time{2: first}), "it was taken out of the map, and is in it again")
}

// With credentials and no token for the other nodes, or at no rate, nothing is sent, and who asks is told.
func TestANodeThatSendsNoCopies(t *testing.T) {
	t.Parallel()
	r := newRingOf(t, 2, 2, func(c *Config) {
		c.RESP = None
		c.Peers.RepairRate = 0
	})
	c, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + r.configs[0].Unix})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Admin(t.Context(), "cluster repair", json.RawMessage(`{}`))
	require.ErrorIs(t, err, skep.Unsupported)
	require.ErrorContains(t, err, "peers.repair_rate")
	x := *r.configs[0]
	x.Peers.RepairRate, x.Peers.RepairEvery = 1, 1
	require.ErrorContains(t, x.problems()[0], "peers.repair_every")
	x.Peers.RepairEvery = Duration(time.Hour)
	require.Empty(t, x.problems())
	yes, _ := x.repairs()
	require.True(t, yes)
	x.Credentials = []CredentialConfig{{Name: "a", Tenant: "t", TokenEnv: "T"}}
	yes, why := x.repairs()
	require.False(t, yes)
	require.Contains(t, why, "peers.token_file")
}
