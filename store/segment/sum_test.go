package segment

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/drawn"
)

// A granule's checksum is of what it is, not only of what it holds.
func TestGranuleSumBindsIdentity(t *testing.T) {
	t.Parallel()
	key, data := skep.KeyOf([]byte("k")), []byte("the same bytes")
	base := GranuleSum(1, sampleTag, key, "kv", 0, 1, data)
	assert.Equal(t, base, GranuleSum(1, sampleTag, key, "kv", 0, 1, data))
	seen := map[uint64]string{base: "base"}
	for name, sum := range map[string]uint64{
		"instance":   GranuleSum(2, sampleTag, key, "kv", 0, 1, data),
		"tag":        GranuleSum(1, SaltTag{}, key, "kv", 0, 1, data),
		"key":        GranuleSum(1, sampleTag, skep.KeyOf([]byte("l")), "kv", 0, 1, data),
		"part":       GranuleSum(1, sampleTag, key, "kw", 0, 1, data),
		"longer":     GranuleSum(1, sampleTag, key, "kv\x00", 0, 1, data),
		"index":      GranuleSum(1, sampleTag, key, "kv", 1, 1, data),
		"version":    GranuleSum(1, sampleTag, key, "kv", 0, 2, data),
		"data":       GranuleSum(1, sampleTag, key, "kv", 0, 1, []byte("the same bytez")),
		"shorter":    GranuleSum(1, sampleTag, key, "kv", 0, 1, data[:13]),
		"empty":      GranuleSum(1, sampleTag, key, "kv", 0, 1, nil),
		"empty next": GranuleSum(1, sampleTag, key, "kv", 1, 1, nil),
	} {
		assert.NotContains(t, seen, sum, name)
		seen[sum] = name
	}
}

// The hash's long form takes a secret derived from the seed; make sure that one bit
// of any field reaches the sum there too.
func TestGranuleSumAllSeedBits(t *testing.T) {
	t.Parallel()
	data := make([]byte, 64<<10)
	seen := map[uint64]bool{}
	for bit := range 64 {
		seen[Seed(1<<bit).Sum(0, data)] = true
	}
	for index := range 1000 {
		seen[Seed(0).Sum(index+1, data)] = true
	}
	assert.Len(t, seen, 1064)
}

func TestHasherEqualsSum(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 3))
	sizes := []int{0, 1, 3, 8, 16, 17, 128, 129, 240, 241, 1023, 1024, 1025, 1088, 1089, 4096, 65536, 65537, 200001}
	var h Hasher
	for _, n := range sizes {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		for range 20 {
			s, index := Seed(rng.Uint64()), rng.IntN(1000)
			h.Reset(s, index)
			for rest := data; len(rest) > 0; {
				k := 1 + rng.IntN(len(rest))
				_, err := h.Write(rest[:k])
				require.NoError(t, err)
				rest = rest[k:]
			}
			require.Equal(t, s.Sum(index, data), h.Sum(), "%d bytes", n)
		}
	}
	// A seed that mixes to zero takes the hash's other path.
	h.Reset(0, 0)
	_, _ = h.Write([]byte("abc"))
	assert.Equal(t, xxh3.Hash([]byte("abc")), h.Sum())
	assert.Equal(t, Seed(0).Sum(0, []byte("abc")), h.Sum())
	h.Reset(5, 5)
	_, _ = h.Write(make([]byte, 5000))
	assert.Equal(t, Seed(5).Sum(5, make([]byte, 5000)), h.Sum())
}

func TestGranuleBitFlips(t *testing.T) {
	t.Parallel()
	data := make([]byte, PageSize)
	for i := range data {
		data[i] = byte(i * 7)
	}
	s := NewSeed(1, SaltTag{}, skep.Key{}, "kv", 1)
	want := s.Sum(3, data)
	for bit := range 8 * PageSize {
		data[bit/8] ^= 1 << (bit % 8)
		if s.Sum(3, data) == want {
			t.Fatalf("bit %d flipped and not found", bit)
		}
		data[bit/8] ^= 1 << (bit % 8)
	}
}

// Alone: allocations of the whole process are counted.
func TestSumAllocations(t *testing.T) {
	data := make([]byte, 64<<10)
	var h Hasher
	h.Reset(1, 1)
	assert.Zero(t, testing.AllocsPerRun(100, func() { GranuleSum(1, sampleTag, skep.Key{}, "kv", 1, 1, data) }))
	assert.Zero(t, testing.AllocsPerRun(100, func() { h.Reset(2, 7); _, _ = h.Write(data); h.Sum() }))
}

func BenchmarkNewSeed(b *testing.B) {
	for b.Loop() {
		NewSeed(1, sampleTag, skep.Key{}, "kv", 1)
	}
}

func BenchmarkGranuleSum(b *testing.B) {
	data := make([]byte, 64<<10)
	s := NewSeed(1, sampleTag, skep.Key{}, "kv", 1)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		s.Sum(1, data)
	}
}

// The unseeded hash of the same bytes: what the binding costs is the difference.
func BenchmarkPlainHash(b *testing.B) {
	data := make([]byte, 64<<10)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		xxh3.Hash(data)
	}
}

func BenchmarkHasherTwoPieces(b *testing.B) {
	data := make([]byte, 64<<10)
	s := NewSeed(1, sampleTag, skep.Key{}, "kv", 1)
	var h Hasher
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		h.Reset(s, 1)
		_, _ = h.Write(data[:30000])
		_, _ = h.Write(data[30000:])
		h.Sum()
	}
}
