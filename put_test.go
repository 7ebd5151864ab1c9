package skep_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

func TestStoredSaysWhatWasDeclined(t *testing.T) {
	t.Parallel()
	require.NoError(t, skep.Stored(nil))
	have := []skep.PutResult{{Outcome: skep.Committed}, {Outcome: skep.Accepted}, {Outcome: skep.Exists, Differs: true}}
	require.NoError(t, skep.Stored(have))
	err := skep.Stored(append(have, skep.PutResult{Reason: skep.Full}, skep.PutResult{Reason: skep.Unavailable}))
	require.ErrorIs(t, err, skep.Full)
	require.EqualError(t, err, "skep: put: full: 2 of 5 blocks declined, the first is block 3 of the put")
}

// What a namespace's Put did not store is an error of it, and the results say what became of the others.
func TestNamespacePutFailsForADeclinedBlock(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{CapacityBytes: 100, DeclineWhenFull: true})
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: "t", Name: "n",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	res, err := ns.Put(t.Context(), []skep.Key{{1}, {2}}, 0, make([]byte, 60), make([]byte, 60))
	require.ErrorIs(t, err, skep.Full)
	require.Equal(t, []skep.PutResult{{Outcome: skep.Committed}, {Reason: skep.Full}}, res)
}
