package layout

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skepkv/skep"
)

// The stored format: these must never change.
func TestFormatGranules(t *testing.T) {
	t.Parallel()
	opaque := skep.Shape{Kind: skep.Opaque, BlockTokens: 1}
	for _, c := range []struct {
		name           string
		shape          skep.Shape
		part           string
		size           int64 // 0: the shape's
		period, stride int64
		n              int
	}{
		{"Qwen3-8B, 32 tokens: a slice of 64 KiB", attention(36, 8, 128, 32, skep.BF16, skep.HND), "kv", 0, 65536, 65536, 72},
		{"Qwen3-8B, 16 tokens: a slice of 32 KiB", attention(36, 8, 128, 16, skep.BF16, skep.HND), "kv", 0, 32768, 32768, 72},
		{"Qwen3-8B, 64 tokens: half the heads", attention(36, 8, 128, 64, skep.BF16, skep.HND), "kv", 0, 131072, 65536, 144},
		{"the same in NHD: half the tokens", attention(36, 8, 128, 64, skep.BF16, skep.NHD), "kv", 0, 131072, 65536, 144},
		{"10 heads of 8 KiB: 5 and 5, not 8 and 2", attention(2, 10, 128, 32, skep.BF16, skep.HND), "kv", 0, 81920, 40960, 8},
		{"7 heads of 16 KiB: 4 and 3", attention(2, 7, 128, 64, skep.BF16, skep.HND), "kv", 0, 114688, 65536, 8},
		{"a head of 128 KiB: half its tokens", attention(1, 2, 128, 512, skep.BF16, skep.HND), "kv", 0, 131072, 65536, 8},
		{"a token of 128 KiB: half of it", attention(1, 1, 65536, 2, skep.BF16, skep.HND), "kv", 0, 131072, 65536, 8},
		{"slices of 1 KiB: four of them", attention(3, 1, 64, 8, skep.BF16, skep.HND), "kv", 0, 4096, 4096, 2},
		{"slices of 3 KiB: two of them", attention(3, 3, 64, 8, skep.BF16, skep.HND), "kv", 0, 6144, 6144, 3},
		{"less than a page: one", attention(1, 1, 64, 8, skep.BF16, skep.HND), "kv", 0, 2048, 2048, 1},
		{"DeepSeek-V3, 64 tokens: a layer of 72 KiB in halves", latent(61, 576, 64, skep.BF16), "kv", 0, 73728, 36864, 122},
		{"another part of a model's block is opaque", attention(36, 8, 128, 32, skep.BF16, skep.HND), "boundary", 200000, 65536, 65536, 4},
		{"so is kv of another size", attention(36, 8, 128, 32, skep.BF16, skep.HND), "kv", 200000, 65536, 65536, 4},
		{"opaque, less than 64 KiB", opaque, "kv", 1000, 1000, 1000, 1},
		{"opaque, 16 MiB is the last of 64 KiB", opaque, "kv", 16 << 20, 65536, 65536, 256},
		{"opaque, one byte more", opaque, "kv", 16<<20 + 1, 131072, 131072, 129},
		{"opaque, the largest", opaque, "kv", skep.MaxPartBytes, 2 << 20, 2 << 20, 256},
		{"256 MiB of attention: 128 KiB, so that 2,048 do", attention(64, 64, 128, 128, skep.BF16, skep.HND), "kv", 0, 2 << 20, 131072, 2048},
	} {
		t.Run(c.name, func(t *testing.T) {
			size := c.size
			if size == 0 {
				size = geometry(t, c.shape).PartBytes()
			}
			g, err := GranulesOf(c.shape, c.part, size)
			require.NoError(t, err)
			assert.Equal(t, Granules{size, c.period, c.stride}, g)
			assert.Equal(t, c.n, g.N())
		})
	}
}

func TestGranulesOfNothing(t *testing.T) {
	t.Parallel()
	g, err := GranulesOf(skep.Shape{Kind: skep.Opaque, BlockTokens: 1}, "kv", 0)
	require.NoError(t, err)
	assert.Zero(t, g.N())
	for _, g := range []Granules{g, {}, {Part: 10}, {Part: 10, Period: 1, Stride: 2}} {
		first, last := g.Cover(Span{0, 1})
		assert.Less(t, last, first)
		assert.Equal(t, Span{}, g.Span(0))
		assert.Zero(t, g.N())
		assert.Equal(t, -1, g.At(0))
	}
	g = Granules{100, 10, 3}
	for _, s := range []Span{{0, 0}, {-1, 5}, {99, 2}, {100, 1}, {0, 1 << 62}, {1 << 62, 1 << 62}} {
		first, last := g.Cover(s)
		assert.Less(t, last, first, "%+v", s)
	}
	assert.Equal(t, Span{}, g.Span(-1))
}

func anyShape(t *rapid.T) skep.Shape {
	for {
		s := skep.Shape{
			Kind:        skep.ShapeKind(rapid.IntRange(1, 2).Draw(t, "kind")),
			Layers:      rapid.IntRange(1, 100).Draw(t, "layers"),
			HeadDim:     8 * rapid.IntRange(1, 80).Draw(t, "dim/8"),
			BlockTokens: rapid.SampledFrom([]int{1, 2, 7, 16, 32, 64, 100, 256, 1024}).Draw(t, "tokens"),
			Element:     skep.ElementType(rapid.IntRange(1, 6).Draw(t, "element")),
		}
		if s.Kind == skep.Attention {
			s.KVHeads = rapid.IntRange(1, 40).Draw(t, "heads")
			s.Order = skep.AxisOrder(rapid.IntRange(0, 1).Draw(t, "order"))
		}
		if s.Validate() == nil {
			return s
		}
	}
}

// Every byte is covered once, by granules that keep their limits.
func TestGranulesTile(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anyShape(t)
		size := geometry(t, s).PartBytes()
		part := rapid.SampledFrom([]string{"kv", "kv", "other"}).Draw(t, "part")
		g, err := GranulesOf(s, part, size)
		require.NoError(t, err)
		limit := int64(granuleMax)
		if part != skep.PartKV {
			for limit*maxOpaqueGranule < size {
				limit *= 2
			}
		} else if size > 48<<20 {
			limit = 1 << 20
		}
		require.LessOrEqual(t, g.N(), MaxGranules)
		at := int64(0)
		for i := range g.N() {
			sp := g.Span(i)
			require.Equal(t, at, sp.Off)
			require.Positive(t, sp.Len)
			require.LessOrEqual(t, sp.Len, limit)
			first, last := g.Cover(sp)
			require.Equal(t, [2]int{i, i}, [2]int{first, last})
			at = sp.End()
		}
		require.Equal(t, size, at)

		off := rapid.Int64Range(0, size-1).Draw(t, "off")
		sp := Span{off, rapid.Int64Range(1, size-off).Draw(t, "len")}
		first, last := g.Cover(sp)
		f, l := g.Span(first), g.Span(last)
		require.True(t, f.Off <= sp.Off && sp.Off < f.End() && l.Off < sp.End() && sp.End() <= l.End())
	})
}

// A layer, and within it K or V, is always whole granules when its slices are not
// joined, so layer-wise loads read nothing they do not need.
func TestSlicesAreWholeGranules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anyShape(t)
		geo := geometry(t, s)
		if geo.SliceBytes() < granuleMin {
			return
		}
		g, err := GranulesOf(s, skep.PartKV, geo.PartBytes())
		require.NoError(t, err)
		slice := rapid.Int64Range(0, geo.PartBytes()/geo.SliceBytes()-1).Draw(t, "slice")
		want := Span{slice * geo.SliceBytes(), geo.SliceBytes()}
		first, last := g.Cover(want)
		require.Equal(t, want.Off, g.Span(first).Off)
		require.Equal(t, want.End(), g.Span(last).End())
	})
}
