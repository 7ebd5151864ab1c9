package layout

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skepkv/skep"
)

func keysOf(n int) []skep.Key { return make([]skep.Key, n) }

// The chunks of a chain of blocks 3 to 5 and layers 5 and 6, in each direction.
func TestChainOrder(t *testing.T) {
	t.Parallel()
	r := func(a, b int) skep.Range { return skep.Range{From: a, To: b} }
	type chunk struct {
		block  int
		layers skep.Range
	}
	for _, c := range []struct {
		dir  skep.Direction
		want []chunk
	}{
		{skep.HeadFirst, []chunk{{3, r(5, 7)}, {4, r(5, 7)}, {5, r(5, 7)}}},
		{skep.TailFirst, []chunk{{5, r(5, 7)}, {4, r(5, 7)}, {3, r(5, 7)}}},
		{skep.LayersUp, []chunk{{3, r(5, 6)}, {4, r(5, 6)}, {5, r(5, 6)}, {3, r(6, 7)}, {4, r(6, 7)}, {5, r(6, 7)}}},
		{skep.LayersDown, []chunk{{3, r(6, 7)}, {4, r(6, 7)}, {5, r(6, 7)}, {3, r(5, 6)}, {4, r(5, 6)}, {5, r(5, 6)}}},
	} {
		t.Run(c.dir.String(), func(t *testing.T) {
			p, err := PlanChain(&skep.Chain{Keys: keysOf(8), Blocks: r(3, 6).Subset(), Layers: r(5, 7).Subset(), Direction: c.dir},
				attention(8, 2, 2, 2, skep.I8, skep.HND))
			require.NoError(t, err)
			var got []chunk
			for turn := range p.Chunks() {
				i := p.InOrder(turn)
				block, layers := p.Chunk(i)
				got = append(got, chunk{block, layers})
				number, ok := p.Number(block, layers)
				assert.True(t, ok)
				assert.Equal(t, i, number)
			}
			assert.Equal(t, c.want, got)
			for _, other := range []chunk{{2, r(5, 7)}, {6, r(5, 7)}, {3, r(4, 5)}, {3, r(7, 8)}, {3, r(5, 8)}, {3, r(0, 0)}} {
				_, ok := p.Number(other.block, other.layers)
				assert.False(t, ok, "%+v is not of the chain", other)
			}
		})
	}
}

// Either way is decided later, once.
func TestChainResolve(t *testing.T) {
	t.Parallel()
	cost := &skep.Compute{Cost: skep.RecomputeCost{PerToken: 1}}
	plan := func(shape skep.Shape) *ChainPlan {
		p, err := PlanChain(&skep.Chain{Keys: keysOf(4), Direction: skep.Auto, Compute: cost}, shape)
		require.NoError(t, err)
		return p
	}
	p := plan(attention(3, 2, 2, 2, skep.I8, skep.HND))
	require.ErrorIs(t, p.Resolve(skep.HeadFirst), skep.Invalid)
	require.NoError(t, p.Resolve(skep.LayersDown))
	assert.Equal(t, 12, p.Chunks())
	require.NoError(t, p.Resolve(skep.TailFirst), "it is decided")
	assert.Equal(t, skep.LayersDown, p.Direction)
	opaque := plan(skep.Shape{BlockTokens: 1, Bytes: 9})
	require.ErrorIs(t, opaque.Resolve(skep.LayersDown), skep.Invalid)
	require.NoError(t, opaque.Resolve(skep.TailFirst))
	assert.Equal(t, 4, opaque.Chunks())
}

// reference is where a byte of a part belongs: the same arithmetic once more, from what doc.go says of parts and
// skep.Paged of pages, with nothing of this package's.
func reference(s skep.Shape, c *skep.Chain, first, block int, off int64) *byte {
	i := block - first
	if c.Dest.Memory != nil {
		return &c.Dest.Memory[int64(i)*c.Dest.Stride+off]
	}
	d, heads, tensors := c.Dest.Paged, max(s.KVHeads, 1), 2
	if s.Kind == skep.Latent {
		tensors = 1
	}
	row := s.HeadDim * s.Element.Bits() / 8
	slice := heads * s.BlockTokens * row
	tensor, r, at := int(off)/slice, int(off)%slice/row, int(off)%row
	head, token := r/s.BlockTokens, r%s.BlockTokens
	if s.Order == skep.NHD {
		head, token = r%heads, r/heads
	}
	r = head*s.BlockTokens + token
	if d.Order == skep.NHD {
		r = token*heads + head
	}
	return &d.Planes[tensor/tensors][tensor%tensors][d.Pages[i]*int(d.PageStride)+r*row+at]
}

// drawChain draws a chain with a destination it fits, of memory that is filled with 0xEE.
func drawChain(t *rapid.T) (*skep.Chain, skep.Shape) {
	s := smallShape(t)
	if rapid.IntRange(0, 5).Draw(t, "opaque") == 0 {
		s = skep.Shape{BlockTokens: 1, Bytes: int64(rapid.IntRange(1, 300).Draw(t, "bytes"))}
	}
	g := geometry(t, s)
	n := rapid.IntRange(1, 6).Draw(t, "keys")
	c := &skep.Chain{Keys: keysOf(n), Blocks: someRange(t, n, "blocks")}
	blocks, _ := c.Blocks.In(n)
	c.Direction = skep.Direction(rapid.IntRange(0, 1).Draw(t, "direction"))
	filled := func(n int64) []byte { return bytes.Repeat([]byte{0xEE}, int(n)) }
	if s.Kind != skep.Opaque {
		c.Direction = skep.Direction(rapid.IntRange(0, 3).Draw(t, "direction by layer, too"))
		c.Layers = someRange(t, s.Layers, "layers")
		layers, _ := c.Layers.In(s.Layers)
		if s.Kind == skep.Attention && s.Order == skep.HND {
			c.Heads = someRange(t, s.KVHeads, "heads")
		}
		if rapid.Bool().Draw(t, "paged") {
			slice := g.SliceBytes()
			d := &skep.Paged{PageStride: slice + int64(rapid.IntRange(0, 9).Draw(t, "beside a page"))}
			d.Order = rapid.SampledFrom([]skep.AxisOrder{skep.HND, skep.NHD}).Draw(t, "page order")
			room := blocks.Len() + rapid.IntRange(0, 3).Draw(t, "more pages")
			all := make([]int, room)
			for i := range all {
				all[i] = i
			}
			d.Pages = rapid.Permutation(all).Draw(t, "pages")[:blocks.Len()]
			for range layers.To {
				size := int64(room-1)*d.PageStride + slice
				d.Planes = append(d.Planes, [2][]byte{filled(size), filled(size)})
			}
			c.Dest.Paged = d
			return c, s
		}
	}
	c.Dest.Stride = g.PartBytes() + int64(rapid.IntRange(0, 9).Draw(t, "between blocks"))
	c.Dest.Memory = filled(int64(blocks.Len()-1)*c.Dest.Stride + g.PartBytes())
	return c, s
}

// Whatever is asked for comes to where it belongs, and nothing else is written: bytes copied in pieces, and bytes
// read straight to their places.
func TestChainBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c, shape := drawChain(t)
		p, err := PlanChain(c, shape)
		require.NoError(t, err)
		part := rapid.SliceOfN(rapid.ByteRange(0, 0x7F), int(p.Size), int(p.Size)).Draw(t, "part")
		straight := !p.Transposed() && rapid.Bool().Draw(t, "straight")
		wanted := map[*byte]byte{}
		seen := make([]int, p.Chunks())
		for turn := range p.Chunks() {
			i := p.InOrder(turn)
			seen[i]++
			block, layers := p.Chunk(i)
			spans, err := p.Spans(nil, layers, p.Size)
			require.NoError(t, err)
			var chunk []byte
			for _, s := range spans {
				chunk = append(chunk, part[s.Off:s.End()]...)
				for off := s.Off; off < s.End(); off++ {
					wanted[reference(shape, c, p.Blocks.From, block, off)] = part[off]
				}
			}
			if straight {
				for at := 0; at < len(chunk); {
					n := rapid.IntRange(1, len(chunk)-at).Draw(t, "piece")
					for _, to := range p.Places(nil, block, spans, int64(at), int64(n)) {
						at += copy(to, chunk[at:])
					}
				}
				continue
			}
			for _, s := range spans {
				for at := s.Off; at < s.End(); {
					n := rapid.Int64Range(1, s.End()-at).Draw(t, "piece")
					p.Copy(block, at, part[at:at+n])
					at += n
				}
			}
		}
		require.NotContains(t, seen, 0, "every chunk has its turn")
		check := func(mem []byte) {
			for i := range mem {
				want, ok := wanted[&mem[i]]
				if !ok {
					want = 0xEE
				}
				require.Equal(t, want, mem[i], "byte %d", i)
				delete(wanted, &mem[i])
			}
		}
		check(c.Dest.Memory)
		if d := c.Dest.Paged; d != nil {
			for _, planes := range d.Planes {
				check(planes[0])
				check(planes[1])
			}
		}
		require.Empty(t, wanted, "bytes that belong nowhere")
	})
}

// What cannot be restored is refused, and the error names what is wrong.
func TestChainRefused(t *testing.T) {
	t.Parallel()
	r := func(a, b int) skep.Range { return skep.Range{From: a, To: b} }
	hnd, nhd := attention(3, 2, 4, 2, skep.I8, skep.HND), attention(3, 2, 4, 2, skep.I8, skep.NHD)
	lat := latent(3, 4, 2, skep.I8)
	free, fixed := skep.Shape{BlockTokens: 1}, skep.Shape{BlockTokens: 1, Bytes: 10}
	cost := &skep.Compute{Cost: skep.RecomputeCost{PerToken: 1}}
	pages := func(change func(d *skep.Paged)) skep.Destination {
		d := &skep.Paged{Order: skep.HND, PageStride: 16, Pages: []int{1, 0}}
		for range 3 {
			d.Planes = append(d.Planes, [2][]byte{make([]byte, 32), make([]byte, 32)})
		}
		change(d)
		return skep.Destination{Paged: d}
	}
	long := skep.Shape{BlockTokens: 1 << 16, Bytes: 10}
	both := skep.Destination{Memory: make([]byte, 1), Paged: &skep.Paged{}}
	mem := func(n int, stride int64) skep.Destination {
		return skep.Destination{Memory: make([]byte, n), Stride: stride}
	}
	for _, c := range []struct {
		name, field string
		shape       skep.Shape
		chain       skep.Chain
	}{
		{"many keys", "keys", hnd, skep.Chain{Keys: keysOf(skep.MaxChainKeys + 1)}},
		{"blocks beyond", "blocks", hnd, skep.Chain{Blocks: r(0, 3).Subset()}},
		{"blocks before", "blocks", hnd, skep.Chain{Blocks: r(-1, 1).Subset()}},
		{"direction", "direction", hnd, skep.Chain{Direction: 5}},
		{"either way for nothing", "direction", hnd, skep.Chain{Direction: skep.Auto}},
		{"two pointers head first", "direction", hnd, skep.Chain{Compute: cost}},
		{"two pointers on too many tokens", "tokens of a chain that says what computing costs", long,
			skep.Chain{Keys: keysOf(1<<14 + 1), Direction: skep.TailFirst, Compute: cost}},
		{"part name", "part name length in bytes", hnd, skep.Chain{Part: string(make([]byte, skep.MaxPartNameSize+1))}},
		{"layers of opaque", "layers, heads and direction", fixed, skep.Chain{Layers: r(0, 1).Subset()}},
		{"heads of opaque", "layers, heads and direction", fixed, skep.Chain{Heads: r(0, 1).Subset()}},
		{"by layer of opaque", "layers, heads and direction", fixed, skep.Chain{Direction: skep.LayersUp}},
		{"layers of another part", "layers, heads and direction", hnd, skep.Chain{Part: "x", Layers: r(0, 1).Subset()}},
		{"layers", "layers", hnd, skep.Chain{Layers: r(2, 4).Subset()}},
		{"heads", "heads", hnd, skep.Chain{Heads: r(1, 3).Subset()}},
		{"heads of nhd", "heads", nhd, skep.Chain{Heads: r(0, 1).Subset()}},
		{"heads of latent", "heads", lat, skep.Chain{Heads: r(0, 1).Subset()}},
		{"two destinations", "destination", hnd, skep.Chain{Dest: both}},
		{"stride unset", "destination stride", free, skep.Chain{Dest: mem(100, 0)}},
		{"stride negative", "destination stride", fixed, skep.Chain{Dest: mem(100, -1)}},
		{"stride small", "destination stride", fixed, skep.Chain{Dest: mem(100, 9)}},
		{"memory small", "destination size in bytes", fixed, skep.Chain{Dest: mem(19, 10)}},
		{"memory less than one", "destination size in bytes", fixed, skep.Chain{Blocks: r(0, 1).Subset(), Dest: mem(9, 10)}},
		{"stride that wraps", "destination size in bytes", free, skep.Chain{Dest: mem(100, math.MaxInt64)}},
		{"pages of opaque", "destination", fixed, skep.Chain{Dest: pages(func(*skep.Paged) {})}},
		{"page count", "pages", hnd, skep.Chain{Dest: pages(func(d *skep.Paged) { d.Pages = d.Pages[:1] })}},
		{"page order", "page order", hnd, skep.Chain{Dest: pages(func(d *skep.Paged) { d.Order = 7 })}},
		{"page stride", "page stride", hnd, skep.Chain{Dest: pages(func(d *skep.Paged) { d.PageStride = 15 })}},
		{"planes", "planes", hnd, skep.Chain{Dest: pages(func(d *skep.Paged) { d.Planes = d.Planes[:2] })}},
		{"page negative", "page", hnd, skep.Chain{Dest: pages(func(d *skep.Paged) { d.Pages[0] = -1 })}},
		{"page beyond", "page", hnd, skep.Chain{Dest: pages(func(d *skep.Paged) { d.Pages[1] = 2 })}},
		{"page beyond v", "page", hnd, skep.Chain{Dest: pages(func(d *skep.Paged) { d.Planes[1][1] = d.Planes[1][1][:31] })}},
		{"no plane", "page", hnd, skep.Chain{Dest: pages(func(d *skep.Paged) { d.Planes[2][0] = nil })}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.chain.Keys == nil {
				c.chain.Keys = keysOf(2)
			}
			_, err := PlanChain(&c.chain, c.shape)
			var e *skep.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, skep.Invalid, e.Kind)
			assert.Equal(t, c.field, e.Field)
		})
	}
	t.Run("many chunks", func(t *testing.T) {
		wide := attention(skep.MaxLayers, 1, 2, 1, skep.I8, skep.HND)
		many := keysOf(MaxChunks/skep.MaxLayers + 1)
		_, err := PlanChain(&skep.Chain{Keys: many, Direction: skep.LayersUp}, wide)
		require.ErrorIs(t, err, skep.Invalid)
		p, err := PlanChain(&skep.Chain{Keys: many, Direction: skep.Auto, Compute: cost}, wide)
		require.NoError(t, err)
		require.ErrorIs(t, p.Resolve(skep.LayersDown), skep.Invalid)
	})
}

// What a caller leaves out is filled in, and what was given is not changed.
func TestChainDefaults(t *testing.T) {
	t.Parallel()
	shape := attention(3, 2, 4, 2, skep.I8, skep.HND)
	c := skep.Chain{Keys: keysOf(2), Dest: skep.Destination{Memory: make([]byte, 2*PageSize)}}
	before := c
	p, err := PlanChain(&c, shape)
	require.NoError(t, err)
	assert.Equal(t, before, c)
	assert.Equal(t, skep.PartKV, p.Part)
	assert.Equal(t, skep.Range{From: 0, To: 2}, p.Blocks)
	assert.Equal(t, skep.Range{From: 0, To: 3}, p.Layers)
	assert.EqualValues(t, PageSize, p.Dest.Stride)
	assert.True(t, p.Gaps)
	assert.EqualValues(t, 96, p.Size)

	p, err = PlanChain(&skep.Chain{Keys: keysOf(2), Part: "x"}, shape)
	require.NoError(t, err)
	assert.EqualValues(t, -1, p.Size, "other parts are of any size")
	block, layers := p.Chunk(1)
	assert.Equal(t, 1, block)
	assert.Equal(t, skep.Range{}, layers)
	spans, err := p.Spans(nil, layers, 77)
	require.NoError(t, err)
	assert.Equal(t, []Span{{0, 77}}, spans)
	_, err = p.Spans(nil, layers, skep.MaxPartBytes+1)
	require.ErrorIs(t, err, skep.Invalid)

	empty, err := PlanChain(&skep.Chain{Direction: skep.LayersDown}, shape)
	require.NoError(t, err)
	assert.Zero(t, empty.Chunks())
	assert.True(t, slices.Equal(empty.Keys, nil))
}
