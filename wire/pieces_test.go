package wire

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
)

func TestFramesAreShorterTheMoreSessionsThereAre(t *testing.T) {
	for _, c := range []struct{ sessions, bytes int64 }{{0, 4 << 20}, {1, 4 << 20}, {8, 4 << 20}, {32, 1 << 20}, {256, 128 << 10}, {1 << 20, 128 << 10}} {
		var s Server
		s.count.sessions.Store(c.sessions)
		require.Equal(t, c.bytes, s.frame(), "%d sessions", c.sessions)
	}
}

// A chunk that is cut into many pieces because the server has much to do is the chunk it was.
func TestChunksOfABusyServerComeInPieces(t *testing.T) {
	const blocks, size = 3, 2<<20 + 4096
	for _, where := range []string{"tcp", "tls", "unix"} {
		for _, crc := range []bool{false, true} {
			r := serve(t, where, newMemstore(storetest.Config{}), ServerOptions{})
			o := r.options()
			o.CRC, o.Window = crc, leastWindow // less than a chunk
			c := r.dial(t, o)
			ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "a", Name: "large", Shape: skep.Shape{BlockTokens: 16, Bytes: size}, Chained: true})
			require.NoError(t, err)
			put := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
			chain := skep.Chain{Scope: put.Scope}
			random := rand.NewChaCha8([32]byte{1})
			for i := range blocks {
				b := make([]byte, size)
				_, _ = random.Read(b)
				chain.Keys = append(chain.Keys, skep.KeyOf([]byte{byte(i)}))
				put.Blocks = append(put.Blocks, skep.Block{Key: chain.Keys[i], Parts: []skep.Part{{Bytes: b}}})
			}
			_, err = c.Put(t.Context(), put)
			require.NoError(t, err)
			r.count.sessions.Add(1 << 20) // as if there were so many others
			s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{chain}})
			require.NoError(t, err)
			came := 0
			each(t, s, func(ch *skep.Chunk) {
				require.NoError(t, ch.Err)
				require.True(t, bytes.Equal(put.Blocks[ch.Block].Parts[0].Bytes, bytes.Join(ch.Data, nil)), "block %d over %s", ch.Block, where)
				ch.Release()
				came++
			})
			require.NoError(t, s.Close(t.Context()))
			require.Equal(t, blocks, came)
			r.count.sessions.Add(-1 << 20)
		}
	}
}
