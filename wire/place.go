package wire

import (
	"fmt"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// target is one chain of a session as the client sees it: which pieces it will come in,
// and where each of their bytes belongs. It is arithmetic only.
type target struct {
	skep.Chain // with Blocks, Layers and the destination's stride filled in
	geometry   layout.Geometry
	shape      skep.Shape
	structured bool  // the part has layers and heads
	size       int64 // of the part; -1 when blocks differ
	gaps       bool  // the caller left the stride to the Store, and with it what lies between blocks
	either     bool  // Direction is not known yet: the server's Store chooses (either.go)
}

const opRestore = "restore"

// plan checks a chain as the Store would, so that bad input is refused before anything
// starts.
func plan(c *skep.Chain, n *skep.NamespaceInfo) (t *target, err error) {
	t = &target{Chain: *c, shape: n.Shape, size: -1}
	var ok bool
	if len(c.Keys) > skep.MaxChainKeys {
		return nil, skep.Invalidf(opRestore, "keys", len(c.Keys), fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	if t.Blocks, ok = c.Blocks.Within(len(c.Keys)); !ok {
		return nil, skep.Invalidf(opRestore, "blocks", c.Blocks, fmt.Sprintf("within 0 to %d", len(c.Keys)))
	}
	if c.Direction > skep.EitherWay {
		return nil, skep.Invalidf(opRestore, "direction", c.Direction, "head-first, tail-first, layers-up, layers-down or either-way")
	}
	if err := c.ValidateCompute(); err != nil {
		return nil, err
	}
	if t.Part == "" {
		t.Part = skep.PartKV
	}
	t.structured = t.shape.Kind != skep.Opaque && t.Part == skep.PartKV
	if !t.structured {
		if !c.Layers.All() || !c.Heads.All() || c.Direction.ByLayer() {
			return nil, skep.Invalidf(opRestore, "layers, heads and direction", "set", "whole blocks, head or tail first, where the part has no layers")
		}
		if t.Part == skep.PartKV && t.shape.Bytes > 0 {
			t.size = t.shape.Bytes
		}
		t.settle()
		return t, t.checkDestination()
	}
	if t.geometry, err = layout.Of(t.shape); err != nil {
		return nil, err
	}
	t.size = t.geometry.PartBytes()
	if t.Layers, ok = c.Layers.Within(t.geometry.Layers()); !ok {
		return nil, skep.Invalidf(opRestore, "layers", c.Layers, fmt.Sprintf("within 0 to %d", t.geometry.Layers()))
	}
	t.settle()
	if _, err := t.geometry.ByteRange(nil, t.Layers, layout.KAndV, t.Heads, skep.Range{}); err != nil {
		return nil, &skep.Error{Op: opRestore, Kind: skep.Invalid, Field: "heads", Value: t.Heads, Limit: "heads of the shape, in HND order", Err: err}
	}
	return t, t.checkDestination()
}

func (t *target) checkDestination() error {
	d := &t.Dest
	switch {
	case d.Memory != nil && d.Paged != nil:
		return skep.Invalidf(opRestore, "destination", "memory and pages", "one of them")
	case d.Paged != nil:
		return t.checkPages()
	case d.Memory == nil:
		return nil
	}
	size := t.size
	if size < 0 {
		if d.Stride <= 0 {
			return skep.Invalidf(opRestore, "destination stride", d.Stride, "set, where parts have no fixed size")
		}
		size = d.Stride
	}
	if d.Stride == 0 {
		d.Stride, t.gaps = layout.Padded(size), true
	}
	if d.Stride < size {
		return skep.Invalidf(opRestore, "destination stride", d.Stride, fmt.Sprintf("at least %d", size))
	}
	if n, have := int64(t.Blocks.Len()), int64(len(d.Memory)); n > 0 && (have < size || n > 1 && n-1 > (have-size)/d.Stride) {
		return skep.Invalidf(opRestore, "destination size in bytes", have, fmt.Sprintf("at least (%d - 1) × %d + %d", n, d.Stride, size))
	}
	return nil
}

func (t *target) checkPages() error {
	p := t.Dest.Paged
	if !t.structured {
		return skep.Invalidf(opRestore, "destination", "pages", "memory, where the part has no layers")
	}
	if len(p.Pages) != t.Blocks.Len() {
		return skep.Invalidf(opRestore, "pages", len(p.Pages), fmt.Sprintf("one a block, %d", t.Blocks.Len()))
	}
	if p.Order != skep.HND && p.Order != skep.NHD {
		return skep.Invalidf(opRestore, "page order", p.Order, "hnd or nhd")
	}
	page := t.geometry.SliceBytes()
	if p.PageStride < page {
		return skep.Invalidf(opRestore, "page stride", p.PageStride, fmt.Sprintf("at least %d", page))
	}
	if len(p.Planes) < t.Layers.To {
		return skep.Invalidf(opRestore, "planes", len(p.Planes), fmt.Sprintf("at least %d", t.Layers.To))
	}
	room := int64(1) << 62
	for l := t.Layers.From; l < t.Layers.To; l++ {
		for k := range t.tensors() {
			fit := int64(0)
			if have := int64(len(p.Planes[l][k])); have >= page {
				fit = (have-page)/p.PageStride + 1
			}
			room = min(room, fit)
		}
	}
	for _, n := range p.Pages {
		if n < 0 || int64(n) >= room {
			return skep.Invalidf(opRestore, "page", n, fmt.Sprintf("0 to %d", room-1))
		}
	}
	return nil
}

// tensors is how many planes a layer has: K and V, or one.
func (t *target) tensors() int {
	if t.shape.Kind == skep.Attention {
		return 2
	}
	return 1
}

// items is how many chunks the chain comes in.
func (t *target) items() int {
	n := t.Blocks.Len()
	if t.Direction.ByLayer() {
		n *= t.Layers.Len()
	}
	return n
}

// item is the number of the chunk that is of a block and layers; false when the chain
// has no such chunk.
func (t *target) item(block int, layers skep.Range) (int, bool) {
	i := block - t.Blocks.From
	if i < 0 || i >= t.Blocks.Len() {
		return 0, false
	}
	switch {
	case !t.structured:
		return i, layers == skep.Range{}
	case !t.Direction.ByLayer():
		return i, layers == t.Layers
	}
	l := layers.From - t.Layers.From
	return l*t.Blocks.Len() + i, layers.Len() == 1 && l >= 0 && l < t.Layers.Len()
}

// itemAt is what item number i is of.
func (t *target) itemAt(i int) (block int, layers skep.Range) {
	n := t.Blocks.Len()
	switch {
	case !t.structured:
		return t.Blocks.From + i, skep.Range{}
	case !t.Direction.ByLayer():
		return t.Blocks.From + i, t.Layers
	}
	l := t.Layers.From + i/n
	return t.Blocks.From + i%n, skep.Range{From: l, To: l + 1}
}

// spans are the bytes of the part that a chunk of so many bytes is.
func (t *target) spans(layers skep.Range, bytes int64) ([]layout.Span, error) {
	if !t.structured {
		if bytes > skep.MaxPartBytes || t.size >= 0 && bytes != t.size {
			return nil, broken("bytes of a chunk", bytes, t.size)
		}
		return []layout.Span{{Off: 0, Len: bytes}}, nil
	}
	spans, err := t.geometry.ByteRange(nil, layers, layout.KAndV, t.Heads, skep.Range{})
	if err != nil {
		return nil, err
	}
	var n int64
	for _, s := range spans {
		n += s.Len
	}
	if n != bytes {
		return nil, broken("bytes of a chunk", bytes, n)
	}
	return spans, nil
}

// direct says whether bytes can be read from the connection straight to where they
// belong: pages of another order are filled row by row.
func (t *target) direct() bool {
	p := t.Dest.Paged
	return p == nil || t.shape.Kind != skep.Attention || p.Order == t.shape.Order
}

// places are where bytes [off, off+n) of a chunk of these spans belong.
func (t *target) places(dst [][]byte, block int, spans []layout.Span, off, n int64) [][]byte {
	for _, s := range spans {
		if n == 0 {
			break
		}
		if off >= s.Len {
			off -= s.Len
			continue
		}
		k := min(s.Len-off, n)
		dst = t.run(dst, block, s.Off+off, k)
		off, n = 0, n-k
	}
	return dst
}

// run is where the part's bytes [at, at+n) belong.
func (t *target) run(dst [][]byte, block int, at, n int64) [][]byte {
	i := int64(block - t.Blocks.From)
	if m := t.Dest.Memory; m != nil {
		at += i * t.Dest.Stride
		return append(dst, m[at:at+n:at+n])
	}
	slice := t.geometry.SliceBytes()
	for n > 0 {
		k := min(n, slice-at%slice)
		page := t.page(int(i), at/slice)
		dst = append(dst, page[at%slice:at%slice+k])
		at, n = at+k, n-k
	}
	return dst
}

// page is where slice number s of the i-th block goes.
func (t *target) page(i int, s int64) []byte {
	p, n := t.Dest.Paged, int64(t.tensors())
	at := int64(p.Pages[i]) * p.PageStride
	return p.Planes[s/n][s%n][at : at+t.geometry.SliceBytes()]
}

// transpose copies the part's bytes from at on to pages of the other order, row by row.
func (t *target) transpose(block int, at int64, src []byte) {
	slice := t.geometry.SliceBytes()
	row := int64(t.shape.HeadDim) * int64(t.shape.Element.Bits()) / 8
	inner, outer := int64(t.shape.BlockTokens), int64(t.shape.KVHeads)
	if t.shape.Order == skep.NHD {
		inner, outer = outer, inner
	}
	for len(src) > 0 {
		in := at % slice
		r := in / row
		to := (r%inner*outer+r/inner)*row + in%row
		page := t.page(block-t.Blocks.From, at/slice)
		k := copy(page[to:], src[:min(int64(len(src)), row-in%row)])
		src, at = src[k:], at+int64(k)
	}
}
