package store

import (
	"fmt"
	"math"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
)

// plan checks a restore request and makes the session's chains. It does no I/O.
func (ses *session) plan(r *skep.RestoreRequest) error {
	const op = "restore"
	if len(r.Chains) < 1 || len(r.Chains) > skep.MaxChains {
		return skep.Invalidf(op, "chains", len(r.Chains), fmt.Sprintf("1 to %d", skep.MaxChains))
	}
	planned := 0
	for i := range r.Chains {
		if r.Chains[i].Compute != nil {
			planned++
		}
	}
	for i := range r.Chains {
		c, err := ses.s.planChain(&r.Chains[i], planned-1)
		if err != nil {
			return err
		}
		c.index = i
		ses.chains = append(ses.chains, c)
		ses.left += c.left
	}
	return ses.tieBoundaries()
}

// planChain checks a chain. beside is how many others of its session say what computing costs.
func (s *Store) planChain(in *skep.Chain, beside int) (*chain, error) {
	const op = "restore"
	copied := *in
	c := &chain{Chain: &copied, priority: in.Priority, deadline: in.Deadline}
	var err error
	if c.ns, c.tag, err = s.names.resolve(op, in.Scope); err != nil {
		return nil, err
	}
	if len(in.Keys) > skep.MaxChainKeys {
		return nil, skep.Invalidf(op, "keys", len(in.Keys), fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	var ok bool
	if c.blocks, ok = in.Blocks.Within(len(in.Keys)); !ok {
		return nil, skep.Invalidf(op, "blocks", in.Blocks, fmt.Sprintf("within 0 to %d", len(in.Keys)))
	}
	if in.Direction > skep.EitherWay {
		return nil, skep.Invalidf(op, "direction", in.Direction, "head-first, tail-first, layers-up, layers-down or either-way")
	}
	if err := in.ValidateCompute(); err != nil {
		return nil, err
	}
	if c.part = in.Part; c.part == "" {
		c.part = skep.PartKV
	}
	if len(c.part) > skep.MaxPartNameSize {
		return nil, skep.Invalidf(op, "part name length in bytes", len(c.part), skep.MaxPartNameSize)
	}
	shape := c.ns.info.Shape
	structured := shape.Kind != skep.Opaque && c.part == skep.PartKV
	c.geometry = c.ns.geometry
	if !structured {
		if c.geometry, err = layout.For(0); err != nil {
			return nil, err
		}
		if !in.Layers.All() || !in.Heads.All() || in.Direction.ByLayer() {
			return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "layers, heads and direction",
				Value: "set", Limit: "whole blocks, head or tail first, where the part has no layers"}
		}
	}
	if c.layers, ok = in.Layers.Within(c.geometry.Layers()); !ok {
		return nil, skep.Invalidf(op, "layers", in.Layers, fmt.Sprintf("within 0 to %d", c.geometry.Layers()))
	}
	if _, err = c.geometry.ByteRange(nil, c.layers, layout.KAndV, in.Heads, skep.Range{}); err != nil {
		if structured {
			return nil, asInvalid(op, "heads", in.Heads, err)
		}
	}
	c.heads = in.Heads
	if err := c.checkDestination(structured); err != nil {
		return nil, err
	}
	n := c.blocks.Len()
	c.structured = structured
	if c.Direction == skep.EitherWay {
		if c.Direction, err = s.two.choose(c, beside); err != nil {
			return nil, err
		}
	}
	c.byLayer = c.Direction.ByLayer()
	_, _, c.boundary = skep.BoundaryOf(c.part)
	if c.byLayer {
		n *= c.layers.Len()
	}
	if n > maxChunks {
		return nil, skep.Invalidf(op, "chunks (blocks × layers)", n, fmt.Sprintf("at most %d", maxChunks))
	}
	c.items = make([]uint8, n)
	c.left = n
	c.found = make([]*found, c.blocks.Len())
	c.touched = make([]bool, c.blocks.Len())
	c.promised = s.leases.covered(c.Lease, c, s, s.now())
	return c, nil
}

// maxChunks bounds the chunks of one chain.
const maxChunks = 1 << 22

func asInvalid(op, field string, value any, err error) error {
	if skep.KindOf(err) == skep.Unsupported {
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: field, Value: value, Limit: "all heads, where a head is not contiguous", Err: err}
	}
	return err
}

// checkDestination checks that the chain's destination is large enough for anything
// that may be written to it.
func (c *chain) checkDestination(structured bool) error {
	const op = "restore"
	d := &c.Dest
	blocks := int64(c.blocks.Len())
	switch {
	case d.Memory != nil && d.Paged != nil:
		return skep.Invalidf(op, "destination", "memory and paged", "one of them")
	case d.Memory != nil:
		size := c.ns.partSize(c.part)
		if size < 0 {
			if d.Stride <= 0 {
				return skep.Invalidf(op, "destination stride", d.Stride, "set, where parts have no fixed size")
			}
			size = d.Stride
		}
		if d.Stride == 0 {
			c.fillGaps = true
			d.Stride = int64(pagesOf(size)) * layout.PageSize
		}
		if d.Stride < size {
			return skep.Invalidf(op, "destination stride", d.Stride, fmt.Sprintf("at least %d", size))
		}
		if blocks > 1 && d.Stride > (math.MaxInt64-size)/(blocks-1) {
			return skep.Invalidf(op, "destination stride", d.Stride, fmt.Sprintf("at most the destination's size, %d", len(d.Memory)))
		}
		if need := (blocks-1)*d.Stride + size; int64(len(d.Memory)) < need {
			return skep.Invalidf(op, "destination size in bytes", len(d.Memory), fmt.Sprintf("at least %d", need))
		}
	case d.Paged != nil:
		if !structured {
			return skep.Invalidf(op, "destination", "paged", "memory, where the part has no layers")
		}
		return c.checkPaged(d.Paged)
	}
	return nil
}

func (c *chain) checkPaged(p *skep.Paged) error {
	const op = "restore"
	shape := c.ns.info.Shape
	if len(p.Pages) != c.blocks.Len() {
		return skep.Invalidf(op, "pages", len(p.Pages), fmt.Sprintf("one a block, %d", c.blocks.Len()))
	}
	if p.Order != skep.HND && p.Order != skep.NHD {
		return skep.Invalidf(op, "page order", p.Order, "hnd or nhd")
	}
	slice := c.geometry.SliceBytes()
	if p.PageStride < slice {
		return skep.Invalidf(op, "page stride", p.PageStride, fmt.Sprintf("at least %d", slice))
	}
	if len(p.Planes) < c.layers.To {
		return skep.Invalidf(op, "planes", len(p.Planes), fmt.Sprintf("at least %d", c.layers.To))
	}
	if p.Order != shape.Order && shape.Kind == skep.Attention && shape.Element.Bits()%8 != 0 && shape.HeadDim*shape.Element.Bits()%8 != 0 {
		return skep.Invalidf(op, "page order", p.Order, shape.Order)
	}
	last := 0
	for _, page := range p.Pages {
		if page < 0 {
			return skep.Invalidf(op, "page", page, "0 or more")
		}
		last = max(last, page)
	}
	tensors := 2
	if shape.Kind == skep.Latent {
		tensors = 1
	}
	for l := c.layers.From; l < c.layers.To; l++ {
		for kv := range tensors {
			have := int64(len(p.Planes[l][kv]))
			if int64(last) > (have-slice)/p.PageStride || have < slice {
				return skep.Invalidf(op, "page", last, fmt.Sprintf("within plane %d, which holds %d pages", l, max(0, (have-slice)/p.PageStride+1)))
			}
		}
	}
	return nil
}

// itemOf says which block and layers chunk i is.
func (c *chain) itemOf(i int) (block int, layers skep.Range) {
	if !c.byLayer {
		return c.blocks.From + i, c.layers
	}
	n := c.blocks.Len()
	l := c.layers.From + i/n
	return c.blocks.From + i%n, skep.Range{From: l, To: l + 1}
}

// at is the item at position p of the chain's direction.
func (c *chain) at(p int) int {
	n := c.blocks.Len()
	switch c.Direction {
	case skep.TailFirst:
		return len(c.items) - 1 - p
	case skep.LayersDown:
		return (c.layers.Len()-1-p/n)*n + p%n
	}
	return p
}

func (c *chain) fingerprintOf(s *Store, block int) index.Fingerprint {
	return s.names.fingerprint(c.ns.instance, c.tag, c.Keys[block])
}
