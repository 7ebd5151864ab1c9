package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// newRand returns a generator whose seed is printed when the test fails. To run
// with a seed again, set SKEP_SEED.
func newRand(t *testing.T) *rand.Rand {
	seed := drawn.Seed(t)
	return seededRand(seed)
}

func seededRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

func sizeName(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%dMiB", n>>20)
	}
	return fmt.Sprintf("%dKiB", n>>10)
}

// newArena closes itself; every buffer must be free by then.
func newArena(t testing.TB, opts Options) *Arena {
	t.Helper()
	a, err := New(opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, a.Close(ctx))
	})
	return a
}

// newCache closes itself before its arena.
func newCache(t testing.TB, a *Arena, opts CacheOptions) *Cache {
	t.Helper()
	c, err := NewCache(a, opts)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func mustAlloc(t testing.TB, a *Arena, n int, budget Budget) *Buffer {
	t.Helper()
	b, err := a.TryAlloc(n, budget)
	require.NoError(t, err)
	return b
}

func filled(b *Buffer, with byte) *Buffer {
	mem := b.Bytes()
	for i := range mem {
		mem[i] = with
	}
	return b
}

func id(n int) ID { return ID{Key: Key{byte(n), byte(n >> 8), byte(n >> 16)}, Part: uint64(n % 3)} }
