package layout

import (
	"fmt"
	"math"

	"github.com/skepkv/skep"
)

// MaxChunks bounds the chunks of one chain.
const MaxChunks = 1 << 22

// maxTokens is how long a chain may be for the two-pointer scheduler, which is asked only once the restore has begun.
const maxTokens = 1 << 30

// ChainPlan is one chain of a restore, checked against its namespace's shape: which chunks it comes in and in which
// order, which bytes of a part each of them is, and where those belong. Every Store plans its chains with it. It is
// made once and read by many; only Resolve changes it.
//
// Chunks have numbers that do not depend on the order in which they are loaded: in the block directions chunk i is
// the i-th block, in the layer directions each layer has a number for each block, lowest layer first.
//
//	block      0  1  2  3      0  1  2  3
//	layer 2    0  1  2  3      8  9 10 11
//	layer 1    |  |  |  |      4  5  6  7
//	layer 0    |  |  |  |      0  1  2  3
//	           by block        by layer
type ChainPlan struct {
	// Chain is what was asked for, with Part and the destination's Stride filled in.
	skep.Chain
	Blocks skep.Range // which of Keys
	Layers skep.Range // {0, 1} where the part has no layers
	// Geometry is that of the part; that of opaque bytes without a size where the part has no layers.
	Geometry Geometry
	// Structured says that the part has the shape's layers and heads.
	Structured bool
	// Size is the bytes of the part in every block, -1 where blocks may differ.
	Size int64
	// Gaps says that the caller left the stride to the Store, and with it the bytes between two blocks.
	Gaps bool
}

// PlanChain checks a chain of a namespace with the given shape. Errors are Invalid and name the field. A chain
// whose Direction is Auto stands as one by blocks until Resolve.
func PlanChain(c *skep.Chain, shape skep.Shape) (*ChainPlan, error) {
	p := &ChainPlan{Chain: *c, Size: -1}
	var ok bool
	if len(c.Keys) > skep.MaxChainKeys {
		return nil, invalidChain("keys", len(c.Keys), fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	if p.Blocks, ok = c.Blocks.In(len(c.Keys)); !ok {
		return nil, invalidChain("blocks", c.Blocks, fmt.Sprintf("within 0 to %d", len(c.Keys)))
	}
	if c.Direction > skep.Auto {
		return nil, invalidChain("direction", c.Direction, "head-first, tail-first, layers-up, layers-down or auto")
	}
	if err := c.ValidateCompute(); err != nil {
		return nil, err
	}
	if n := int64(p.Blocks.To) * int64(shape.BlockTokens); c.Compute != nil && n > maxTokens {
		return nil, invalidChain("tokens of a chain that says what computing costs", n, fmt.Sprintf("at most %d", maxTokens))
	}
	if p.Part == "" {
		p.Part = skep.PartKV
	}
	if len(p.Part) > skep.MaxPartNameSize {
		return nil, invalidChain("part name length in bytes", len(p.Part), fmt.Sprintf("at most %d", skep.MaxPartNameSize))
	}
	if err := p.checkRanges(shape); err != nil {
		return nil, err
	}
	if err := p.checkDestination(); err != nil {
		return nil, err
	}
	if p.Direction != skep.Auto {
		return p, p.checkChunks()
	}
	return p, nil
}

// Resolve turns Auto into the direction that was chosen. A plan with another Direction stays as it is.
func (p *ChainPlan) Resolve(d skep.Direction) error {
	if p.Direction != skep.Auto {
		return nil
	}
	if d != skep.TailFirst && d != skep.LayersDown || d.ByLayer() && !p.Structured {
		return invalidChain("direction", d, "tail-first, or layers-down where the part has layers")
	}
	q := *p
	q.Direction = d
	if err := q.checkChunks(); err != nil {
		return err
	}
	p.Direction = d
	return nil
}

func invalidChain(field string, value, limit any) error {
	return skep.Invalidf("restore", field, value, limit)
}

func (p *ChainPlan) checkChunks() error {
	if n := p.Chunks(); n > MaxChunks {
		return invalidChain("chunks (blocks × layers)", n, fmt.Sprintf("at most %d", MaxChunks))
	}
	return nil
}

// checkRanges finds the part's geometry and checks layers and heads.
func (p *ChainPlan) checkRanges(shape skep.Shape) (err error) {
	p.Structured = shape.Kind != skep.Opaque && p.Part == skep.PartKV
	if !p.Structured {
		if !p.Chain.Layers.IsAll() || !p.Heads.IsAll() || p.Direction.ByLayer() {
			return invalidChain("layers, heads and direction", "set",
				"whole blocks, head or tail first, where the part has no layers")
		}
		if p.Part == skep.PartKV && shape.Bytes > 0 {
			p.Size = shape.Bytes
		}
		p.Geometry, err = For(0)
		p.Layers = skep.Range{From: 0, To: 1}
		return err
	}
	if p.Geometry, err = Of(shape); err != nil {
		return err
	}
	p.Size = p.Geometry.PartBytes()
	layers := p.Chain.Layers
	var ok bool
	if p.Layers, ok = layers.In(p.Geometry.Layers()); !ok {
		return invalidChain("layers", layers, fmt.Sprintf("within 0 to %d", p.Geometry.Layers()))
	}
	if _, err := p.Geometry.ByteRange(nil, p.Layers.Subset(), KAndV, p.Heads, skep.All); err != nil {
		return &skep.Error{Op: "restore", Kind: skep.Invalid, Field: "heads", Value: p.Heads, Err: err,
			Limit: "heads of the shape, and all where a head is not contiguous"}
	}
	return nil
}

// checkDestination checks that the destination has room for everything that may be written to it.
func (p *ChainPlan) checkDestination() error {
	d := &p.Dest
	switch {
	case d.Memory != nil && d.Paged != nil:
		return invalidChain("destination", "memory and pages", "one of them")
	case d.Paged != nil:
		return p.checkPages()
	case d.Memory == nil:
		return nil
	}
	size := p.Size
	if size < 0 {
		if d.Stride <= 0 {
			return invalidChain("destination stride", d.Stride, "set, where parts have no fixed size")
		}
		size = d.Stride // blocks are compared with it one by one, as they are found
	}
	if d.Stride == 0 {
		d.Stride, p.Gaps = Padded(size), true
	}
	if d.Stride < size {
		return invalidChain("destination stride", d.Stride, fmt.Sprintf("at least %d", size))
	}
	n, have := int64(p.Blocks.Len()), int64(len(d.Memory))
	if n > 0 && (have < size || n > 1 && n-1 > (have-size)/d.Stride) {
		return invalidChain("destination size in bytes", have, fmt.Sprintf("at least (%d - 1) × %d + %d", n, d.Stride, size))
	}
	return nil
}

func (p *ChainPlan) checkPages() error {
	if !p.Structured {
		return invalidChain("destination", "pages", "memory, where the part has no layers")
	}
	d, slice := p.Dest.Paged, p.Geometry.SliceBytes()
	if len(d.Pages) != p.Blocks.Len() {
		return invalidChain("pages", len(d.Pages), fmt.Sprintf("one a block, %d", p.Blocks.Len()))
	}
	if d.Order != skep.HND && d.Order != skep.NHD {
		return invalidChain("page order", d.Order, "hnd or nhd")
	}
	if d.PageStride < slice {
		return invalidChain("page stride", d.PageStride, fmt.Sprintf("at least %d, the size of a page", slice))
	}
	if len(d.Planes) < p.Layers.To {
		return invalidChain("planes", len(d.Planes), fmt.Sprintf("at least %d", p.Layers.To))
	}
	room := int64(math.MaxInt64) // pages that fit into the smallest plane asked for
	for l := p.Layers.From; l < p.Layers.To; l++ {
		for k := range p.Geometry.SlicesPerLayer() {
			fit := int64(0)
			if have := int64(len(d.Planes[l][k])); have >= slice {
				fit = (have-slice)/d.PageStride + 1
			}
			room = min(room, fit)
		}
	}
	for _, n := range d.Pages {
		if n < 0 || int64(n) >= room {
			return invalidChain("page", n, fmt.Sprintf("0 to %d, what the planes hold", room-1))
		}
	}
	return nil
}

// Chunks is how many chunks the chain comes in.
func (p *ChainPlan) Chunks() int {
	if p.Direction.ByLayer() {
		return p.Blocks.Len() * p.Layers.Len()
	}
	return p.Blocks.Len()
}

// Chunk says of which block and layers chunk i is. It must be in 0 to Chunks()-1. Layers are the zero Range where
// the part has none.
func (p *ChainPlan) Chunk(i int) (block int, layers skep.Range) {
	n := p.Blocks.Len()
	switch {
	case !p.Structured:
		return p.Blocks.From + i, skep.Range{}
	case !p.Direction.ByLayer():
		return p.Blocks.From + i, p.Layers
	}
	l := p.Layers.From + i/n
	return p.Blocks.From + i%n, skep.Range{From: l, To: l + 1}
}

// DestOf is the part of the destination where blocks [from, to) go.
func (p *ChainPlan) DestOf(from, to int) (d skep.Destination) {
	from, to = from-p.Blocks.From, to-p.Blocks.From
	switch {
	case p.Dest.Paged != nil:
		paged := *p.Dest.Paged
		paged.Pages = paged.Pages[from:to]
		d.Paged = &paged
	case p.Dest.Memory != nil:
		end := min(int64(to)*p.Dest.Stride, int64(len(p.Dest.Memory)))
		d.Memory = p.Dest.Memory[int64(from)*p.Dest.Stride : end : end]
		if d.Stride = p.Dest.Stride; p.Gaps {
			d.Stride = 0 // what lies between two blocks is the Store's to fill, too
		}
	}
	return d
}

// Number is the inverse of Chunk; false when the chain has no such chunk.
func (p *ChainPlan) Number(block int, layers skep.Range) (int, bool) {
	i := block - p.Blocks.From
	if i < 0 || i >= p.Blocks.Len() {
		return 0, false
	}
	switch {
	case !p.Structured:
		return i, layers == skep.Range{}
	case !p.Direction.ByLayer():
		return i, layers == p.Layers
	}
	l := layers.From - p.Layers.From
	return l*p.Blocks.Len() + i, layers.Len() == 1 && l >= 0 && l < p.Layers.Len()
}

// InOrder is the chunk that is loaded as number turn, 0 to Chunks()-1. The directions that come from the far end are
// for engines that compute from the near one meanwhile, until the two meet.
//
//	block      0  1  2  3      0  1  2  3      0  1  2  3      0  1  2  3
//	layer 2    1  2  3  4      4  3  2  1      9 10 11 12      1  2  3  4
//	layer 1    |  |  |  |      |  |  |  |      5  6  7  8      5  6  7  8
//	layer 0    |  |  |  |      |  |  |  |      1  2  3  4      9 10 11 12
//	           HeadFirst       TailFirst       LayersUp        LayersDown
func (p *ChainPlan) InOrder(turn int) int {
	n := p.Blocks.Len()
	switch p.Direction {
	case skep.TailFirst:
		return n - 1 - turn
	case skep.LayersDown:
		return (p.Layers.Len()-1-turn/n)*n + turn%n
	}
	return turn
}

// Spans appends to dst the bytes of a part of the given size that a chunk of these layers is. Invalid when a part
// with layers has another size than its shape's.
func (p *ChainPlan) Spans(dst []Span, layers skep.Range, size int64) ([]Span, error) {
	if p.Size >= 0 && size != p.Size || size < 0 || size > skep.MaxPartBytes {
		return dst, invalidChain("part size in bytes", size, p.Size)
	}
	if !p.Structured {
		return appendSpan(dst, len(dst), Span{0, size}), nil
	}
	return p.Geometry.ByteRange(dst, layers.Subset(), KAndV, p.Heads, skep.All)
}

// Fits says whether the destination has room for a block whose part is of the given size; else what is wrong.
func (p *ChainPlan) Fits(size int64) error {
	if p.Dest.Memory != nil && size > p.Dest.Stride {
		return invalidChain("destination stride", p.Dest.Stride, fmt.Sprintf("at least %d, the size of the part", size))
	}
	return nil
}

// Transposed says that the destination's pages have another order than the part: rows are copied to where they
// belong one by one, and nothing can be read there directly.
func (p *ChainPlan) Transposed() bool {
	d, s := p.Dest.Paged, p.Geometry.Shape()
	return d != nil && s.Kind == skep.Attention && d.Order != s.Order
}

// Place appends to dst where bytes [off, off+n) of the block's part belong, in order. It is for chains with a
// destination whose pages are not Transposed; the range must lie in what the destination was checked for.
func (p *ChainPlan) Place(dst [][]byte, block int, off, n int64) [][]byte {
	if m := p.Dest.Memory; m != nil {
		off += int64(block-p.Blocks.From) * p.Dest.Stride
		return append(dst, m[off:off+n:off+n])
	}
	slice := p.Geometry.SliceBytes()
	for n > 0 {
		in := off % slice
		k := min(n, slice-in)
		dst = append(dst, p.page(block, off/slice)[in:in+k:in+k])
		off, n = off+k, n-k
	}
	return dst
}

// Places appends to dst where bytes [off, off+n) of a chunk of these spans belong, in order, as Place does.
func (p *ChainPlan) Places(dst [][]byte, block int, spans []Span, off, n int64) [][]byte {
	for _, s := range spans {
		if n == 0 {
			break
		}
		if off >= s.Len {
			off -= s.Len
			continue
		}
		k := min(s.Len-off, n)
		dst = p.Place(dst, block, s.Off+off, k)
		off, n = 0, n-k
	}
	return dst
}

// Copy copies the block's part from byte off on to where it belongs.
func (p *ChainPlan) Copy(block int, off int64, src []byte) {
	if m := p.Dest.Memory; m != nil {
		copy(m[int64(block-p.Blocks.From)*p.Dest.Stride+off:], src)
		return
	}
	if p.Transposed() {
		p.transpose(block, off, src)
		return
	}
	slice := p.Geometry.SliceBytes()
	for len(src) > 0 {
		n := copy(p.page(block, off/slice)[off%slice:], src)
		src, off = src[n:], off+int64(n)
	}
}

// transpose copies rows of one order to pages of the other: [head][token] to [token][head] or back.
func (p *ChainPlan) transpose(block int, off int64, src []byte) {
	slice, shape, row := p.Geometry.SliceBytes(), p.Geometry.Shape(), p.Geometry.dim
	inner, outer := int64(shape.BlockTokens), int64(shape.KVHeads) // inner: of the part's faster axis
	if shape.Order == skep.NHD {
		inner, outer = outer, inner
	}
	for len(src) > 0 {
		in := off % slice
		r := in / row
		to := (r%inner*outer+r/inner)*row + in%row
		n := copy(p.page(block, off/slice)[to:], src[:min(int64(len(src)), row-in%row)])
		src, off = src[n:], off+int64(n)
	}
}

// page is where a slice (a layer's K or V) of the block goes.
func (p *ChainPlan) page(block int, slice int64) []byte {
	d, n := p.Dest.Paged, p.Geometry.SlicesPerLayer()
	at := int64(d.Pages[block-p.Blocks.From]) * d.PageStride
	end := at + p.Geometry.SliceBytes()
	return d.Planes[slice/n][slice%n][at:end:end]
}
