package layout

import (
	"fmt"

	"github.com/skepkv/skep"
)

// Span is Len bytes from Off.
type Span struct{ Off, Len int64 }

// End is the first byte after the span.
func (s Span) End() int64 { return s.Off + s.Len }

// KV says which of a layer's two tensors is meant.
type KV uint8

const (
	KAndV KV = 0
	KOnly KV = 1
	VOnly KV = 2
)

// Geometry is the byte arithmetic of the part that holds a block's K and V. It is
// a value; make it with Of or For.
type Geometry struct {
	shape skep.Shape
	part  int64 // bytes of the whole part, without padding
	slice int64 // of one (layer, K or V); of one layer in a latent shape; the part in an opaque one
	head  int64 // of one head of a slice (HND)
	row   int64 // of one token: of a head (HND), of all heads (NHD), of the latent
	dim   int64 // of one token of one head
}

// Of is the geometry of s. An Opaque shape with Bytes 0 has no size of its own:
// its PartBytes is 0, and For gives the geometry of each of its blocks.
func Of(s skep.Shape) (Geometry, error) {
	if err := s.Validate(); err != nil {
		return Geometry{}, err
	}
	g := Geometry{shape: s}
	if s.Kind == skep.Opaque {
		g.part, g.slice = s.Bytes, s.Bytes
		return g, nil
	}
	g.dim = int64(s.HeadDim) * int64(s.Element.Bits()) / 8
	tokens := int64(s.BlockTokens)
	switch {
	case s.Kind == skep.Latent:
		g.row, g.slice = g.dim, g.dim*tokens
	case s.Order == skep.NHD:
		g.row, g.slice = g.dim*int64(s.KVHeads), g.dim*int64(s.KVHeads)*tokens
	default:
		g.row, g.head = g.dim, g.dim*tokens
		g.slice = g.head * int64(s.KVHeads)
	}
	g.part = g.slice * g.SlicesPerLayer() * int64(s.Layers)
	return g, nil
}

// For is the geometry of opaque bytes of the given size, 0 to skep.MaxPartBytes.
func For(size int64) (Geometry, error) {
	if size < 0 || size > skep.MaxPartBytes {
		return Geometry{}, skep.Invalidf("layout", "part size in bytes", size, fmt.Sprintf("0 to %d", int64(skep.MaxPartBytes)))
	}
	return Geometry{shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1, Bytes: size}, part: size, slice: size}, nil
}

// Shape is what the geometry was made of.
func (g Geometry) Shape() skep.Shape { return g.shape }

// PartBytes is the size of the part, without the padding it gets on a device.
func (g Geometry) PartBytes() int64 { return g.part }

// LayerBytes is the size of one layer: K and V, or the latent. An opaque part is one layer.
func (g Geometry) LayerBytes() int64 { return g.slice * g.SlicesPerLayer() }

// SliceBytes is the size of one layer's K or V; of a layer where there is no K and V.
func (g Geometry) SliceBytes() int64 { return g.slice }

// MBlock is SwiftCache's M_block (eq. 1), the memory of one block at one layer:
// 2 · B · Hkv · Dkv · dtype. Without K and V the factor 2 is not there.
func (g Geometry) MBlock() int64 { return g.LayerBytes() }

// TokenBytes is what one token takes over all layers (SwiftCache, Table 2); the
// whole part divided by B for an opaque one, rounded up.
func (g Geometry) TokenBytes() int64 { return ceil(g.part, int64(max(g.shape.BlockTokens, 1))) }

// Layers is how many layers the part has, 1 for an opaque one.
func (g Geometry) Layers() int { return max(g.shape.Layers, 1) }

// SlicesPerLayer is how many tensors a layer has: K and V, or one.
func (g Geometry) SlicesPerLayer() int64 {
	if g.shape.Kind == skep.Attention {
		return 2
	}
	return 1
}

// ByteRange appends to dst where the chosen layers, K or V, heads and tokens lie in
// the part: ascending, disjoint, and merged where they touch. What lies outside the
// shape is Invalid. Choosing heads needs the HND order
// (Unsupported otherwise: in NHD a head is scattered token by token); a latent has
// neither heads nor K and V; an opaque part only has a whole.
func (g Geometry) ByteRange(dst []Span, layers skep.Subset, kv KV, heads, tokens skep.Subset) ([]Span, error) {
	const op = "byte range"
	s := g.shape
	if kv > VOnly {
		return dst, skep.Invalidf(op, "k or v", kv, "both, k or v")
	}
	if s.Kind != skep.Attention && (kv != KAndV || !heads.IsAll()) {
		return dst, unsupported(op, "heads, k and v", s.Kind)
	}
	if s.Kind == skep.Opaque && (!layers.IsAll() && layers != skep.Only(0, 1) || !tokens.IsAll()) {
		return dst, unsupported(op, "layers and tokens", s.Kind)
	}
	nl, ok := layers.In(g.Layers())
	if !ok {
		return dst, skep.Invalidf(op, "layers", layers, fmt.Sprintf("in 0 to %d", g.Layers()))
	}
	if s.Kind == skep.Opaque {
		return appendSpan(dst, len(dst), Span{0, g.part}), nil
	}
	nh, ok := heads.In(max(s.KVHeads, 1))
	if !ok {
		return dst, skep.Invalidf(op, "heads", heads, fmt.Sprintf("in 0 to %d", s.KVHeads))
	}
	nt, ok := tokens.In(s.BlockTokens)
	if !ok {
		return dst, skep.Invalidf(op, "tokens", tokens, fmt.Sprintf("in 0 to %d", s.BlockTokens))
	}
	if s.Order == skep.NHD && nh.Len() != s.KVHeads {
		return dst, unsupported(op, "heads", s.Order)
	}

	base := len(dst)
	first, last := int64(0), g.SlicesPerLayer()-1
	switch kv {
	case KOnly:
		last = 0
	case VOnly:
		first = 1
	}
	run := Span{int64(nt.From) * g.row, int64(nt.Len()) * g.row} // of the tokens in a head or slice
	for l := nl.From; l < nl.To; l++ {
		for i := first; i <= last; i++ {
			at := (int64(l)*g.SlicesPerLayer() + i) * g.slice
			if g.head == 0 {
				dst = appendSpan(dst, base, Span{at + run.Off, run.Len})
				continue
			}
			if nt.Len() == s.BlockTokens { // the usual case: whole heads touch
				dst = appendSpan(dst, base, Span{at + int64(nh.From)*g.head, int64(nh.Len()) * g.head})
				continue
			}
			for h := nh.From; h < nh.To; h++ {
				dst = appendSpan(dst, base, Span{at + int64(h)*g.head + run.Off, run.Len})
			}
		}
	}
	return dst, nil
}

// appendSpan appends s or lengthens the span before it, but none before base.
func appendSpan(dst []Span, base int, s Span) []Span {
	if s.Len == 0 {
		return dst
	}
	if n := len(dst); n > base && dst[n-1].End() == s.Off {
		dst[n-1].Len += s.Len
		return dst
	}
	return append(dst, s)
}

// Position is where a byte of the part belongs. Head is 0 in a latent; in an
// opaque part only Byte is used.
type Position struct {
	Layer int
	V     bool // of the V tensor; false: K, or a latent
	Head  int
	Token int
	Byte  int64 // within the token's vector of that head
}

// Locate says what the byte at offset is. Invalid when it is outside the part.
func (g Geometry) Locate(offset int64) (Position, error) {
	if offset < 0 || offset >= g.part {
		return Position{}, skep.Invalidf("locate", "offset", offset, fmt.Sprintf("0 to %d", g.part-1))
	}
	if g.shape.Kind == skep.Opaque {
		return Position{Byte: offset}, nil
	}
	slice, in := offset/g.slice, offset%g.slice
	p := Position{
		Layer: int(slice / g.SlicesPerLayer()),
		V:     slice%g.SlicesPerLayer() == 1,
		Byte:  in % g.dim,
	}
	if g.head > 0 {
		p.Head, p.Token = int(in/g.head), int(in%g.head/g.row)
	} else {
		p.Token, p.Head = int(in/g.row), int(in%g.row/g.dim)
	}
	return p, nil
}

// Offset is the inverse of Locate. Invalid when the position is outside the shape.
func (g Geometry) Offset(p Position) (int64, error) {
	const op = "offset"
	s := g.shape
	if s.Kind == skep.Opaque {
		if p.Byte < 0 || p.Byte >= g.part || p != (Position{Byte: p.Byte}) {
			return 0, skep.Invalidf(op, "position", p, fmt.Sprintf("byte 0 to %d", g.part-1))
		}
		return p.Byte, nil
	}
	in := func(v, n int) bool { return v >= 0 && v < n }
	if !in(p.Layer, s.Layers) || !in(p.Head, max(s.KVHeads, 1)) || !in(p.Token, s.BlockTokens) ||
		p.Byte < 0 || p.Byte >= g.dim || p.V && s.Kind != skep.Attention {
		return 0, skep.Invalidf(op, "position", p, "inside the shape")
	}
	slice := int64(p.Layer) * g.SlicesPerLayer()
	if p.V {
		slice++
	}
	at := slice*g.slice + int64(p.Token)*g.row + p.Byte
	if g.head > 0 {
		return at + int64(p.Head)*g.head, nil
	}
	return at + int64(p.Head)*g.dim, nil
}

func unsupported(op, field string, of any) error {
	return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "choosing " + field, Limit: "left out in this shape", Err: fmt.Errorf("shape is %v", of)}
}

func ceil[T int | int64](a, b T) T { return (a + b - 1) / b }
