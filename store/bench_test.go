package store

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func benchStore(b *testing.B, shape skep.Shape, blocks int) (*Store, skep.Scope, []skep.Key) {
	s, err := Open(context.Background(), Options{Dir: b.TempDir(), BlockBytes: 2 << 20, CacheBytes: -1, IOBytes: 1 << 30})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	ns, err := s.OpenNamespace(context.Background(), skep.NamespaceSpec{Tenant: "t", Name: "n", Chained: true, Shape: shape})
	require.NoError(b, err)
	keys := make([]skep.Key, blocks)
	for i := range keys {
		binary.LittleEndian.PutUint64(keys[i][:], uint64(i)+1)
	}
	return s, skep.Scope{Namespace: ns.ID}, keys
}

var block2M = skep.Shape{Kind: skep.Attention, Layers: 32, KVHeads: 8, HeadDim: 128, Element: skep.BF16, BlockTokens: 16}

func putChain(b *testing.B, s *Store, sc skep.Scope, keys []skep.Key, size int) {
	mem, err := s.Alloc(context.Background(), int64(size)*16)
	require.NoError(b, err)
	defer mem.Release()
	for i := range mem.Bytes() {
		mem.Bytes()[i] = byte(i * 7)
	}
	for at := 0; at < len(keys); at += 16 {
		r := &skep.PutRequest{Scope: sc, Depth: at}
		if at > 0 {
			r.Parent = &keys[at-1]
		}
		for i := at; i < min(at+16, len(keys)); i++ {
			r.Blocks = append(r.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: mem.Bytes()[(i-at)*size : (i-at+1)*size]}}})
		}
		res, err := s.Put(context.Background(), r)
		require.NoError(b, err)
		for _, x := range res {
			require.Equal(b, skep.Committed, x.Outcome)
		}
	}
}

// BenchmarkPut puts a chain of 2 MiB blocks, 16 at a time.
func BenchmarkPut(b *testing.B) {
	s, sc, keys := benchStore(b, block2M, 1024)
	b.SetBytes(2 << 20 * 1024)
	b.ResetTimer()
	for i := range b.N {
		for k := range keys {
			keys[k][31] = byte(i)
			keys[k][30] = byte(i >> 8)
		}
		putChain(b, s, sc, keys, 2<<20)
	}
}

// BenchmarkRestore restores a chain of 2 MiB blocks, whole and layer by layer.
func BenchmarkRestore(b *testing.B) {
	const blocks = 256
	for _, d := range []skep.Direction{skep.HeadFirst, skep.LayersUp} {
		b.Run(d.String(), func(b *testing.B) {
			s, sc, keys := benchStore(b, block2M, 1024)
			putChain(b, s, sc, keys, 2<<20)
			var mem []skep.Memory
			for range blocks / 32 {
				m, err := s.Alloc(context.Background(), 64<<20)
				require.NoError(b, err)
				mem = append(mem, m)
			}
			defer func() {
				for _, m := range mem {
					m.Release()
				}
			}()
			b.SetBytes(2 << 20 * 1024)
			b.ResetTimer()
			for range b.N {
				for at := 0; at < len(keys); at += blocks {
					var chains []skep.Chain
					for i, m := range mem {
						chains = append(chains, skep.Chain{Scope: sc, Keys: keys, Blocks: skep.Only(at+i*32, at+i*32+32), Direction: d, Dest: skep.Destination{Memory: m.Bytes()}})
					}
					ses, err := s.Restore(context.Background(), &skep.RestoreRequest{Chains: chains})
					require.NoError(b, err)
					chunks := make([]skep.Chunk, 64)
					for {
						n, err := ses.Next(context.Background(), chunks)
						if errors.Is(err, io.EOF) {
							break
						}
						require.NoError(b, err)
						for _, c := range chunks[:n] {
							require.NoError(b, c.Err)
						}
					}
					require.NoError(b, ses.Close(context.Background()))
				}
			}
		})
	}
}
