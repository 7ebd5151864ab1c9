//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/server"
)

// Who comes to the socket is the tenant of the token, whatever its name, with its rights and no others.
func TestServeSpeaksForTheTokensTenant(t *testing.T) {
	t.Parallel()
	const token = "a-token-of-some-length"
	d, err := auth.New([]auth.Credential{{Name: "engine", Tenant: "prod", Rights: auth.Read | auth.Write, TokenSHA256: sha256.Sum256([]byte(token))}}, nil, nil)
	require.NoError(t, err)
	st := memstore.New(memstore.Options{})
	srv, err := server.New(st, server.Options{Auth: d})
	require.NoError(t, err)
	dir := t.TempDir()
	ln, err := net.Listen("unix", filepath.Join(dir, "behind"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	defer func() { cancel(); <-served; require.NoError(t, st.Close()) }()

	front := filepath.Join(dir, "front")
	start(t, "serve", "--behind", "unix:"+filepath.Join(dir, "behind"), "--token", token, "--listen", front, "--block-size", "65536", "--local", "2", "--sim-size", "67108864", "--timeout", "1m")
	c, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + front, Timeout: patience, Silence: patience})
	require.NoError(t, err)
	defer c.Close()
	tenant, rights := c.Identity()
	require.Equal(t, "prod", tenant)
	require.Equal(t, auth.Read|auth.Write, rights)
	shape := skep.Shape{Kind: skep.Attention, Layers: 8, KVHeads: 2, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}
	spec := skep.NamespaceSpec{Tenant: "prod", Name: "n", Model: "m", Shape: shape, Copies: 1, Chained: true}
	ns, err := c.OpenNamespace(t.Context(), spec)
	require.NoError(t, err)
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	var keys []skep.Key
	for i := range 2 {
		keys = append(keys, skep.KeyOf([]byte{byte(i)}))
		r.Blocks = append(r.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: content(i)}}})
	}
	_, err = c.Put(t.Context(), r)
	require.NoError(t, err)
	load(t, c, r.Scope, keys)
	require.Equal(t, 2, load(t, c, r.Scope, keys))
	spec.Tenant = "default"
	_, err = c.OpenNamespace(t.Context(), spec)
	require.Error(t, err)
	require.ErrorIs(t, c.Purge(t.Context(), skep.Purge{Tenant: "prod"}), skep.Denied, "the token may not")
}
