package memstore

import "github.com/skepkv/skep"

// geometry is the arithmetic of one shape, in bytes. Its kv part is
//
//	[layer][plane][head][token][row]   HND
//	[layer][plane][token][head][row]   NHD
//
// with plane K, V (one plane for a latent), and row the HeadDim elements of one
// token and head. An opaque shape has no layers and only a part size.
//
// Package layout computes the same; this is a second opinion (see doc.go).
type geometry struct {
	layers, planes, heads, tokens int
	row                           int64 // bytes of one token of one head
	order                         skep.AxisOrder
	part                          int64 // bytes of the kv part; 0: any size
}

func geometryOf(s skep.Shape) geometry {
	g := geometry{tokens: s.BlockTokens, order: s.Order, part: s.Bytes}
	if s.Kind == skep.Opaque {
		return g
	}
	g.layers, g.planes, g.heads = s.Layers, 1, 1
	if s.Kind == skep.Attention {
		g.planes, g.heads = 2, s.KVHeads
	}
	g.row = int64(s.HeadDim) * int64(s.Element.Bits()) / 8
	g.part = int64(g.layers) * g.layer()
	return g
}

func (g geometry) head() int64  { return int64(g.tokens) * g.row }     // one head of a plane, HND
func (g geometry) plane() int64 { return int64(g.heads) * g.head() }   // one layer's K or V: a page
func (g geometry) layer() int64 { return int64(g.planes) * g.plane() } // one layer

// extent is bytes [off, off+len) of a part.
type extent struct{ off, len int64 }

// extents are the bytes of layers and heads within the kv part, in order. Either
// range is whole already (not the zero Range).
func (g geometry) extents(layers, heads skep.Range) []extent {
	if heads.Len() == g.heads {
		return []extent{{int64(layers.From) * g.layer(), int64(layers.Len()) * g.layer()}}
	}
	var e []extent
	for l := layers.From; l < layers.To; l++ {
		for p := 0; p < g.planes; p++ {
			off := int64(l)*g.layer() + int64(p)*g.plane() + int64(heads.From)*g.head()
			e = append(e, extent{off, int64(heads.Len()) * g.head()})
		}
	}
	return e
}

// rowAt is where the row of a head and token is within a plane of the given order.
func (g geometry) rowAt(o skep.AxisOrder, head, token int) int64 {
	if o == skep.NHD {
		return int64(token*g.heads+head) * g.row
	}
	return int64(head*g.tokens+token) * g.row
}

// fillPage copies heads of one plane, stored in the shape's order, into a page of
// the given order.
func (g geometry) fillPage(page, plane []byte, o skep.AxisOrder, heads skep.Range) {
	if o == g.order && heads.Len() == g.heads || g.heads == 1 {
		copy(page, plane)
		return
	}
	for h := heads.From; h < heads.To; h++ {
		for t := 0; t < g.tokens; t++ {
			copy(page[g.rowAt(o, h, t):][:g.row], plane[g.rowAt(g.order, h, t):])
		}
	}
}
