package sealed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/leaks"
	"github.com/skepkv/skep/wire/epoch"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// council is what the nodes agree on. Nodes that are cut off know the map of when they were.
type council struct {
	mu     sync.Mutex
	agreed *clustermap.Map
	stale  map[string]*clustermap.Map
	mute   bool // nothing is agreed on
}

func newCouncil(t *testing.T, names ...string) *council {
	m := &clustermap.Map{Epoch: 1, Seed: clustermap.Seed{1}, Group: 4}
	for i, n := range names {
		m.Nodes = append(m.Nodes, clustermap.Node{ID: uint64(i + 1), Name: n, Addr: "unix:/" + n,
			Peer: fmt.Sprintf("127.0.0.1:%d", 7441+i), Weight: 1})
	}
	m, err := (*clustermap.Map)(nil).Apply(&clustermap.Command{Do: clustermap.Found, Map: m})
	require.NoError(t, err)
	return &council{agreed: m, stale: map[string]*clustermap.Map{}}
}

func (c *council) cut(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stale[name] = c.agreed
}

func (c *council) heal(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.stale, name)
}

// seat is a node's place in it.
type seat struct {
	*council
	name string
}

func (s seat) Map() *clustermap.Map {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.stale[s.name]; m != nil {
		return m
	}
	return s.agreed
}

func (s seat) Propose(_ context.Context, c *clustermap.Command) (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mute || s.stale[s.name] != nil {
		return 0, &skep.Error{Op: "propose", Kind: skep.Unavailable}
	}
	m, err := s.agreed.Apply(c)
	if err == nil {
		s.agreed = m
	}
	return s.agreed.Epoch, err
}

func (s seat) Unheard(context.Context, uint32) *clustermap.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.agreed.Nodes {
		n := &s.agreed.Nodes[i]
		if n.State != clustermap.Down && s.stale[n.Name] != nil {
			return n
		}
	}
	return nil
}

// node is a node of the council, with keys for these tenants.
func (c *council) node(t *testing.T, name string, keys ...string) (*Gate, *bytes.Buffer) {
	var log bytes.Buffer
	g := New(memstore.New(memstore.Options{}), keys, slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { _ = g.Close() })
	g.Join(seat{c, name}, nil)
	return g, &log
}

var spec = skep.NamespaceSpec{Tenant: "prod", Name: "n", Chained: true,
	Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}}

// put puts a block of a tenant, and gives why it is not taken.
func put(t *testing.T, g *Gate, tenant, key string) error {
	t.Helper()
	s := spec
	s.Tenant = tenant
	ns, err := skep.OpenNamespace(t.Context(), g, s)
	require.NoError(t, err)
	_, err = ns.Put(t.Context(), []skep.Key{skep.KeyOf([]byte(key))}, 0, []byte(key))
	return err
}

// A node that is cut off, and knows of nothing, takes blocks in the clear: so a node with a key takes none before that
// one has heard, or is said to be down. Nodes that have heard decline meanwhile.
func TestNobodyEncryptsBeforeAllHaveHeard(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{true, false} {
		c := newCouncil(t, "a", "b", "c")
		a, log := c.node(t, "a", "prod")
		b, _ := c.node(t, "b")
		away, _ := c.node(t, "c")
		c.cut("c")
		require.ErrorIs(t, put(t, a, "prod", "1"), skep.Unavailable, "nothing is agreed on")
		for range 2 * saidAfter {
			require.False(t, a.look(t.Context()))
		}
		require.Equal(t, 1, strings.Count(log.String(), "node c is"), "it is said once: %s", log)
		require.NoError(t, put(t, away, "prod", "2"), "it cannot know")
		require.ErrorIs(t, put(t, a, "prod", "2"), skep.Unavailable)
		require.False(t, a.Settled())
		require.ErrorIs(t, put(t, b, "prod", "2"), skep.Denied)
		if back {
			c.heal("c")
			require.ErrorIs(t, put(t, away, "prod", "3"), skep.Denied)
		} else {
			down := &clustermap.Command{Do: clustermap.SetState, Name: "c", State: clustermap.Down}
			_, err := seat{c, "a"}.Propose(t.Context(), down)
			require.NoError(t, err)
		}
		require.True(t, a.look(t.Context()))
		require.True(t, a.Settled())
		require.NoError(t, put(t, a, "prod", "3"))
		require.ErrorIs(t, put(t, b, "prod", "3"), skep.Denied)

		c.cut("b")
		again, _ := c.node(t, "a", "prod")
		require.NoError(t, put(t, again, "prod", "4"), "a start later asks nobody once more")
	}
}

// A tenant's own key is for that tenant alone; the one of all others for each that has none. Where nobody has a key
// nothing is looked at but the map.
func TestWhoseTheKeyIs(t *testing.T) {
	t.Parallel()
	c := newCouncil(t, "a", "b", "c")
	c3 := &counting{Store: memstore.New(memstore.Options{})}
	plain := New(c3, nil, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = plain.Close() })
	plain.Join(seat{c, "c"}, nil)
	require.NoError(t, put(t, plain, "prod", "1"))
	require.Zero(t, c3.found, "no namespace is looked up")

	a, _ := c.node(t, "a", "prod")
	require.True(t, a.look(t.Context()))
	require.NoError(t, put(t, plain, "other", "1"))
	require.NoError(t, put(t, a, "other", "1"))
	require.ErrorIs(t, put(t, plain, "prod", "2"), skep.Denied)
	require.Equal(t, []string{"prod"}, plain.LacksKeys())

	b, _ := c.node(t, "b", clustermap.EveryTenant)
	require.True(t, b.look(t.Context()))
	require.NoError(t, put(t, b, "other", "2"))
	require.NoError(t, put(t, b, "prod", "2"))
	require.Empty(t, b.LacksKeys())
	require.ErrorIs(t, put(t, plain, "other", "2"), skep.Denied)
	require.ErrorIs(t, put(t, a, "other", "2"), skep.Denied)
	require.NoError(t, put(t, a, "prod", "2"))
	require.Equal(t, []string{clustermap.EveryTenant}, a.LacksKeys())
	require.False(t, a.Takes("other"))
	require.True(t, a.Takes("prod"))
}

// counting counts how often a namespace is looked up.
type counting struct {
	skep.Store
	found int
}

func (c *counting) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	c.found++
	return c.Store.FindNamespace(ctx, id)
}

// Nothing is written in any way. Who counts copies by a map is told of blocks that are declined, who names none of the
// tenant and what to do. What is there stays, and is read.
func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	c := newCouncil(t, "a", "b")
	a, _ := c.node(t, "a", "prod")
	b, log := c.node(t, "b")
	require.NoError(t, put(t, b, "prod", "before"))
	require.True(t, a.look(t.Context()))
	for range 2 {
		require.True(t, b.look(t.Context()))
	}
	require.Equal(t, 1, strings.Count(log.String(), "tenant=prod"), "it is said once: %s", log)
	ns, err := skep.OpenNamespace(t.Context(), b, spec)
	require.NoError(t, err)
	there, key := skep.KeyOf([]byte("before")), skep.KeyOf([]byte("k"))
	r := &skep.PutRequest{Scope: ns.Scope(), Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: []byte("k")}}}}}
	_, err = b.Put(t.Context(), r)
	require.ErrorIs(t, err, skep.Denied)
	require.ErrorContains(t, err, "tenant prod")
	require.ErrorContains(t, err, "encryption_key_file")
	results, err := b.Put(epoch.With(t.Context(), 3), r)
	require.NoError(t, err)
	require.Equal(t, []skep.PutResult{{Outcome: skep.Declined, Reason: skep.Denied}}, results)
	r.Ack = 9
	_, err = b.Put(epoch.With(t.Context(), 3), r)
	require.ErrorIs(t, err, skep.Invalid)
	_, err = b.Begin(t.Context(), &skep.BeginRequest{Scope: ns.Scope(), Key: key,
		Manifest: skep.Manifest{{Name: skep.PartKV, Size: 1}}})
	require.ErrorIs(t, err, skep.Denied)
	piece := []skep.SidecarPiece{{Kind: skep.SidecarHeader, Bytes: []byte("x")}}
	require.ErrorIs(t, b.PutSidecar(t.Context(), ns.Scope(), there, piece), skep.Denied)
	want, err := ns.Want(t.Context(), []skep.Key{there, key}, 2)
	require.NoError(t, err)
	require.Equal(t, []skep.Want{{Outcome: skep.Exists}, {Outcome: skep.Declined, Reason: skep.Denied}}, want)
	found, err := ns.Lookup(t.Context(), []skep.Key{there})
	require.NoError(t, err)
	require.Equal(t, 1, found.Blocks)
	_, err = b.Put(t.Context(), &skep.PutRequest{Scope: skep.Scope{Namespace: 99}})
	require.ErrorIs(t, err, skep.NotFound)
}

// A block that was begun in the clear is not committed where its tenant is encrypted by then.
func TestABlockBegunInTheClear(t *testing.T) {
	t.Parallel()
	c := newCouncil(t, "a", "b")
	a, _ := c.node(t, "a")
	b, _ := c.node(t, "b")
	begin := func(g *Gate, key string) skep.BlockWriter {
		ns, err := skep.OpenNamespace(t.Context(), g, spec)
		require.NoError(t, err)
		w, err := g.Begin(t.Context(), &skep.BeginRequest{Scope: ns.Scope(), Key: skep.KeyOf([]byte(key)),
			Manifest: skep.Manifest{{Name: skep.PartKV, Size: 1}}})
		require.NoError(t, err)
		require.NoError(t, w.Write(t.Context(), skep.PartKV, 0, []byte("x")))
		return w
	}
	early := begin(b, "1")
	r, err := begin(b, "2").Commit(t.Context(), skep.AckCommitted)
	require.NoError(t, err)
	require.Equal(t, skep.Committed, r.Outcome)
	late := begin(a, "3")
	require.NoError(t, a.Replace([]string{"prod"}, func() error { return nil }))
	require.True(t, a.look(t.Context()))
	for _, w := range []skep.BlockWriter{early, late} {
		r, err := w.Commit(t.Context(), skep.AckCommitted)
		require.NoError(t, err)
		require.Equal(t, skep.PutResult{Outcome: skep.Declined, Reason: skep.Denied}, r)
	}
	r, err = begin(a, "4").Commit(t.Context(), skep.AckCommitted)
	require.NoError(t, err)
	require.Equal(t, skep.Committed, r.Outcome)
}

// While keys are replaced nothing is taken of a tenant that is to have its first one. Where they are not replaced all
// is as it was.
func TestKeysAreReplaced(t *testing.T) {
	t.Parallel()
	c := newCouncil(t, "a")
	a, _ := c.node(t, "a")
	require.NoError(t, a.Replace([]string{"prod"}, func() error {
		require.ErrorIs(t, put(t, a, "prod", "1"), skep.Unavailable)
		require.NoError(t, put(t, a, "other", "1"))
		return nil
	}))
	require.ErrorIs(t, put(t, a, "prod", "1"), skep.Unavailable, "it is not agreed on")
	require.True(t, a.look(t.Context()))
	require.NoError(t, put(t, a, "prod", "1"))
	bad := errors.New("no")
	require.ErrorIs(t, a.Replace([]string{"other", "prod"}, func() error { return bad }), bad)
	require.Equal(t, []string{"prod"}, a.Keys())
	require.NoError(t, put(t, a, "other", "2"))
	require.NoError(t, a.Replace([]string{"prod"}, func() error { return put(t, a, "prod", "2") }), "it has one")
}

// A node agrees by itself, with what it began with and with what it is given later, and has it agreed on once more
// where an operator has ended it too soon.
func TestANodeSeesToIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCouncil(t, "a")
		c.mute = true
		a, _ := c.node(t, "a", "prod")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.Agree(ctx)
		}()
		synctest.Wait()
		require.False(t, a.Settled())
		c.mu.Lock()
		c.mute = false
		c.mu.Unlock()
		storetest.Eventually(t, "it is agreed on", a.Settled)
		require.NoError(t, a.Replace([]string{"prod", "other"}, func() error { return nil }))
		storetest.Eventually(t, "the other is agreed on", a.Settled)
		me := seat{c, "a"}
		for _, end := range me.Map().Unseal("prod") {
			_, err := me.Propose(t.Context(), &end)
			require.NoError(t, err)
		}
		require.False(t, a.Settled())
		storetest.Eventually(t, "it is agreed on again", a.Settled)
		cancel()
		<-done
	})
}

// A node that has not heard from the others since its start goes by the map that it knew last, and by none it takes
// nothing.
func TestANodeGoesByWhatItKnew(t *testing.T) {
	t.Parallel()
	c := newCouncil(t, "a", "b")
	a, _ := c.node(t, "a", "prod")
	require.True(t, a.look(t.Context()))
	b := New(memstore.New(memstore.Options{}), nil, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = b.Close() })
	require.ErrorIs(t, put(t, b, "other", "1"), skep.Unavailable)
	nothing := &council{stale: map[string]*clustermap.Map{}}
	b.Join(seat{nothing, "b"}, c.agreed)
	require.ErrorIs(t, put(t, b, "prod", "1"), skep.Denied)
	require.NoError(t, put(t, b, "other", "1"))
	older := newCouncil(t, "a", "b") // it hears the log again from its beginning
	b.Join(seat{older, "b"}, c.agreed)
	require.ErrorIs(t, put(t, b, "prod", "1"), skep.Denied)
}

// What is agreed on begins before it is so, ends where it is ended, and is no client's to see. Nodes of the version
// before read it: there is nothing in it but namespaces.
func TestTheMapSaysWhatIsEncrypted(t *testing.T) {
	t.Parallel()
	m := newCouncil(t, "a").agreed
	apply := func(c *clustermap.Command) {
		t.Helper()
		require.Contains(t, []clustermap.Verb{clustermap.OpenNamespace, clustermap.DeleteNamespace}, c.Do)
		b, err := c.Encode()
		require.NoError(t, err)
		c, err = clustermap.DecodeCommand(b)
		require.NoError(t, err)
		m, err = m.Apply(c)
		require.NoError(t, err)
		b, err = m.Encode()
		require.NoError(t, err)
		m, err = clustermap.Decode(b)
		require.NoError(t, err)
	}
	require.Empty(t, m.Sealings())
	for _, to := range []clustermap.Sealing{clustermap.Begins, clustermap.Sealed} {
		apply(clustermap.Seal("prod", to))
		require.Equal(t, map[string]clustermap.Sealing{"prod": to}, m.Sealings())
		was := m.Epoch
		apply(clustermap.Seal("prod", to))
		require.Equal(t, was, m.Epoch, "another node has said so")
	}
	require.Len(t, m.Namespaces, 2)
	require.Empty(t, m.Public().Sealings())
	require.Empty(t, m.Unseal("other"))
	for i, c := range m.Unseal("prod") {
		apply(&c)
		require.Equal(t, i == 0, slices.Contains([]clustermap.Sealing{clustermap.Begins}, m.Sealings()["prod"]))
	}
	require.Empty(t, m.Sealings())
}

// Where nothing is encrypted, or all is agreed on, it is the Store that it wraps.
func TestTheContract(t *testing.T) {
	t.Parallel()
	for _, keys := range [][]string{nil, {clustermap.EveryTenant}} {
		storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store {
			st := memstore.New(memstore.Options{CapacityBytes: c.CapacityBytes, TenantNamespaces: c.TenantNamespaces,
				TenantLeaseBytes: c.TenantLeaseBytes, TenantPinBytes: c.TenantPinBytes, PoisonReleased: true})
			g := New(st, keys, slog.New(slog.DiscardHandler))
			g.Join(seat{newCouncil(t, "a"), "a"}, nil)
			require.True(t, g.look(t.Context()))
			return g
		})
	}
}
