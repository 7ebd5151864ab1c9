// Package slots says where the bytes of a block go in an engine's paged KV cache, whose pages
// may hold another number of tokens than skep's blocks, in another order of axes, with K and V
// apart or beside each other. Pure: no I/O, no memory.
//
//	page of a plane   NHD [token][head][dim]   (vLLM's and SGLang's)
//	                  HND [head][token][dim]   (FlashInfer's, TensorRT-LLM's)
//	slot              page x tokens of a page + token: what engines keep for each token
package slots

import (
	"fmt"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Pages describe a plane of an engine's cache: one layer's K or V, or the latent.
type Pages struct {
	Order  skep.AxisOrder
	Tokens int   // of a page
	Stride int64 // bytes from one page to the next: larger than a page where K and V lie beside each other
	Bytes  int64 // of the plane, from the first page's first byte to the last one's last
}

// Run is Len bytes that lie together in the block and in the plane.
type Run struct{ From, To, Len int64 }

// maxPage is the most tokens of a page.
const maxPage = 1 << 16

// Validate says what does not fit. Invalid names it.
func (p Pages) Validate(g layout.Geometry) error {
	const op = "paged KV"
	s := g.Shape()
	switch {
	case s.Kind == skep.Opaque:
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "shape", Value: s.Kind, Limit: "attention or latent"}
	case p.Order != skep.HND && p.Order != skep.NHD:
		return skep.Invalidf(op, "order", p.Order, "hnd or nhd")
	case p.Tokens < 1 || p.Tokens > maxPage:
		return skep.Invalidf(op, "tokens of a page", p.Tokens, fmt.Sprintf("1 to %d", maxPage))
	case p.Bytes < p.page(g):
		return skep.Invalidf(op, "bytes of a plane", p.Bytes, fmt.Sprintf("at least a page, %d", p.page(g)))
	case p.Stride < p.page(g):
		return skep.Invalidf(op, "stride of pages", p.Stride, fmt.Sprintf("at least a page, %d", p.page(g)))
	}
	return nil
}

// vector is one token's bytes of one head.
func vector(g layout.Geometry) int64 {
	s := g.Shape()
	return g.SliceBytes() / int64(s.BlockTokens) / int64(max(s.KVHeads, 1))
}

func (p Pages) page(g layout.Geometry) int64 {
	return g.SliceBytes() / int64(g.Shape().BlockTokens) * int64(p.Tokens)
}

// Runs appends the runs of one layer's K or V of a block to those slots, one for each of the
// block's leading tokens. A slot below 0 is a token that goes nowhere. The pages have been
// validated; a slot beyond the plane is Invalid.
func (p Pages) Runs(dst []Run, g layout.Geometry, layer int, v bool, slots []int64) ([]Run, error) {
	s := g.Shape()
	if len(slots) > s.BlockTokens {
		return dst, skep.Invalidf("paged KV", "slots of a block", len(slots), fmt.Sprintf("at most %d", s.BlockTokens))
	}
	base, dim, heads := len(dst), vector(g), max(s.KVHeads, 1)
	one := func(token, head int) error {
		slot := slots[token]
		if slot < 0 {
			return nil
		}
		page, in := slot/int64(p.Tokens), slot%int64(p.Tokens)
		if page > (p.Bytes-p.page(g))/p.Stride {
			return skep.Invalidf("paged KV", "slot", slot, fmt.Sprintf("at most %d", ((p.Bytes-p.page(g))/p.Stride+1)*int64(p.Tokens)-1))
		}
		from, err := g.Offset(layout.Position{Layer: layer, V: v, Head: head, Token: token})
		if err != nil {
			return err
		}
		at := int64(head)*int64(p.Tokens) + in
		if p.Order == skep.NHD {
			at = in*int64(heads) + int64(head)
		}
		r := Run{from, page*p.Stride + at*dim, dim}
		if n := len(dst); n > base && dst[n-1].From+dst[n-1].Len == r.From && dst[n-1].To+dst[n-1].Len == r.To {
			dst[n-1].Len += dim
		} else {
			dst = append(dst, r)
		}
		return nil
	}
	outer, inner := heads, len(slots)
	if p.Order == skep.NHD {
		outer, inner = inner, outer
	}
	for i := range outer {
		for j := range inner {
			token, head := j, i
			if p.Order == skep.NHD {
				token, head = i, j
			}
			if err := one(token, head); err != nil {
				return dst, err
			}
		}
	}
	return dst, nil
}
