package store

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
)

// storedChain puts n blocks of a shape and gives the chain.
func storedChain(t *testing.T, s *Store, shape skep.Shape, n, size int) skep.Chain {
	t.Helper()
	ns, err := s.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: t.Name(), Shape: shape, Chained: true})
	require.NoError(t, err)
	c := skep.Chain{Scope: skep.Scope{Namespace: ns.ID}}
	req := &skep.PutRequest{Scope: c.Scope}
	for i := range n {
		c.Keys = append(c.Keys, skep.KeyOf([]byte{byte(i)}))
		req.Blocks = append(req.Blocks, skep.Block{Key: c.Keys[i], Parts: []skep.Part{{Bytes: storetest.Payload(c.Keys[i], skep.PartKV, size)}}})
	}
	_, err = s.Put(t.Context(), req)
	require.NoError(t, err)
	return c
}

// With each chunk come the checksums of exactly its bytes, from drives and from memory,
// whatever the range, or none.
func TestChunksCarryTheirChecksums(t *testing.T) {
	t.Parallel()
	shape := skep.Shape{Kind: skep.Attention, Layers: 3, KVHeads: 4, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}
	const size = 3 * 2 * 4 * 16 * 64 * 2
	for name, cache := range map[string]int64{"from drives": -1, "from drives, then from memory": 32 << 20} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, Options{CapacityBytes: 64 << 20, BlockBytes: 64 << 10, IOBytes: 64 << 20, CacheBytes: cache})
			c := storedChain(t, s, shape, 5, size)
			requireSums(t, s, c)
		})
	}
}

// requireSums restores a chain in all directions, twice, and requires the checksums of exactly
// what comes.
func requireSums(t *testing.T, s *Store, c skep.Chain) {
	t.Helper()
	for range 2 {
		for _, x := range []struct {
			direction skep.Direction
			layers    skep.Subset
		}{{skep.HeadFirst, skep.All}, {skep.LayersUp, skep.All}, {skep.TailFirst, skep.Only(1, 2)}} {
			c.Direction, c.Layers = x.direction, x.layers
			ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}, Sums: true})
			require.NoError(t, err)
			eachChunk(t, ses, func(ch *skep.Chunk) {
				require.NoError(t, ch.Err)
				require.NotEmpty(t, ch.Sums)
				var b []byte
				for _, d := range ch.Data {
					b = append(b, d...)
				}
				for _, sum := range ch.Sums {
					require.Equal(t, sum.Sum, xxh3.HashSeed(b[:sum.Len], sum.Seed))
					b = b[sum.Len:]
				}
				require.Empty(t, b, "every byte is covered")
				ch.Release()
			})
			require.NoError(t, ses.Close(t.Context()))
		}
	}
}

func eachChunk(t *testing.T, ses skep.Session, f func(*skep.Chunk)) {
	t.Helper()
	var into [4]skep.Chunk
	for {
		n, err := ses.Next(t.Context(), into[:])
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		for i := range into[:n] {
			f(&into[i])
		}
	}
}

// A session with a window lends no more than that until something comes back.
func TestWindowBoundsWhatASessionHolds(t *testing.T) {
	t.Parallel()
	s := openTest(t, Options{CapacityBytes: 64 << 20, BlockBytes: 64 << 10, IOBytes: 64 << 20, CacheBytes: -1})
	const size, window = 128 << 10, 512 << 10
	c := storedChain(t, s, skep.Shape{BlockTokens: 1, Bytes: size}, 40, size)
	ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}, Window: window})
	require.NoError(t, err)
	var held []skep.Chunk
	into := make([]skep.Chunk, 40)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		n, err := ses.Next(ctx, into)
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			break
		}
		held = append(held, into[:n]...)
	}
	require.LessOrEqual(t, len(held)*size, window+size)
	for i := range held {
		held[i].Release()
	}
	n := len(held)
	eachChunk(t, ses, func(ch *skep.Chunk) { n++; ch.Release() })
	require.Equal(t, 40, n)
	require.NoError(t, ses.Close(t.Context()))
}

func TestForeignMemoryIsRegisteredAndForgotten(t *testing.T) {
	t.Parallel()
	s := openTest(t, Options{CapacityBytes: 64 << 20, BlockBytes: 64 << 10, IOBytes: 16 << 20, CacheBytes: -1})
	const size = 64 << 10
	c := storedChain(t, s, skep.Shape{BlockTokens: 1, Bytes: size}, 8, size)
	for range 3 {
		mem := device.AlignedBuffer(8 * size)
		unregister, err := s.Register(mem)
		if errors.Is(err, skep.Unsupported) {
			t.Skip("no drive here can be told of memory: ", err)
		}
		require.NoError(t, err)
		c.Dest = skep.Destination{Memory: mem, Stride: size}
		ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
		require.NoError(t, err)
		eachChunk(t, ses, func(ch *skep.Chunk) { require.NoError(t, ch.Err) })
		require.NoError(t, ses.Close(t.Context()))
		for i, k := range c.Keys {
			require.Equal(t, storetest.Payload(k, skep.PartKV, size), mem[i*size:(i+1)*size])
		}
		unregister()
		unregister()
	}
	_, err := s.Register(make([]byte, 4097)[1:100])
	require.ErrorIs(t, err, skep.Invalid)
}
