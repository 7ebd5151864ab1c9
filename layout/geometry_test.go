package layout

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skepkv/skep"
)

func attention(layers, heads, dim, tokens int, e skep.ElementType, o skep.AxisOrder) skep.Shape {
	return skep.Shape{Kind: skep.Attention, Layers: layers, KVHeads: heads, HeadDim: dim, BlockTokens: tokens, Element: e, Order: o}
}

func latent(layers, dim, tokens int, e skep.ElementType) skep.Shape {
	return skep.Shape{Kind: skep.Latent, Layers: layers, HeadDim: dim, BlockTokens: tokens, Element: e}
}

func geometry(t require.TestingT, s skep.Shape) Geometry {
	g, err := Of(s)
	require.NoError(t, err)
	return g
}

// SwiftCache, Table 2: model specs and KV bytes a token (float16), in MB of 2^20.
func TestSwiftCacheTable2(t *testing.T) {
	t.Parallel()
	for _, m := range []struct {
		model               string
		layers, heads, dim  int
		perToken, tolerance float64
	}{
		{"LWM", 32, 32, 128, 0.50, 0.0005},
		{"Qwen3-8B", 36, 8, 128, 0.141, 0.0005},
		{"Qwen3-14B", 40, 8, 128, 0.156, 0.0005},
		{"Qwen3-32B", 64, 8, 128, 0.25, 0.0005},
	} {
		t.Run(m.model, func(t *testing.T) {
			for _, b := range []int{1, 16, 32} {
				g := geometry(t, attention(m.layers, m.heads, m.dim, b, skep.F16, skep.HND))
				assert.InDelta(t, m.perToken, float64(g.TokenBytes())/(1<<20), m.tolerance)
				assert.EqualValues(t, 2*b*m.heads*m.dim*2, g.MBlock(), "eq. 1")
				assert.EqualValues(t, int64(m.layers)*g.MBlock(), g.PartBytes())
			}
		})
	}
}

func TestGeometrySizes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name               string
		shape              skep.Shape
		part, layer, slice int64
	}{
		{"GQA bf16", attention(2, 8, 128, 32, skep.BF16, skep.HND), 262144, 131072, 65536},
		{"NHD is as large", attention(2, 8, 128, 32, skep.BF16, skep.NHD), 262144, 131072, 65536},
		{"FP4 packs two to a byte", attention(2, 8, 128, 32, skep.FP4, skep.HND), 65536, 32768, 16384},
		{"MLA has no K and V", latent(61, 576, 64, skep.BF16), 4497408, 73728, 73728},
		{"opaque", skep.Shape{Kind: skep.Opaque, BlockTokens: 1, Bytes: 1000}, 1000, 1000, 1000},
		{"opaque of any size", skep.Shape{Kind: skep.Opaque, BlockTokens: 16}, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := geometry(t, c.shape)
			assert.Equal(t, []int64{c.part, c.layer, c.slice}, []int64{g.PartBytes(), g.LayerBytes(), g.SliceBytes()})
			assert.Equal(t, c.shape, g.Shape())
		})
	}
}

func TestByteRange(t *testing.T) {
	t.Parallel()
	all, r := skep.All, skep.Only
	hnd := attention(4, 8, 64, 16, skep.BF16, skep.HND) // head 2048, slice 16384, layer 32768
	nhd := attention(4, 8, 64, 16, skep.BF16, skep.NHD) // token 1024
	mla := latent(3, 576, 16, skep.BF16)                // token 1152, layer 18432
	for _, c := range []struct {
		name                  string
		shape                 skep.Shape
		layers, heads, tokens skep.Subset
		kv                    KV
		want                  []Span
	}{
		{"everything is one span", hnd, all, all, all, KAndV, []Span{{0, 131072}}},
		{"layers touch", hnd, r(1, 3), all, all, KAndV, []Span{{32768, 65536}}},
		{"V of a layer", hnd, r(1, 2), all, all, VOnly, []Span{{49152, 16384}}},
		{"heads are one span in each slice", hnd, r(0, 1), r(2, 4), all, KAndV, []Span{{4096, 4096}, {20480, 4096}}},
		{"last head of K touches first of V only if both are whole", hnd, r(0, 1), r(7, 8), all, KOnly, []Span{{14336, 2048}}},
		{"tokens are scattered by head", hnd, r(0, 1), r(0, 2), r(1, 3), KOnly, []Span{{128, 256}, {2176, 256}}},
		{"tokens are contiguous in NHD", nhd, r(0, 1), all, r(1, 3), KAndV, []Span{{1024, 2048}, {17408, 2048}}},
		{"all heads by number in NHD", nhd, r(0, 1), r(0, 8), all, KAndV, []Span{{0, 32768}}},
		{"tokens of a latent", mla, r(1, 3), all, r(15, 16), KAndV, []Span{{35712, 1152}, {54144, 1152}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := geometry(t, c.shape).ByteRange(nil, c.layers, c.kv, c.heads, c.tokens)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestByteRangeRefuses(t *testing.T) {
	t.Parallel()
	all, one := skep.All, skep.Only(0, 1)
	hnd, nhd := attention(4, 8, 64, 16, skep.BF16, skep.HND), attention(4, 8, 64, 16, skep.BF16, skep.NHD)
	mla, opaque := latent(3, 576, 16, skep.BF16), skep.Shape{Kind: skep.Opaque, BlockTokens: 1, Bytes: 1000}
	for _, c := range []struct {
		name                  string
		shape                 skep.Shape
		layers, heads, tokens skep.Subset
		kv                    KV
		kind                  skep.Kind
	}{
		{"layer outside", hnd, skep.Only(3, 5), all, all, KAndV, skep.Invalid},
		{"negative layer", hnd, skep.Only(-1, 1), all, all, KAndV, skep.Invalid},
		{"backward range", hnd, skep.Only(2, 1), all, all, KAndV, skep.Invalid},
		{"head outside", hnd, all, skep.Only(0, 9), all, KAndV, skep.Invalid},
		{"token outside", hnd, all, all, skep.Only(16, 17), KAndV, skep.Invalid},
		{"unknown tensor", hnd, all, all, all, 3, skep.Invalid},
		{"heads in NHD", nhd, all, one, all, KAndV, skep.Unsupported},
		{"heads of a latent", mla, all, one, all, KAndV, skep.Unsupported},
		{"K of a latent", mla, all, all, all, KOnly, skep.Unsupported},
		{"layers of opaque bytes", opaque, skep.Only(0, 2), all, all, KAndV, skep.Unsupported},
		{"tokens of opaque bytes", opaque, all, all, one, KAndV, skep.Unsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			keep := []Span{{7, 7}}
			got, err := geometry(t, c.shape).ByteRange(keep, c.layers, c.kv, c.heads, c.tokens)
			require.ErrorIs(t, err, c.kind)
			assert.Equal(t, keep, got)
		})
	}
}

func TestConstructorsRefuse(t *testing.T) {
	t.Parallel()
	_, err := Of(skep.Shape{Kind: 9, BlockTokens: 1})
	require.ErrorIs(t, err, skep.Invalid)
	for _, n := range []int64{-1, skep.MaxPartBytes + 1} {
		_, err = For(n)
		require.ErrorIs(t, err, skep.Invalid)
		_, err = GranulesOf(skep.Shape{Kind: skep.Opaque, BlockTokens: 1}, "kv", n)
		require.ErrorIs(t, err, skep.Invalid)
	}
	_, err = GranulesOf(skep.Shape{Kind: 9, BlockTokens: 1}, "kv", 1)
	require.ErrorIs(t, err, skep.Invalid)
	g, err := For(10)
	require.NoError(t, err)
	for _, off := range []int64{-1, 10} {
		_, err = g.Locate(off)
		require.ErrorIs(t, err, skep.Invalid)
		_, err = g.Offset(Position{Byte: off})
		require.ErrorIs(t, err, skep.Invalid)
	}
	_, err = geometry(t, attention(2, 2, 2, 2, skep.I8, skep.HND)).Offset(Position{Token: 2})
	require.ErrorIs(t, err, skep.Invalid)
	_, err = geometry(t, latent(2, 2, 2, skep.I8)).Offset(Position{V: true})
	require.ErrorIs(t, err, skep.Invalid)
}

// smallShape draws shapes of a few KiB, so that every byte can be looked at.
func smallShape(t *rapid.T) skep.Shape {
	dim, tokens := 2*rapid.IntRange(1, 6).Draw(t, "dim/2"), rapid.IntRange(1, 7).Draw(t, "tokens")
	element := rapid.SampledFrom([]skep.ElementType{skep.BF16, skep.I8, skep.FP4, skep.F32}).Draw(t, "element")
	layers := rapid.IntRange(1, 4).Draw(t, "layers")
	if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
		return latent(layers, dim, tokens, element)
	}
	order := rapid.SampledFrom([]skep.AxisOrder{skep.HND, skep.NHD}).Draw(t, "order")
	return attention(layers, rapid.IntRange(1, 4).Draw(t, "heads"), dim, tokens, element, order)
}

func someRange(t *rapid.T, n int, name string) skep.Subset {
	from := rapid.IntRange(0, n-1).Draw(t, name+" from")
	return skep.Only(from, rapid.IntRange(from+1, n).Draw(t, name+" to"))
}

// Any range maps back to the right bytes: a byte is in the spans exactly when the
// position it belongs to was asked for.
func TestByteRangeMapsBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := smallShape(t)
		g := geometry(t, s)
		layers, tokens := someRange(t, s.Layers, "layers"), someRange(t, s.BlockTokens, "tokens")
		heads, kv := skep.All, KAndV
		if s.Kind == skep.Attention {
			kv = KV(rapid.IntRange(0, 2).Draw(t, "kv"))
			if s.Order == skep.HND {
				heads = someRange(t, s.KVHeads, "heads")
			}
		}
		spans, err := g.ByteRange(nil, layers, kv, heads, tokens)
		require.NoError(t, err)
		covered := make([]bool, g.PartBytes())
		for i, sp := range spans {
			require.Positive(t, sp.Len)
			if i > 0 {
				require.Greater(t, sp.Off, spans[i-1].End(), "ascending and merged where they touch")
			}
			for b := sp.Off; b < sp.End(); b++ {
				covered[b] = true
			}
		}
		in := func(s skep.Subset, v int) bool {
			r, some := s.Bounds()
			return !some || v >= r.From && v < r.To
		}
		for off := range g.PartBytes() {
			p, err := g.Locate(off)
			require.NoError(t, err)
			want := in(layers, p.Layer) && in(heads, p.Head) && in(tokens, p.Token) &&
				(kv == KAndV || (kv == VOnly) == p.V)
			require.Equal(t, want, covered[off], "byte %d, %+v", off, p)
			back, err := g.Offset(p)
			require.NoError(t, err)
			require.Equal(t, off, back)
		}
	})
}

// Locate agrees with walking the axes in the order the shape names them.
func TestLocateWalksTheAxes(t *testing.T) {
	t.Parallel()
	for _, order := range []skep.AxisOrder{skep.HND, skep.NHD} {
		s := attention(3, 4, 6, 5, skep.BF16, order)
		g, off := geometry(t, s), int64(0)
		check := func(l int, v bool, h, tok int) {
			for b := range int64(12) {
				p, err := g.Locate(off)
				require.NoError(t, err)
				require.Equal(t, Position{l, v, h, tok, b}, p)
				off++
			}
		}
		for l := range s.Layers {
			for _, v := range []bool{false, true} {
				if order == skep.HND {
					for h := range s.KVHeads {
						for tok := range s.BlockTokens {
							check(l, v, h, tok)
						}
					}
					continue
				}
				for tok := range s.BlockTokens {
					for h := range s.KVHeads {
						check(l, v, h, tok)
					}
				}
			}
		}
		require.Equal(t, g.PartBytes(), off)
	}
}
