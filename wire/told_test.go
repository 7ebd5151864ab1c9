package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/server"
)

// The end of a snapshot is said over a connection: once it has been read to its end, and while nothing happens after it.
func TestTheEndOfASnapshotIsTold(t *testing.T) {
	t.Parallel()
	st := newMemstore(storetest.Config{})
	c := serve(t, "unix", st, server.Options{})
	client := c.dial(t, c.options())
	ns, err := client.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	for blocks := range 3 {
		events, err := client.Events(t.Context(), skep.Cursor{}, true)
		require.NoError(t, err)
		told, err := events.Told()
		require.NoError(t, err)
		for seen := range blocks {
			require.False(t, link.IsClosed(told), "%d of %d blocks", seen, blocks)
			var into [1]skep.Event
			_, err := events.Next(t.Context(), into[:])
			require.NoError(t, err)
			require.Equal(t, skep.EventStored, into[0].Kind)
		}
		storetest.Eventually(t, "the end of the snapshot is told", func() bool { return link.IsClosed(told) })
		require.NoError(t, events.Close())
		_, err = client.Put(t.Context(), &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}, Blocks: []skep.Block{
			{Key: skep.KeyOf([]byte{byte(blocks)}), Parts: []skep.Part{{Bytes: []byte("v")}}}}})
		require.NoError(t, err)
	}
	events, err := client.Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	told, err := events.Told()
	require.NoError(t, err)
	require.True(t, link.IsClosed(told), "where no snapshot was asked for")
	require.NoError(t, events.Close())
}
