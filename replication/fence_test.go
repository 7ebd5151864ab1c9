package replication

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/fence"
	"github.com/skepkv/skep/store/storetest"
)

// council is where the nodes of a test agree.
type council struct {
	mu     sync.Mutex
	m      *clustermap.Map
	lost   bool                        // most voters are
	mute   bool                        // what is agreed on is not answered
	behind error                       // the cluster was recovered without the node
	before func(c *clustermap.Command) // is shown what is proposed
}

func (c *council) Map() *clustermap.Map {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m
}

func (c *council) Propose(_ context.Context, x *clustermap.Command) (uint32, error) {
	if c.before != nil {
		c.before(x)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return 0, &skep.Error{Op: "propose", Kind: skep.Unavailable, Field: "leader"}
	}
	next, err := c.m.Apply(x)
	if err != nil {
		return c.m.Epoch, err
	}
	c.m = next
	if c.mute {
		return 0, &skep.Error{Op: "propose", Kind: skep.Unavailable, Field: "leader"}
	}
	return next.Epoch, nil
}

func (c *council) Renew(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost || c.mute {
		return &skep.Error{Op: "renew", Kind: skep.Unavailable, Field: "leader"}
	}
	return nil
}

func (c *council) LeftBehind() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.behind
}

// fenced is a crew whose nodes agree on the map.
type fenced struct {
	*crew
	council *council
	fences  []*fence.Fence
}

func fencedCrew(t *testing.T, m *clustermap.Map, class skep.Class) *fenced {
	t.Helper()
	x := &fenced{crew: crewOf(t, m, class, storetest.Config{}), council: &council{m: m}}
	for i := range m.Nodes {
		x.fences = append(x.fences, nil)
		x.start(i)
		require.NoError(t, x.fences[i].Return(t.Context(), x.council))
	}
	x.Store = x.client()
	for i := range m.Nodes {
		x.of[i] = x.client()
	}
	x.open("n", class, true)
	return x
}

// start starts a node's server.
func (x *fenced) start(i int) {
	n := x.council.Map().Nodes[i]
	x.fences[i] = fence.New(x.keepers[i], x.nodes[i], n.Name, n.ID)
}

// serving is a node's Store at its address: that of the server that runs.
type serving struct {
	skep.Store
	x *fenced
	i int
}

func (s serving) Unwrap() skep.Store { return s.x.fences[s.i] }
func (s serving) Close() error       { return nil }

func (s serving) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	return s.x.fences[s.i].Lookup(ctx, r)
}

func (s serving) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	return s.x.fences[s.i].LookupRuns(ctx, r)
}

func (s serving) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	return s.x.fences[s.i].Want(ctx, r)
}

func (s serving) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	return s.x.fences[s.i].Put(ctx, r)
}

func (s serving) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	return s.x.fences[s.i].Delete(ctx, sc, keys)
}

func (s serving) Purge(ctx context.Context, p skep.Purge) error { return s.x.fences[s.i].Purge(ctx, p) }

func (s serving) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	return s.x.fences[s.i].DeleteNamespace(ctx, id)
}

func (s serving) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	return s.x.fences[s.i].NamespacesOf(ctx, tenant)
}

func (s serving) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	return s.x.fences[s.i].FindNamespace(ctx, id)
}

// client is a Store of the cluster as the map is now.
func (x *fenced) client() *Store {
	m := x.council.Map().Public()
	var stores []skep.Store
	for i := range m.Nodes {
		stores = append(stores, serving{x.keepers[i], x, i})
	}
	s, err := New(Options{Map: m, Stores: stores})
	require.NoError(x, err)
	x.Cleanup(func() { assert.NoError(x, s.Close()) })
	return s
}

// follow has all Stores hear of the map.
func (x *fenced) follow() {
	x.Helper()
	for _, s := range append(x.of[:len(x.of):len(x.of)], x.Store) {
		require.NoError(x, s.Follow(x.Context(), x.council.Map().Public()))
	}
}

// kill has a node's process end, and an operator say so.
func (x *fenced) kill(i int) {
	x.Helper()
	x.nodes[i].down.Store(true)
	_, err := x.council.Propose(x.Context(), &clustermap.Command{Do: clustermap.SetState,
		Name: x.council.Map().Nodes[i].Name, State: clustermap.Down})
	require.NoError(x, err)
	x.follow()
}

// open makes a namespace, and has later calls of the crew be of that.
func (x *fenced) open(name string, class skep.Class, chained bool) {
	x.Helper()
	x.openOf("t", name, class, chained)
}

func (x *fenced) openOf(tenant, name string, class skep.Class, chained bool) {
	x.Helper()
	var err error
	x.ns, err = x.OpenNamespace(x.Context(), skep.NamespaceSpec{Tenant: tenant, Name: name, Shape: shape, Chained: chained,
		Class: class})
	require.NoError(x, err)
}

// What is deleted while a node is down stays so when the node is back, with its old drives, and others repair: whatever
// has it deleted, and how many copies there are. Until the node knows, it serves nothing.
func TestNothingThatWasDeletedComesBackWithANode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		class   skep.Class
		chained bool
		salt    skep.Salt
		remove  func(ctx context.Context, s *Store, sc skep.Scope, keys []skep.Key) error
	}{
		"keys of chains": {chained: true, remove: deleteKeys},
		"keys":           {remove: deleteKeys},
		"salted keys":    {chained: true, salt: "s", remove: deleteKeys},
		"a salt": {chained: true, salt: "s", remove: func(ctx context.Context, s *Store, sc skep.Scope, _ []skep.Key) error {
			return s.Purge(ctx, skep.Purge{Salt: &sc})
		}},
		"a purge": {class: skep.Durable, chained: true,
			remove: func(ctx context.Context, s *Store, sc skep.Scope, _ []skep.Key) error {
				return s.Purge(ctx, skep.Purge{Namespace: sc.Namespace})
			}},
		"a tenant": {class: skep.Durable, remove: func(ctx context.Context, s *Store, _ skep.Scope, _ []skep.Key) error {
			return s.Purge(ctx, skep.Purge{Tenant: "t"})
		}},
		"a namespace": {class: skep.Durable, chained: true,
			remove: func(ctx context.Context, s *Store, sc skep.Scope, _ []skep.Key) error {
				return s.DeleteNamespace(ctx, sc.Namespace)
			}},
	} {
		for _, copies := range []int{1, 2} {
			t.Run(fmt.Sprint(name, copies), func(t *testing.T) {
				t.Parallel()
				m := three(3, 4)
				m.Replicas = copies
				x := fencedCrew(t, m, skep.Cache)
				x.open("other", skep.Durable, true)
				other := chainOf(2, 40)
				x.put(other, 0, 40)
				elsewhere := x.ns
				x.open("deleted", c.class, c.chained)
				sc := skep.Scope{Namespace: x.ns.ID, Salt: c.salt}
				keys := chainOf(1, 40)
				q := x.request(keys, 0, 40)
				q.Salt = c.salt
				_, err := x.Put(t.Context(), q)
				require.NoError(t, err)
				before := len(x.keysOf(1))
				require.Positive(t, before)

				x.kill(1)
				x.start(0) // who remembers is started anew
				require.NoError(t, x.fences[0].Return(t.Context(), x.council))
				require.NoError(t, c.remove(t.Context(), x.Store, sc, keys))
				x.follow()

				x.start(1)
				x.nodes[1].down.Store(false)
				_, err = x.fences[1].Lookup(t.Context(), &skep.LookupRequest{Scope: skep.Scope{Namespace: 1}, Keys: keys})
				require.ErrorIs(t, err, skep.Behind)
				ctx, stop := context.WithCancel(t.Context())
				repaired := make(chan error)
				go func() {
					var err error
					for ctx.Err() == nil && err == nil {
						_, err = x.of[0].Repair(ctx, RepairOptions{Keeper: x.keepers[0]})
					}
					if ctx.Err() != nil {
						err = nil
					}
					repaired <- err
				}()
				require.NoError(t, x.fences[1].Return(t.Context(), x.council))
				x.follow()
				stop()
				require.NoError(t, <-repaired)
				x.repair()
				for _, s := range []*Store{x.Store, x.client()} {
					n, err := s.Namespaces(t.Context())
					require.NoError(t, err)
					for _, info := range n {
						if info.Name != "deleted" {
							continue
						}
						for i := range keys {
							r, err := s.Lookup(t.Context(), &skep.LookupRequest{
								Scope: skep.Scope{Namespace: info.ID, Salt: c.salt}, Keys: keys[i : i+1]})
							require.NoError(t, err)
							require.Zero(t, r.Blocks, "key %d is back", i)
						}
					}
				}
				if name != "a tenant" {
					x.ns = elsewhere
					require.Equal(t, 40, x.find(other, skep.NoLease).Blocks, "another namespace is as it was")
				}
			})
		}
	}
}

func deleteKeys(ctx context.Context, s *Store, sc skep.Scope, keys []skep.Key) error {
	_, err := s.Delete(ctx, sc, keys)
	return err
}

// What is not remembered is refused, by the name of the node that is down, and nothing is deleted: keys of a durable
// namespace, all of a model, and anything while most voters are lost.
func TestWhatIsNotRememberedIsNotDeleted(t *testing.T) {
	t.Parallel()
	m := twice(3, 4)
	x := fencedCrew(t, m, skep.Durable)
	keys := chainOf(1, 40)
	x.put(keys, 0, 40)
	x.kill(1)
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, skep.Unavailable)
		require.ErrorContains(t, err, "node")
		require.Equal(t, 40, x.find(keys, skep.NoLease).Blocks)
	}
	refused(deleteKeys(t.Context(), x.Store, x.scope(), keys))
	refused(x.Purge(t.Context(), skep.Purge{Model: "m"}))
	refused(x.Purge(t.Context(), skep.Purge{Salt: &skep.Scope{Namespace: x.ns.ID, Salt: "s"}}))
	x.council.lost = true
	refused(x.Purge(t.Context(), skep.Purge{Namespace: x.ns.ID}))
	refused(x.Purge(t.Context(), skep.Purge{Tenant: "t"}))
	refused(x.DeleteNamespace(t.Context(), x.ns.ID))
	x.start(1)
	x.nodes[1].down.Store(false)
	require.ErrorIs(t, x.fences[1].Return(t.Context(), x.council), skep.Unavailable)
	require.False(t, x.fences[1].Open(), "it does not know what it missed")
	x.council.lost = false
	require.NoError(t, x.fences[1].Return(t.Context(), x.council))
	x.follow()
	require.NoError(t, deleteKeys(t.Context(), x.Store, x.scope(), keys), "it is up again")
	for i := range x.nodes {
		require.Empty(t, x.keysOf(i))
	}
}

// A node that is down is remembered 32 namespaces. One that has missed more, of as many tenants, loses all that may be
// lost; durable namespaces beyond are not purged before it is up.
func TestWhoMissesMoreThanIsRememberedStartsEmpty(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Cache)
	x.put(chainOf(0, 40), 0, 40)
	for i := range clustermap.MaxMissed + 1 {
		x.openOf(fmt.Sprint("t", i), "m", skep.Cache, true)
		x.put(chainOf(i+1, 8), 0, 8)
	}
	last := x.ns
	x.open("durable", skep.Durable, true)
	durable := chainOf(99, 40)
	x.put(durable, 0, 40)
	x.kill(1)
	list, err := x.Namespaces(t.Context())
	require.NoError(t, err)
	for _, info := range list {
		if info.Name != "n" && info.Name != "durable" && info.ID != last.ID {
			require.NoError(t, deleteKeys(t.Context(), x.Store, skep.Scope{Namespace: info.ID}, chainOf(1, 1)))
		}
	}
	missed := x.council.Map().Nodes[1].Missed
	require.Len(t, missed.Spaces, clustermap.MaxMissed)
	require.False(t, missed.Spared)
	require.ErrorIs(t, x.Purge(t.Context(), skep.Purge{Namespace: x.ns.ID}), skep.Unavailable)
	require.Equal(t, 40, x.findLive(durable))
	require.NoError(t, deleteKeys(t.Context(), x.Store, skep.Scope{Namespace: last.ID}, chainOf(1, 1)))
	require.True(t, x.council.Map().Nodes[1].Missed.Spared)
	epoch := x.council.Map().Epoch
	require.NoError(t, deleteKeys(t.Context(), x.Store, skep.Scope{Namespace: last.ID}, chainOf(1, 1)))
	require.Equal(t, epoch, x.council.Map().Epoch, "it is agreed on once")

	x.start(1)
	x.nodes[1].down.Store(false)
	require.NoError(t, x.fences[1].Return(t.Context(), x.council))
	require.Nil(t, x.council.Map().Nodes[1].Missed)
	has, _ := x.nodes[1].Namespaces(t.Context())
	require.Len(t, has, 1)
	require.Equal(t, "durable", has[0].Name)
}

// findLive counts which of a chain's blocks some node has.
func (x *fenced) findLive(keys []skep.Key) (n int) {
	all := map[skep.Key]bool{}
	for i := range x.nodes {
		down := x.nodes[i].down.Swap(false)
		for k := range x.keysOf(i) {
			all[k] = true
		}
		x.nodes[i].down.Store(down)
	}
	for _, k := range keys {
		if all[k] {
			n++
		}
	}
	return n
}

// What is deleted between a node's having lost what it missed and its return it loses, too.
func TestADeletionWhileANodeReturns(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Cache)
	keys := chainOf(1, 80)
	x.put(keys, 0, 80)
	require.NotEmpty(t, x.keysOf(1))
	x.kill(1)
	x.start(1)
	x.nodes[1].down.Store(false)
	tries := 0
	x.council.before = func(c *clustermap.Command) {
		if c.Do != clustermap.Return {
			return
		}
		if tries++; tries == 2 { // it has lost what it had missed, and says so
			assert.NoError(t, deleteKeys(t.Context(), x.Store, x.scope(), keys))
		}
	}
	require.NoError(t, x.fences[1].Return(t.Context(), x.council))
	require.Equal(t, 3, tries)
	require.Empty(t, x.keysOf(1))
}

// Where all others are lost, one that was down goes on alone, and has lost what it missed before it serves.
func TestWhoWasDownGoesOnAlone(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Cache)
	keys := chainOf(1, 80)
	x.put(keys, 0, 80)
	x.kill(1)
	require.NoError(t, deleteKeys(t.Context(), x.Store, x.scope(), keys))
	require.NotEmpty(t, x.keysOf(1))
	m := x.council.Map()
	next, err := m.Apply(&clustermap.Command{Do: clustermap.Recover, Name: m.Nodes[1].Name,
		Names: []string{m.Nodes[0].Name, m.Nodes[2].Name}, Cluster: "6c0f3a5e9b1d4827a3c5e7f90b2d4861"})
	require.NoError(t, err)
	x.start(1)
	x.nodes[1].down.Store(false)
	x.council.m = next
	x.fences[1].Heard(next)
	require.False(t, x.fences[1].Open())
	require.NoError(t, x.fences[1].Return(t.Context(), x.council))
	require.True(t, x.fences[1].Open())
	require.Empty(t, x.keysOf(1))
}

// A deletion that a node's return overtakes is made again by the newer map: the node was passed by, and did not lose
// what nobody had told it yet.
func TestADeletionThatANodesReturnOvertakes(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Cache)
	keys := chainOf(1, 80)
	x.put(keys, 0, 80)
	x.kill(1)
	x.start(1)
	x.nodes[1].down.Store(false)
	var once sync.Once
	x.council.before = func(c *clustermap.Command) {
		if c.Do == clustermap.Miss {
			once.Do(func() { assert.NoError(t, x.fences[1].Return(t.Context(), x.council)) })
		}
	}
	require.ErrorIs(t, deleteKeys(t.Context(), x.Store, x.scope(), keys), skep.StaleMap)
	require.NotEmpty(t, x.keysOf(1), "it lost nothing")
	x.follow()
	require.NoError(t, deleteKeys(t.Context(), x.Store, x.scope(), keys))
	require.Zero(t, x.findLive(keys))
}

// Keys that are deleted of a namespace of class cache cost a node that was down no durable namespace of that name,
// which only it has.
func TestKeysOfACacheCostNoDurableNamespace(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Cache)
	own, err := x.nodes[1].OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "m", Shape: shape,
		Chained: true, Class: skep.Durable})
	require.NoError(t, err)
	keys := chainOf(1, 4)
	q := x.request(keys, 0, 4)
	q.Namespace = own.ID
	_, err = x.nodes[1].Put(t.Context(), q)
	require.NoError(t, err)
	x.kill(1)
	x.open("m", skep.Cache, true)
	require.NoError(t, deleteKeys(t.Context(), x.Store, x.scope(), keys))
	x.start(1)
	x.nodes[1].down.Store(false)
	require.NoError(t, x.fences[1].Return(t.Context(), x.council))
	require.Len(t, x.keysOf(1), 4)
}

// A partial tail that a put replaces at another node costs a node that is down nothing.
func TestATailThatIsReplacedIsNotMissed(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Cache)
	x.kill(1)
	elsewhere := 0
	for c := range 12 {
		keys, tail := chainOf(c, 5), skep.KeyOf(fmt.Appendf(nil, "tail %d", c))
		x.put(keys, 0, 4)
		q := x.request(append(keys[:4:4], tail), 4, 5)
		q.Blocks[0].ValidTokens = 2
		_, err := x.Put(t.Context(), q)
		require.NoError(t, err)
		q = x.request(keys, 4, 5)
		q.Blocks[0].Replaces = &tail
		_, err = x.Put(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, 5, x.find(keys, skep.NoLease).Blocks)
		if x.keysOf(0)[tail] || x.keysOf(2)[tail] {
			elsewhere++
		}
	}
	require.Positive(t, elsewhere, "its node has it until it is evicted")
	require.Empty(t, x.council.Map().Nodes[1].Missed.Spaces)
}

// A node that runs, and is said to be down, serves no more until it has returned.
func TestANodeThatHearsThatItIsDown(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Cache)
	require.False(t, x.fences[1].Heard(x.council.Map()))
	x.kill(1)
	x.nodes[1].down.Store(false)
	require.True(t, x.fences[1].Heard(x.council.Map()))
	_, err := x.fences[1].Put(t.Context(), x.request(chainOf(1, 1), 0, 1))
	require.ErrorIs(t, err, skep.Behind)
	require.NoError(t, x.fences[1].Return(t.Context(), x.council))
	require.False(t, x.fences[1].Heard(x.council.Map()))
	require.True(t, x.fences[1].Open())
}

// bucketed is a node's own Store with object storage behind it.
type bucketed struct {
	skep.Store
	relearned int
	lost      []skep.NamespaceID
}

func (b *bucketed) Relearn() { b.relearned++ }

func (b *bucketed) LoseNamespace(ctx context.Context, id skep.NamespaceID) error {
	b.lost = append(b.lost, id)
	return b.Store.DeleteNamespace(ctx, id)
}

func (b *bucketed) DeleteNamespace(context.Context, skep.NamespaceID) error {
	return &skep.Error{Op: "delete namespace", Kind: skep.Unavailable, Field: "bucket"}
}

// A node that was down comes back while the object storage behind it is away: what it missed it loses from its drives.
func TestANodeComesBackWithoutItsBucket(t *testing.T) {
	t.Parallel()
	x := fencedCrew(t, three(3, 4), skep.Cache)
	keys := chainOf(0, 40)
	x.put(keys, 0, 40)
	x.kill(1)
	require.NoError(t, deleteKeys(t.Context(), x.Store, skep.Scope{Namespace: x.ns.ID}, keys))
	n, own := x.council.Map().Nodes[1], &bucketed{Store: x.nodes[1]}
	x.fences[1] = fence.New(x.keepers[1], own, n.Name, n.ID)
	x.nodes[1].down.Store(false)
	require.NoError(t, x.fences[1].Return(t.Context(), x.council))
	require.Positive(t, own.relearned)
	require.Len(t, own.lost, 1)
	left, err := x.nodes[1].Namespaces(t.Context())
	require.NoError(t, err)
	require.Empty(t, left)
}
