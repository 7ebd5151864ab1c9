package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

var directions = []skep.Direction{skep.HeadFirst, skep.TailFirst, skep.LayersUp, skep.LayersDown}

// selection is which layers and heads of which blocks a test asks for.
type selection struct {
	blocks, layers, heads skep.Subset
}

// selections are some for chains of n blocks of a shape.
func selections(s skep.Shape, n int) []selection {
	out := []selection{{}, {blocks: skep.Only(1, n-1)}}
	if s.Kind == skep.Opaque {
		return out
	}
	out = append(out,
		selection{layers: skep.Only(0, 1)},
		selection{layers: skep.Only(1, s.Layers)},
	)
	if s.Kind == skep.Attention && s.Order == skep.HND {
		h := s.KVHeads
		out = append(out,
			selection{heads: skep.Only(0, h)},
			selection{heads: skep.Only(h-1, h)},
			selection{blocks: skep.Only(2, 3), layers: skep.Only(1, 2), heads: skep.Only(0, 1)},
		)
	}
	return out
}

// places are the pieces a selection is delivered in.
func (x selection) places(s skep.Shape, n int, d skep.Direction) map[place]bool {
	out := map[place]bool{}
	blocks, _ := x.blocks.In(n)
	layers, _ := x.layers.In(s.Layers)
	for b := blocks.From; b < blocks.To; b++ {
		switch {
		case s.Kind == skep.Opaque:
			out[place{0, b, skep.Range{}}] = true
		case d.ByLayer():
			for l := layers.From; l < layers.To; l++ {
				out[place{0, b, skep.Range{From: l, To: l + 1}}] = true
			}
		default:
			out[place{0, b, layers}] = true
		}
	}
	return out
}

func testRestore(t *testing.T, open Open) {
	e := start(t, open, Config{})
	for _, s := range shapes {
		e.run("every direction, range and head of "+s.name, func(e *env) {
			c := e.chain(e.space(s.shape), 5).put(0, 5)
			for _, d := range directions {
				if d.ByLayer() && s.shape.Kind == skep.Opaque {
					continue
				}
				for _, x := range selections(s.shape, 5) {
					what := fmt.Sprintf("%v %+v", d, x)
					got := e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Direction: d, Blocks: x.blocks, Layers: x.layers, Heads: x.heads})
					want := x.places(s.shape, 5, d)
					require.Len(e, got, len(want), what)
					for at, p := range got {
						require.True(e, want[at], "%s: a piece of %+v", what, at)
						require.NoError(e, p.Err, what)
						bytes := c.payload(at.block)
						if s.shape.Kind != skep.Opaque {
							bytes = pick(bytes, asked(s.shape, at.layers, x.heads))
						}
						require.Equal(e, bytes, bytesOf(p), what)
						require.EqualValues(e, len(bytes), p.Bytes, what)
						require.NotEqual(e, skep.TierNone, p.Tier)
					}
				}
			}
		})
	}
	e.run("a block that is not there is a miss and fails nobody else", func(e *env) {
		for _, d := range directions {
			spec := specOf(hnd)
			spec.Chained = false
			c := e.chain(e.open(spec), 5)
			c.put(0, 2).put(3, 5)
			got := e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Direction: d})
			require.Len(e, got, len(selection{}.places(hnd, 5, d)))
			for at, p := range got {
				if at.block == 2 {
					requireGone(e, p.Err)
					require.Empty(e, p.bytes)
				} else {
					require.NoError(e, p.Err)
					require.Equal(e, pick(c.payload(at.block), asked(hnd, at.layers, skep.All)), p.bytes)
				}
			}
		}
	})
	e.run("a batch of chains of several namespaces, salts and shapes", func(e *env) {
		var chains []skep.Chain
		var of []*chain
		for i, s := range shapes {
			c := e.chain(e.space(s.shape), 4).salted(skep.Salt(fmt.Sprint(i/2))).put(0, 3)
			of = append(of, c)
			chains = append(chains, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: directions[i%2], Priority: i % 3})
		}
		got := e.restore(chains...)
		require.Len(e, got, 4*len(chains))
		for at, p := range got {
			if at.block == 3 {
				requireGone(e, p.Err)
				continue
			}
			require.NoError(e, p.Err)
			require.Equal(e, of[at.chain].payload(at.block), bytesOf(p))
		}
	})
	e.run("the same chain twice in a session", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(0, 3)
		one := skep.Chain{Scope: c.scope, Keys: c.keys}
		got := e.restore(one, one)
		require.Len(e, got, 6)
		for at, p := range got {
			require.NoError(e, p.Err)
			require.Equal(e, c.payload(at.block), p.bytes)
		}
	})
	e.run("what has not landed by its deadline is a miss", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(0, 3)
		for _, d := range directions {
			got := e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Direction: d, Deadline: time.Now().Add(-time.Minute)})
			require.Len(e, got, len(selection{}.places(hnd, 3, d)))
			for _, p := range got {
				requireKind(e, skep.Deadline, p.Err)
			}
		}
		for _, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Deadline: time.Now().Add(patience)}) {
			require.NoError(e, p.Err)
		}
	})
	e.run("a chain of no keys has no chunks", func(e *env) {
		c := e.chain(e.space(hnd), 0)
		require.Empty(e, e.restore(skep.Chain{Scope: c.scope}))
	})
}

func testDestinations(t *testing.T, open Open) {
	e := start(t, open, Config{})
	for _, s := range shapes {
		e.run("contiguous memory, "+s.name, func(e *env) {
			c := e.chain(e.space(s.shape), 5).put(0, 4)
			size := c.size()
			if s.shape.Kind == skep.Opaque && s.shape.Bytes == 0 {
				c.checkMemory(make([]byte, 5*(size+28)), int64(size+28), selection{}, skep.HeadFirst)
				return
			}
			round := (size + 4095) &^ 4095
			mem, err := e.st.Alloc(e.ctx, int64(5*round))
			require.NoError(e, err)
			defer mem.Release()
			for _, d := range directions {
				if d.ByLayer() && s.shape.Kind == skep.Opaque {
					continue
				}
				for _, x := range selections(s.shape, 5) {
					c.checkMemory(mem.Bytes(), 0, x, d)                                 // aligned, registered
					c.checkMemory(make([]byte, 5*round+1)[1:], 0, x, d)                 // misaligned
					c.checkMemory(make([]byte, 4*(size+13)+size), int64(size+13), x, d) // odd stride, no byte to spare
				}
			}
		})
		if s.shape.Kind == skep.Opaque {
			continue
		}
		for _, order := range []skep.AxisOrder{skep.HND, skep.NHD} {
			e.run(fmt.Sprintf("pages in order %v, %s", order, s.name), func(e *env) {
				c := e.chain(e.space(s.shape), 5).put(0, 4)
				for _, d := range directions {
					for _, x := range selections(s.shape, 5) {
						c.checkPaged(order, 0, x, d)
						c.checkPaged(order, 24, x, d)
					}
				}
			})
		}
	}
}

// checkMemory restores a selection of a chain whose last block is not stored into mem,
// and requires the asked-for bytes where they belong and no other byte touched: what
// lies next to them the engine may be computing at this moment. Only the padding that
// Stride 0 makes between blocks is the Store's to fill, as reads of whole 4 KiB do.
func (c *chain) checkMemory(mem []byte, stride int64, x selection, d skep.Direction) {
	c.e.Helper()
	shape, size := c.n.Shape, c.size()
	copy(mem, poison(len(mem)))
	step := int(stride)
	if step == 0 {
		step = (size + 4095) &^ 4095
	}
	got := c.e.restore(skep.Chain{
		Scope: c.scope, Keys: c.keys, Direction: d, Blocks: x.blocks, Layers: x.layers, Heads: x.heads,
		Dest: skep.Destination{Memory: mem, Stride: stride},
	})
	blocks, _ := x.blocks.In(len(c.keys))
	layers, _ := x.layers.In(shape.Layers)
	missed := c.requireLanded(got, x, d)
	want := poison(len(mem))
	for b := blocks.From; b < blocks.To; b++ {
		if stride == 0 {
			end := (b - blocks.From + 1) * step
			copy(want[end-step+size:end], mem[end-step+size:])
		}
		if missed[b] {
			// A miss leaves its destination undefined.
			off := (b - blocks.From) * step
			copy(want[off:off+size], mem[off:])
			continue
		}
		p := c.payload(b)
		mask := make([]bool, size)
		if shape.Kind != skep.Opaque {
			mask = asked(shape, layers, x.heads)
		}
		for i, ask := range mask {
			if ask || shape.Kind == skep.Opaque {
				want[(b-blocks.From)*step+i] = p[i]
			}
		}
	}
	c.requireSame(want, mem, fmt.Sprintf("%v %+v stride %d", d, x, stride))
}

// requireLanded requires one chunk a piece, without lent bytes, and gives the blocks
// that missed: the last, which is not stored, and no other.
func (c *chain) requireLanded(got map[place]piece, x selection, d skep.Direction) map[int]bool {
	c.e.Helper()
	missed := map[int]bool{}
	want := x.places(c.n.Shape, len(c.keys), d)
	require.Len(c.e, got, len(want))
	for at, p := range got {
		require.True(c.e, want[at], "a piece of %+v", at)
		require.Empty(c.e, p.Data, "bytes are lent only without a destination")
		if at.block == len(c.keys)-1 {
			requireGone(c.e, p.Err)
			missed[at.block] = true
		} else {
			require.NoError(c.e, p.Err)
		}
	}
	return missed
}

func (c *chain) requireSame(want, got []byte, what string) {
	c.e.Helper()
	for i := range want {
		if want[i] != got[i] {
			require.Failf(c.e, "wrong byte", "%s: byte %d of %d is %#x, want %#x", what, i, len(want), got[i], want[i])
		}
	}
}

// checkPaged is checkMemory for an engine's pages, handed out in a shuffled order.
func (c *chain) checkPaged(order skep.AxisOrder, spare int, x selection, d skep.Direction) {
	c.e.Helper()
	shape := c.n.Shape
	blocks, _ := x.blocks.In(len(c.keys))
	layers, _ := x.layers.In(shape.Layers)
	page := pageBytes(shape)
	stride, pages := page+spare, 2*len(c.keys)
	paged := &skep.Paged{Order: order, PageStride: int64(stride), Planes: make([][2][]byte, shape.Layers)}
	for i := range blocks.Len() {
		paged.Pages = append(paged.Pages, (3*i+7)%pages)
	}
	want := make([][2][]byte, shape.Layers)
	for l := range paged.Planes {
		for k := range planesOf(shape) {
			paged.Planes[l][k] = poison((pages-1)*stride + page)
			want[l][k] = poison(len(paged.Planes[l][k]))
		}
	}
	got := c.e.restore(skep.Chain{
		Scope: c.scope, Keys: c.keys, Direction: d, Blocks: x.blocks, Layers: x.layers, Heads: x.heads,
		Dest: skep.Destination{Paged: paged},
	})
	missed := c.requireLanded(got, x, d)
	for b := blocks.From; b < blocks.To; b++ {
		off := paged.Pages[b-blocks.From] * stride
		for l := layers.From; l < layers.To; l++ {
			for k := range planesOf(shape) {
				if missed[b] {
					copy(want[l][k][off:off+page], paged.Planes[l][k][off:])
				} else {
					fillPage(want[l][k][off:off+page], c.payload(b), shape, l, k, order, x.heads)
				}
			}
		}
	}
	for l := range want {
		for k := range planesOf(shape) {
			c.requireSame(want[l][k], paged.Planes[l][k], fmt.Sprintf("%v %+v layer %d plane %d", d, x, l, k))
		}
	}
}
