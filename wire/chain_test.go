package wire

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
)

// chainOf puts n blocks of 64 KiB and gives them as a chain.
func chainOf(t testing.TB, st skep.Store, tenant string, n int) skep.Chain {
	t.Helper()
	ctx := context.Background()
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: tenant, Name: t.Name(), Shape: skep.Shape{BlockTokens: 16, Bytes: blockSize}, Chained: true})
	require.NoError(t, err)
	c := skep.Chain{Scope: skep.Scope{Namespace: ns.ID}}
	var parent *skep.Key
	for i := range n {
		k := skep.ChainKey(parent, []uint32{uint32(i)})
		c.Keys = append(c.Keys, k)
		parent = &k
	}
	req := &skep.PutRequest{Scope: c.Scope}
	for _, k := range c.Keys {
		req.Blocks = append(req.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: storetest.Payload(k, skep.PartKV, blockSize)}}})
	}
	res, err := st.Put(ctx, req)
	require.NoError(t, err)
	for _, r := range res {
		require.Equal(t, skep.Committed, r.Outcome)
	}
	return c
}

const blockSize = 64 << 10

// collect reads a session to its end and gives the chunks, which stay lent.
func collect(t testing.TB, s skep.Session) (out []skep.Chunk) {
	t.Helper()
	each(t, s, func(x *skep.Chunk) { out = append(out, *x) })
	return out
}

// each reads a session to its end.
func each(t testing.TB, s skep.Session, f func(*skep.Chunk)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	into := make([]skep.Chunk, 16)
	for {
		n, err := s.Next(ctx, into)
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		for i := range into[:n] {
			f(&into[i])
		}
	}
}
