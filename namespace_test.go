package skep_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// The common calls of a Store need no name of the namespace, nor of the salt, when they are made by its handle.
func TestANamespaceNamesItself(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	common, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: "t", Name: "n", Chained: true,
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	ns, ctx, keys := common.Salted("secret"), t.Context(), []skep.Key{{1}, {2}}
	_, err = ns.Put(ctx, keys, 0, []byte("one"))
	require.NoError(t, err)

	wanted, err := ns.Want(ctx, keys, 6)
	require.NoError(t, err)
	require.Equal(t, []skep.Want{{Outcome: skep.Exists}, {Wanted: true}}, wanted)
	wanted, err = common.Want(ctx, keys, 6)
	require.NoError(t, err)
	require.True(t, wanted[0].Wanted, "without the salt it is not there")
	n, err := ns.Hint(ctx, keys, skep.Hint{NextUse: time.Minute})
	require.NoError(t, err)
	require.Equal(t, 1, n)

	found, err := ns.Lookup(ctx, keys)
	require.NoError(t, err)
	renewed, err := ns.Renew(ctx, found.Lease.ID, skep.MaxLease)
	require.NoError(t, err)
	require.True(t, renewed.Until.After(found.Lease.Until))
	require.NoError(t, ns.Release(ctx, found.Lease.ID))
	_, err = ns.Renew(ctx, found.Lease.ID, time.Minute)
	require.ErrorIs(t, err, skep.LeaseExpired)
}
