//go:build linux

package apart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/hostile"
)

// A tenant takes all it can get through three nodes at once, of namespaces, leases, pins, open blocks, sessions,
// streams and connections. Another one's calls go on, a node gives no tenant more than its quotas, and all is given
// back when the tenant has gone and its namespaces are deleted. make greedy runs it for long.
func TestGreedyOnACluster(t *testing.T) {
	t.Parallel()
	f := newFoe(t, "SKEP_GREEDY_TIME")
	f.creds = credential("hostile", hostile.HostileTenant, hostile.TokenHostile, "read, write, admin", "")
	f.sizes = strings.Replace(small, "block_bytes", "leased_bytes: 1MiB, tenant_namespaces: 8, block_bytes", 1)
	f.grow(3, "never")
	f.begin(f.r.Uint64())
	f.pause()
	var before []map[string]float64
	most := map[string]float64{}
	for _, n := range f.nodes {
		held, err := n.holds(t.Context())
		require.NoError(t, err)
		before = append(before, held)
	}
	f.resume()
	for end := time.Now().Add(f.long); ; {
		g := &grabber{foe: f}
		g.takeAll(t)
		f.newcomer()
		for _, n := range f.nodes {
			st, err := n.stats(t.Context())
			require.NoError(t, err)
			require.LessOrEqual(t, n.spacesOf(t, hostile.TokenHostile), 8, "namespaces of a tenant at node %s", n.name)
			require.LessOrEqual(t, st.LeasedBytes, int64(2<<20), "bytes that two tenants have under lease at node %s", n.name)
			for _, x := range st.Tenants {
				if x.Name == hostile.HostileTenant {
					t.Logf("node %s: %+v", n.name, x)
				}
			}
			held, err := n.holds(t.Context())
			require.NoError(t, err)
			require.NoError(t, withinCaps(held, most), "memory of node %s", n.name)
			require.LessOrEqual(t, held["process_open_fds"], 900., "descriptors of node %s", n.name)
			require.LessOrEqual(t, held["process_resident_memory_bytes"], before[0]["process_resident_memory_bytes"]+500<<20)
		}
		g.end()
		f.givenBack(before)
		f.well()
		if !time.Now().Before(end) {
			break
		}
	}
	t.Logf("most: %v", most)
	f.tellAll(toldCheck)
	f.pause()
	failed, calls := f.failed()
	if f.long >= time.Minute {
		require.LessOrEqual(t, failed*50, calls, "honest calls that failed")
	}
}

// spacesOf is how many namespaces a tenant has at a node.
func (n *node) spacesOf(t *testing.T, token string) int {
	st, err := wire.Dial(t.Context(), wire.Options{Addr: n.addr(), Token: token, Conns: 1, Log: quiet})
	if skep.KindOf(err) == skep.Overloaded {
		return 0 // it has all connections that it may have
	}
	require.NoError(t, err)
	defer st.Close()
	list, err := st.Namespaces(t.Context())
	if skep.KindOf(err) == skep.Overloaded {
		return 0
	}
	require.NoError(t, err)
	return len(list)
}

// newcomer is an honest client that connects while all is taken.
func (f *foe) newcomer() {
	f.t.Helper()
	for _, n := range f.nodes {
		c, err := (&job{Name: "late" + n.name, Addr: n.addr(), Token: f.secret("engine"), Seed: f.r.Uint64()}).open()
		require.NoError(f.t, err)
		f.within("a newcomer at "+n.name+" puts and reads", func(ctx context.Context) error {
			scope, err := c.scope(ctx, spaces[0])
			if err == nil {
				err = c.put(ctx, scope, c.book[0])
			}
			if err == nil && c.counts["blocks put"] == 0 {
				err = fmt.Errorf("nothing was put: %s", c.said())
			}
			return err
		})
		f.is(c.check())
		require.NoError(f.t, c.clear())
		require.NoError(f.t, c.st.Close())
	}
	f.well()
}

// givenBack waits until every node has as much as before, and nothing of the tenant.
func (f *foe) givenBack(before []map[string]float64) {
	f.t.Helper()
	f.pause()
	defer f.resume()
	for i, n := range f.nodes {
		f.within("all is given back to "+n.name, func(ctx context.Context) error {
			held, err := n.holds(ctx)
			if err != nil {
				return err
			}
			for _, x := range counted {
				if held[x.name] > before[i][x.name]+x.slack {
					return fmt.Errorf("%s is %v, and was %v", x.name, held[x.name], before[i][x.name])
				}
			}
			st, err := n.stats(ctx)
			if err != nil {
				return err
			}
			for _, x := range st.Tenants {
				if x.Name == hostile.HostileTenant && x.Bytes != 0 {
					return fmt.Errorf("the tenant has %+v", x)
				}
			}
			if st.Leases != 0 {
				return fmt.Errorf("%d leases", st.Leases)
			}
			return nil
		})
	}
}

// grabber is one turn of the greedy tenant.
type grabber struct {
	*foe
	mu   sync.Mutex
	undo []func()
}

func (g *grabber) keep(undo func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.undo = append(g.undo, undo)
}

// grabbed are blocks of each client: more bytes, on every node, than a tenant may have under lease there.
const grabbed = 800

// takeAll takes of every kind through every node, until it is refused a few times in a row or has taken long enough.
func (g *grabber) takeAll(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	begin := make(chan struct{}) // closed when each client has a namespace: there may be no room for one afterwards
	long := max(500*time.Millisecond, min(g.long/20, 10*time.Second))
	for _, n := range g.nodes {
		st, err := replication.Connect(wire.Options{Addr: n.addr(), Token: hostile.TokenHostile, Log: quiet})
		require.NoError(t, err)
		g.keep(func() { _ = st.Close() })
		spec := skep.NamespaceSpec{Tenant: hostile.HostileTenant, Name: "of " + n.name, Chained: true,
			Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}}
		var ns skep.NamespaceInfo
		g.within("a namespace", func(ctx context.Context) (err error) {
			ns, err = st.OpenNamespace(ctx, spec)
			return err
		})
		sc := skep.Scope{Namespace: ns.ID}
		keys := make([]skep.Key, grabbed)
		q := &skep.PutRequest{Scope: sc}
		for i := range keys {
			var parent *skep.Key
			if i > 0 {
				parent = &keys[i-1]
			}
			keys[i] = skep.ChainKey(parent, []uint32{uint32(i)})
			q.Blocks = append(q.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: bytes.Repeat([]byte{1}, 5<<10)}}})
		}
		_, err = st.Put(t.Context(), q)
		require.NoError(t, err)
		// The cluster's Store stops where one node refuses: past it, one that does not refuse shows.
		alone, err := wire.Dial(t.Context(), wire.Options{Addr: n.addr(), Token: hostile.TokenHostile, Conns: 1, Log: quiet})
		require.NoError(t, err)
		g.keep(func() { _ = alone.Close() })
		own, err := alone.OpenNamespace(t.Context(), spec)
		require.NoError(t, err)
		for name, take := range map[string]func(ctx context.Context, i int) error{
			"namespaces": func(ctx context.Context, i int) error {
				spec := spec
				spec.Name = fmt.Sprint(n.name, i)
				_, err := st.OpenNamespace(ctx, spec)
				return err
			},
			"namespaces of the node alone": func(ctx context.Context, i int) error {
				spec := spec
				spec.Name = fmt.Sprint("alone", n.name, i)
				_, err := alone.OpenNamespace(ctx, spec)
				return err
			},
			"leases of the node alone": func(ctx context.Context, i int) error {
				group := keys[i*clustermap.DefaultGroup%len(keys):][:clustermap.DefaultGroup]
				r, err := alone.Lookup(ctx, &skep.LookupRequest{Scope: skep.Scope{Namespace: own.ID}, Keys: group, Lease: skep.MaxLease})
				if err == nil && r.LeaseDenied {
					err = errors.New("lease denied")
				}
				return err
			},
			"leases": func(ctx context.Context, i int) error { // of the whole chain first, which is too much
				some := keys[:1+i*7%len(keys)]
				if i == 0 {
					some = keys
				}
				r, err := st.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: some, Lease: skep.MaxLease})
				if i == 0 && err == nil && r.Blocks == len(keys) && !r.LeaseDenied {
					g.is(fmt.Errorf("node %s gave a lease beyond the quota", n.name))
				}
				if err == nil && r.LeaseDenied {
					err = errors.New("lease denied")
				}
				return err
			},
			"pins": func(ctx context.Context, i int) error {
				_, err := st.Hint(ctx, sc, keys[i%len(keys):][:1], skep.Hint{Pin: skep.MaxPin})
				return err
			},
			"open blocks": func(ctx context.Context, i int) error {
				key := skep.KeyOf(fmt.Append(nil, n.name, i))
				w, err := st.Begin(ctx, &skep.BeginRequest{Scope: sc, Key: key, Timeout: time.Hour,
					Manifest: skep.Manifest{{Name: skep.PartKV, Size: 64 << 10}}})
				if err == nil {
					g.keep(func() { _ = w.Abort(context.Background()) })
				}
				return err
			},
			"streams": func(ctx context.Context, i int) error {
				e, err := st.Events(ctx, skep.Cursor{}, i%2 == 0)
				if err == nil {
					g.keep(func() { _ = e.Close() })
				}
				return err
			},
			"sessions": func(ctx context.Context, i int) error {
				chain := skep.Chain{Scope: sc, Keys: keys[:64]}
				s, err := st.Restore(ctx, &skep.RestoreRequest{Window: 64 << 10, Chains: []skep.Chain{chain}})
				if err == nil {
					g.keep(func() { _ = s.Close(context.Background()) })
				}
				return err
			},
			"connections": func(ctx context.Context, i int) error {
				c, err := wire.Dial(ctx, wire.Options{Addr: n.addr(), Token: hostile.TokenHostile, Conns: 1,
					Patience: time.Millisecond, Log: quiet})
				if err == nil {
					g.keep(func() { _ = c.Close() })
				}
				return err
			},
		} {
			wg.Go(func() {
				<-begin
				taken, refused := 0, 0
				var last error
				for end := time.Now().Add(long); refused < 5 && time.Now().Before(end); {
					ctx, cancel := context.WithTimeout(t.Context(), long)
					if err := take(ctx, taken+refused); err != nil {
						refused, last = refused+1, err
					} else {
						taken++
					}
					cancel()
				}
				t.Logf("%s through %s: %d taken, then %v", name, n.name, taken, last)
			})
		}
		g.keep(func() {
			g.within("the tenant's namespaces are deleted", func(ctx context.Context) error {
				list, err := st.NamespacesOf(ctx, hostile.HostileTenant)
				for _, x := range list {
					if e := st.DeleteNamespace(ctx, x.ID); e != nil && skep.KindOf(e) != skep.NotFound {
						err = errors.Join(err, e)
					}
				}
				return err
			})
		})
	}
	close(begin)
	wg.Wait()
}

// end lets go of all, the last first; the tenant's namespaces are deleted while it has leases on what is in them.
func (g *grabber) end() {
	for i := len(g.undo) - 1; i >= 0; i-- {
		g.undo[i]()
	}
}
