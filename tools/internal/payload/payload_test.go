package payload_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/drawn"
	"github.com/skepkv/skep/tools/internal/payload"
)

func key(n int) skep.Key { return skep.KeyOf([]byte{byte(n), byte(n >> 8)}) }

func TestWhatWasFilledIsRight(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 15, 16, 17, 4095, 4096, 4097, 1 << 20, 1<<20 + 5} {
		b := make([]byte, n)
		payload.Fill(b, key(1))
		assert.Zero(t, payload.Check(b, key(1)), "length %d", n)
	}
}

func TestEveryByteIsLookedAt(t *testing.T) {
	t.Parallel()
	b := make([]byte, 3*4096+7)
	payload.Fill(b, key(1))
	for i := range b {
		b[i] ^= 0x10
		require.Equal(t, int64(1), payload.Check(b, key(1)), "byte %d", i)
		b[i] ^= 0x10
	}
}

func TestWrongBytesAreCounted(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, 64<<10)
	payload.Fill(b, key(1))
	flipped := map[int]bool{}
	for range 100 {
		i := r.IntN(len(b))
		if !flipped[i] {
			b[i]++
			flipped[i] = true
		}
	}
	assert.Equal(t, int64(len(flipped)), payload.Check(b, key(1)))
}

func TestNoTwoPagesAreAlike(t *testing.T) {
	t.Parallel()
	b := make([]byte, 1<<20)
	seen := map[string]string{}
	for k := range 16 {
		payload.Fill(b, key(k))
		for i := 0; i < len(b); i += 4096 {
			where := fmt.Sprintf("key %d page %d", k, i/4096)
			assert.Empty(t, seen[string(b[i:i+16])], where)
			seen[string(b[i:i+16])] = where
		}
	}
}

func TestAnotherKeysBytesAreWrong(t *testing.T) {
	t.Parallel()
	b := make([]byte, 1<<20)
	payload.Fill(b, key(1))
	assert.Greater(t, payload.Check(b, key(2)), int64(len(b)*9/10))
}

func BenchmarkFill(b *testing.B) {
	mem := make([]byte, 64<<20)
	b.SetBytes(int64(len(mem)))
	for range b.N {
		payload.Fill(mem, key(1))
	}
}

func BenchmarkCheck(b *testing.B) {
	mem := make([]byte, 64<<20)
	payload.Fill(mem, key(1))
	b.SetBytes(int64(len(mem)))
	for range b.N {
		if payload.Check(mem, key(1)) != 0 {
			b.Fatal("wrong")
		}
	}
}
