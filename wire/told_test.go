package wire

import (
	"context"
	"testing"
	"time"

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

// forgetful is a Store that cannot say whose namespaces are.
type forgetful struct{ skep.Store }

func (forgetful) FindNamespace(context.Context, skep.NamespaceID) (skep.NamespaceInfo, error) {
	return skep.NamespaceInfo{}, &skep.Error{Op: "find namespace", Kind: skep.Unavailable}
}

// An event that may be the tenant's is a gap where nobody can say whose it is: else its tenant would miss it, and not
// know.
func TestAnEventOfANamespaceThatCannotBeLookedUpIsAGap(t *testing.T) {
	t.Parallel()
	p := protect(t, directory(t))
	r := serve(t, "tcp", forgetful{p.st}, server.Options{Auth: directory(t)})
	o := r.options()
	o.Token = tokenA
	events, err := r.dial(t, o).Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	_, err = p.st.Delete(t.Context(), p.ch.Scope, p.ch.Keys[3:])
	require.NoError(t, err)
	within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var into [1]skep.Event
	_, err = events.Next(within, into[:])
	require.NoError(t, err)
	require.Equal(t, skep.EventGap, into[0].Kind)
	require.NoError(t, events.Close())
}
