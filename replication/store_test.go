package replication

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/pace"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/leaks"
)

// No node is late but where a test says so, however busy the machine is.
func TestMain(m *testing.M) {
	lookupKind.Floor, runKind.Floor = time.Hour, time.Hour
	leaks.Main(m)
}

// judged has late nodes noticed as they are by default.
func (s *Store) judged() {
	for _, n := range s.now.Load().nodes {
		n.lookups, n.runs = pace.NewPair(pace.Lookups), pace.NewLine(pace.Runs)
	}
}

// three is a map of n nodes in whose groups are g blocks.
func three(n, g int) *clustermap.Map {
	m := &clustermap.Map{Seed: clustermap.Seed{7}, Group: g}
	for i := range n {
		m.Nodes = append(m.Nodes, clustermap.Node{ID: uint64(i + 1), Name: string(rune('a' + i)), Addr: fmt.Sprint(i), Weight: 1})
	}
	return m
}

// lacks skips, by name, what a cluster cannot do yet: see the package's text.
func lacks(t *testing.T, c storetest.Config) {
	t.Helper()
	if c.ChainEvents {
		t.Skip("events of several nodes come in no order: TestCommitsAreToldOfEveryBlock looks at what they say")
	}
	if c.TenantLeaseBytes != 0 || c.TenantPinBytes != 0 {
		t.Skip("a cap on what a tenant has leased or pinned is each node's own: over all nodes nobody counts")
	}
}

func memstores(n int, c storetest.Config) (out []skep.Store) {
	for range n {
		out = append(out, memstore.New(memstore.Options{CapacityBytes: c.CapacityBytes / int64(n), TenantNamespaces: c.TenantNamespaces,
			TenantLeaseBytes: c.TenantLeaseBytes, TenantPinBytes: c.TenantPinBytes, PoisonReleased: true}))
	}
	return out
}

func open(g int) func(t *testing.T, c storetest.Config) skep.Store {
	return func(t *testing.T, c storetest.Config) skep.Store {
		lacks(t, c)
		s, err := New(Options{Map: three(3, g), Stores: memstores(3, c)})
		require.NoError(t, err)
		return s
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	for _, g := range []int{2, 16} {
		t.Run(fmt.Sprintf("groups of %d", g), func(t *testing.T) { storetest.Test(t, open(g)) })
	}
}

func TestRandom(t *testing.T) {
	t.Parallel()
	for _, g := range []int{2, 16} {
		t.Run(fmt.Sprintf("groups of %d", g), func(t *testing.T) {
			storetest.Random(t, open(g), storetest.RandomOptions{Ops: 1000})
		})
	}
}
