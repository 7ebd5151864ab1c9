package memstore_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// onErr calls f the first time that it is asked for its error.
type onErr struct {
	context.Context
	asked atomic.Bool
	f     func()
}

func (c *onErr) Err() error {
	if c.asked.CompareAndSwap(false, true) {
		c.f()
	}
	return c.Context.Err()
}

// Blocks are copied without the store's lock.
func TestAPutIntoANamespaceThatIsDeletedMeanwhileStoresNothing(t *testing.T) {
	t.Parallel()
	s := memstore.New(memstore.Options{})
	defer s.Close()
	bg := context.Background()
	for range 20 {
		ns, err := s.OpenNamespace(bg, skep.NamespaceSpec{Tenant: "t", Name: "n",
			Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
		require.NoError(t, err)
		gone := make(chan error, 1)
		ctx := &onErr{Context: bg, f: func() { go func() { gone <- s.DeleteNamespace(bg, ns.ID) }() }}
		_, _ = s.Put(ctx, &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID},
			Blocks: []skep.Block{{Key: skep.KeyOf([]byte("k")), Parts: []skep.Part{{Bytes: make([]byte, 32<<20)}}}}})
		require.NoError(t, <-gone)
		st, err := s.Stats(bg)
		require.NoError(t, err)
		require.Zero(t, st.Blocks, "blocks of namespaces, of which there is none")
	}
}
