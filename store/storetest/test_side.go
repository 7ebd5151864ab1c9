package storetest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// testSide is of sidecar metadata, for Stores that keep some.
func testSide(t *testing.T, open Open) {
	e := start(t, open, Config{})
	side := e.st
	if _, err := side.Sidecar(e.ctx, skep.Scope{Namespace: 1 << 30}, skep.Key{}); errors.Is(err, skep.Unsupported) {
		t.Skip(err)
	}
	pieces := func(b []byte) []skep.SidecarPiece {
		return []skep.SidecarPiece{{Kind: skep.SidecarHeader, Bytes: b[:7]}, {Kind: skep.SidecarRoutes, Bytes: b[7:3000]},
			{Kind: skep.SidecarClusters, Bytes: b[3000:3001]}, {Kind: skep.SidecarMedoids, Bytes: b[3001:]}}
	}
	space := func(e *env) skep.NamespaceInfo { // in which the last writer wins
		spec := specOf(free)
		spec.Chained = false
		return e.open(spec)
	}
	none := func(e *env, s skep.Scope, k skep.Key) {
		e.Helper()
		_, err := side.Sidecar(e.ctx, s, k)
		requireKind(e, skep.NotFound, err)
	}
	write := func(e *env, s skep.Scope, k skep.Key, version string) []byte {
		b := Payload(k, version, 9000)
		e.put(&skep.PutRequest{Scope: s, Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: b}}}}})
		return b
	}
	e.run("they come back as they were put", func(e *env) {
		c := e.chain(space(e), 2)
		b := write(e, c.scope, c.keys[0], "a")
		none(e, c.scope, c.keys[0])
		require.NoError(e, side.PutSidecar(e.ctx, c.scope, c.keys[0], pieces(b)))
		for range 2 {
			got, err := side.Sidecar(e.ctx, c.scope, c.keys[0])
			require.NoError(e, err)
			require.Equal(e, pieces(b), got)
			clear(got[1].Bytes) // the caller's own
		}
	})
	e.run("another cut takes the place of the first", func(e *env) {
		c := e.chain(space(e), 1)
		b := write(e, c.scope, c.keys[0], "a")
		require.NoError(e, side.PutSidecar(e.ctx, c.scope, c.keys[0], pieces(b)))
		whole := []skep.SidecarPiece{{Kind: skep.SidecarRoutes, Bytes: b}}
		require.NoError(e, side.PutSidecar(e.ctx, c.scope, c.keys[0], whole))
		got, err := side.Sidecar(e.ctx, c.scope, c.keys[0])
		require.NoError(e, err)
		require.Equal(e, whole, got)
	})
	e.run("they are of one version", func(e *env) {
		c := e.chain(space(e), 1)
		b := write(e, c.scope, c.keys[0], "a")
		require.NoError(e, side.PutSidecar(e.ctx, c.scope, c.keys[0], pieces(b)))
		next := write(e, c.scope, c.keys[0], "b")
		none(e, c.scope, c.keys[0])
		requireKind(e, skep.Conflict, side.PutSidecar(e.ctx, c.scope, c.keys[0], pieces(b)))
		copy(next[3000:], b[3000:]) // some of it stays the same
		e.put(&skep.PutRequest{Scope: c.scope, Blocks: []skep.Block{{Key: c.keys[0], Parts: []skep.Part{{Bytes: next}}}}})
		require.NoError(e, side.PutSidecar(e.ctx, c.scope, c.keys[0], pieces(next)))
		got, err := side.Sidecar(e.ctx, c.scope, c.keys[0])
		require.NoError(e, err)
		require.Equal(e, pieces(next), got)
	})
	e.run("they go with their block", func(e *env) {
		n := space(e)
		c := e.chain(n, 3)
		plain, salted := c, e.chain(n, 3).salted("pepper")
		for _, c := range []*chain{plain, salted} {
			for _, k := range c.keys {
				require.NoError(e, side.PutSidecar(e.ctx, c.scope, k, pieces(write(e, c.scope, k, "a"))))
			}
		}
		_, err := e.st.Delete(e.ctx, plain.scope, plain.keys[:1])
		require.NoError(e, err)
		none(e, plain.scope, plain.keys[0])
		write(e, plain.scope, plain.keys[0], "a") // the same again has none of its own
		none(e, plain.scope, plain.keys[0])

		require.NoError(e, e.st.Purge(e.ctx, skep.Purge{Salt: &salted.scope}))
		for i, k := range salted.keys {
			none(e, salted.scope, k)
			if i > 0 {
				_, err := side.Sidecar(e.ctx, plain.scope, plain.keys[i])
				require.NoError(e, err)
			}
		}
		require.NoError(e, e.st.Purge(e.ctx, skep.Purge{Namespace: n.ID}))
		for _, k := range plain.keys {
			none(e, plain.scope, k)
		}
	})
	e.run("bad input is refused by name and changes nothing", func(e *env) {
		c := e.chain(space(e), 2)
		b := write(e, c.scope, c.keys[0], "a")
		require.NoError(e, side.PutSidecar(e.ctx, c.scope, c.keys[0], pieces(b)))
		large := bytes.Repeat([]byte{1}, skep.MaxSidecarPieceBytes+1)
		for _, bad := range []struct {
			kind   skep.Kind
			key    skep.Key
			pieces []skep.SidecarPiece
			says   string
		}{
			{skep.Invalid, c.keys[0], nil, "pieces"},
			{skep.Invalid, c.keys[0], make([]skep.SidecarPiece, skep.MaxSidecarPieces+1), "pieces"},
			{skep.Invalid, c.keys[0], []skep.SidecarPiece{{Kind: 99, Bytes: b}}, "kind of piece 0"},
			{skep.Invalid, c.keys[0], []skep.SidecarPiece{{Kind: skep.SidecarRoutes, Bytes: b}, {Kind: skep.SidecarMedoids}}, "piece 1 in bytes"},
			{skep.Invalid, c.keys[0], []skep.SidecarPiece{{Kind: skep.SidecarRoutes, Bytes: large}}, "262144"},
			{skep.Conflict, c.keys[0], []skep.SidecarPiece{{Kind: skep.SidecarRoutes, Bytes: b[1:]}}, "bytes of the block"},
			{skep.Conflict, c.keys[0], []skep.SidecarPiece{{Kind: skep.SidecarRoutes, Bytes: large[:len(b)]}}, "bytes of the block"},
			{skep.NotFound, c.keys[1], pieces(b), "block"},
		} {
			err := side.PutSidecar(e.ctx, c.scope, bad.key, bad.pieces)
			requireKind(e, bad.kind, err)
			require.ErrorContains(e, err, bad.says)
		}
		requireKind(e, skep.NotFound, side.PutSidecar(e.ctx, skep.Scope{Namespace: 1 << 30}, c.keys[0], pieces(b)))
		got, err := side.Sidecar(e.ctx, c.scope, c.keys[0])
		require.NoError(e, err)
		require.Equal(e, pieces(b), got)
	})
}
