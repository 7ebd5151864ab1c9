package replication

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// Lookups of a chain of 2,000 keys, all there, of servers on Unix sockets.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprintf("%d nodes", n), func(b *testing.B) {
			f := overWire(b, 16, memstores(n, storetest.Config{}))
			b.Cleanup(func() { require.NoError(b, f.Close()) })
			keys := chainOf(1, 2000)
			look(b, f, keys)
		})
	}
	b.Run("one server and no cluster", func(b *testing.B) {
		f := overWire(b, 16, memstores(1, storetest.Config{}))
		b.Cleanup(func() { require.NoError(b, f.Close()) })
		look(b, f.now.Load().nodes[0].st, chainOf(1, 2000))
	})
	b.Run("one store in this process", func(b *testing.B) {
		st := memstore.New(memstore.Options{})
		look(b, st, chainOf(1, 2000))
	})
}

func look(b *testing.B, st skep.Store, keys []skep.Key) {
	ns, err := skep.OpenNamespace(b.Context(), st, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
	require.NoError(b, err)
	blocks := make([][]byte, len(keys))
	for i := range blocks {
		blocks[i] = []byte("v")
	}
	_, err = ns.Put(b.Context(), keys, 0, blocks...)
	require.NoError(b, err)
	for b.Loop() {
		r, err := st.Lookup(b.Context(), &skep.LookupRequest{Scope: ns.Scope(), Keys: keys, Lease: skep.NoLease})
		require.NoError(b, err)
		require.Equal(b, len(keys), r.Blocks)
	}
}
