package replication

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// compared calls f with Stores of servers on Unix sockets that say what a cluster costs, and one without a server.
func compared(b *testing.B, f func(b *testing.B, st skep.Store)) {
	over := func(n int) func(b *testing.B) {
		return func(b *testing.B) {
			far := overWire(b, 16, memstores(n, storetest.Config{}))
			b.Cleanup(func() { require.NoError(b, far.Close()) })
			f(b, far)
		}
	}
	b.Run("one server and no cluster", func(b *testing.B) {
		far := overWire(b, 16, memstores(1, storetest.Config{}))
		b.Cleanup(func() { require.NoError(b, far.Close()) })
		f(b, far.now.Load().nodes[0].st)
	})
	b.Run("a cluster of one", over(1))
	b.Run("a cluster of three", over(3))
	b.Run("one store in this process", func(b *testing.B) { f(b, memstore.New(memstore.Options{})) })
}

func stored(b *testing.B, st skep.Store, n, bytes int) (*skep.Namespace, []skep.Key) {
	ns, err := skep.OpenNamespace(b.Context(), st, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
	require.NoError(b, err)
	keys, blocks := chainOf(1, n), make([][]byte, n)
	for i := range blocks {
		blocks[i] = make([]byte, bytes)
	}
	_, err = ns.Put(b.Context(), keys, 0, blocks...)
	require.NoError(b, err)
	return ns, keys
}

// Lookups of a chain of 2,000 keys, all there.
func BenchmarkLookup(b *testing.B) {
	compared(b, func(b *testing.B, st skep.Store) {
		ns, keys := stored(b, st, 2000, 1)
		for b.Loop() {
			r, err := st.Lookup(b.Context(), &skep.LookupRequest{Scope: ns.Scope(), Keys: keys, Lease: skep.NoLease})
			require.NoError(b, err)
			require.Equal(b, len(keys), r.Blocks)
		}
	})
}

// Restores of 32 MiB, 512 blocks of 64 KiB, under a lease, into memory of the caller's.
func BenchmarkRestore(b *testing.B) {
	const n, bytes = 512, 64 << 10
	compared(b, func(b *testing.B, st skep.Store) {
		ns, keys := stored(b, st, n, bytes)
		r, err := st.Lookup(b.Context(), &skep.LookupRequest{Scope: ns.Scope(), Keys: keys, Lease: 10 * time.Minute})
		require.NoError(b, err)
		require.Equal(b, n, r.Blocks)
		mem := make([]byte, n*bytes)
		b.SetBytes(n * bytes)
		for b.Loop() {
			chain := skep.Chain{Scope: ns.Scope(), Keys: keys, Lease: r.Lease.ID, Dest: skep.Destination{Memory: mem, Stride: bytes}}
			err := skep.Load(b.Context(), st, &skep.RestoreRequest{Chains: []skep.Chain{chain}}, func(c *skep.Chunk) error { return c.Err })
			require.NoError(b, err)
		}
	})
}
