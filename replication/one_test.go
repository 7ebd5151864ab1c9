package replication

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// With one node calls go to it as they are: namespaces and leases have its numbers, and a chain is one chain.
func TestAClusterOfOneIsItsNode(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	_, err := st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "another", Name: "n", Shape: shape})
	require.NoError(t, err)
	s, err := New(Options{Map: three(1, 4), Stores: []skep.Store{st}})
	require.NoError(t, err)
	ns, err := skep.OpenNamespace(t.Context(), s, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
	require.NoError(t, err)
	info, err := st.FindNamespace(t.Context(), ns.Scope().Namespace)
	require.NoError(t, err)
	require.Equal(t, "t", info.Tenant)
	keys := chainOf(1, 9)
	_, err = ns.Put(t.Context(), keys, 0, make([][]byte, 9)...)
	require.NoError(t, err)
	found, err := st.Lookup(t.Context(), &skep.LookupRequest{Scope: ns.Scope(), Keys: keys})
	require.NoError(t, err)
	require.Equal(t, 9, found.Blocks, "not a chain a group")
	_, err = s.Renew(t.Context(), found.Lease.ID, time.Minute)
	require.NoError(t, err)
	n, err := s.CountBlocks(t.Context(), ns.Scope().Namespace)
	require.NoError(t, err)
	require.EqualValues(t, 9, n)
	require.NoError(t, s.Close())
}
