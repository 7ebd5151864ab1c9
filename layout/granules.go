package layout

import (
	"fmt"

	"github.com/skepkv/skep"
)

const (
	granuleMin       = 4 << 10  // smaller slices are joined until they reach it
	granuleMax       = 64 << 10 // larger slices are split until they fit
	maxOpaqueGranule = 256
	// MaxGranules is the most granules a part has, so a granule table of 64-bit
	// checksums is at most 16 KiB.
	MaxGranules = 2048
)

// Granules cuts a part into what one checksum covers. The part is a row of periods
// (the last one maybe shorter), and each period is cut every Stride bytes, its last
// granule maybe shorter:
//
//	|<------------- Period ------------->|<------------- Period --------- …
//	|<-- Stride -->|<-- Stride -->|rest  |<-- Stride -->|
//	   granule 0      granule 1     2        granule 3
//
// Most parts have Period == Stride: one slice is one granule. What GranulesOf
// returns is part of the stored format and never changes for the same arguments.
type Granules struct {
	Part   int64 // bytes of the part
	Period int64 // 1 or more
	Stride int64 // 1 to Period
}

// GranulesOf is how a part of the given name and size is checked. A "kv" part of
// exactly the shape's size is cut along its tensors:
//
//	slice (one layer's K or V, or latent) of 4 to 64 KiB   the slice
//	larger    equal groups of whole heads (HND) or tokens (NHD, latent) of at most 64 KiB;
//	          a head above 64 KiB: groups of its tokens; a token above: pieces of it
//	smaller   as many successive slices as reach 4 KiB
//
// Any other part is opaque bytes: 64 KiB, doubled until 256 granules are enough.
// A part of less than 4 KiB is one granule. Where the 64 KiB would give more than
// MaxGranules (parts of more than about 64 MiB) they are doubled until it does not.
func GranulesOf(s skep.Shape, part string, size int64) (Granules, error) {
	g, err := Of(s)
	if err != nil {
		return Granules{}, err
	}
	if size < 0 || size > skep.MaxPartBytes {
		return Granules{}, skep.Invalidf("granules", "part size in bytes", size, fmt.Sprintf("0 to %d", int64(skep.MaxPartBytes)))
	}
	if part != skep.PartKV || s.Kind == skep.Opaque || size != g.part {
		return opaqueGranules(size), nil
	}
	if size < granuleMin {
		return uniform(size, size), nil
	}
	if g.slice < granuleMin {
		return uniform(size, g.slice*ceil(granuleMin, g.slice)), nil
	}
	for limit := int64(granuleMax); ; limit *= 2 {
		if c := g.cut(limit); c.N() <= MaxGranules {
			return c, nil // at the latest when a slice is one granule: 2 · MaxLayers
		}
	}
}

// cut splits slices into granules of at most limit bytes along whole heads, else
// along whole tokens, else anywhere.
func (g Geometry) cut(limit int64) Granules {
	if g.slice <= limit {
		return uniform(g.part, g.slice)
	}
	period, atom := g.slice, g.row // NHD and latent: tokens in a slice
	if g.head > 0 {
		atom = g.head
		if g.head > limit {
			period, atom = g.head, g.row
		}
	}
	if atom > limit {
		period, atom = atom, 1
	}
	atoms := period / atom
	groups := ceil(atoms, limit/atom)
	return Granules{Part: g.part, Period: period, Stride: atom * ceil(atoms, groups)}
}

func opaqueGranules(size int64) Granules {
	stride := int64(granuleMax)
	for ceil(size, stride) > maxOpaqueGranule {
		stride *= 2
	}
	return uniform(size, stride)
}

func uniform(part, stride int64) Granules {
	stride = max(min(part, stride), 1)
	return Granules{Part: part, Period: stride, Stride: stride}
}

// valid is false for a zero or made-up value, which then has no granules.
func (g Granules) valid() bool { return g.Part > 0 && g.Stride > 0 && g.Period >= g.Stride }

func (g Granules) perPeriod() int64 { return ceil(g.Period, g.Stride) }

// N is the number of granules; 0 for an empty part.
func (g Granules) N() int {
	if !g.valid() {
		return 0
	}
	return int(g.Part/g.Period*g.perPeriod() + ceil(g.Part%g.Period, g.Stride))
}

// Span is what granule i covers. It is empty when i is not in 0 to N()-1.
func (g Granules) Span(i int) Span {
	if i < 0 || i >= g.N() {
		return Span{}
	}
	p, k := int64(i)/g.perPeriod(), int64(i)%g.perPeriod()
	off := p*g.Period + k*g.Stride
	return Span{off, min(g.Stride, g.Period-k*g.Stride, g.Part-off)}
}

// At is the granule that holds the byte at off, -1 when it is outside the part.
func (g Granules) At(off int64) int {
	if !g.valid() || off < 0 || off >= g.Part {
		return -1
	}
	return int(off/g.Period*g.perPeriod() + off%g.Period/g.Stride)
}

// Cover is the first and the last granule that s touches, both included; (0, -1)
// when s is empty or not wholly in the part.
func (g Granules) Cover(s Span) (first, last int) {
	if s.Len <= 0 || s.Off < 0 || s.Off > g.Part-s.Len || !g.valid() {
		return 0, -1
	}
	return g.At(s.Off), g.At(s.End() - 1)
}
