package segio

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// Unit is one stripe unit of a block, in every copy it has.
type Unit struct {
	Off, N   int64 // in the stored form
	Segments []int // by copy: which of its group's
	pages    []uint32
	subs     []uint8 // where in its page a packed block begins
}

func (u *Unit) span() layout.Span { return layout.Span{Off: u.Off, Len: u.N} }

// Units are the units of a block.
type Units []Unit

// UnitsOf lists a block's units, in a group of so many segments. stored is what one copy takes.
func UnitsOf(copies []layout.Location, stored int64, segments int) Units {
	var out Units
	for c, p := range copies {
		for i, e := range layout.Extents(nil, p, stored, segments) {
			if c == 0 {
				out = append(out, Unit{Off: e.Off, N: e.Len})
			}
			if i >= len(out) {
				break
			}
			out[i].Segments = append(out[i].Segments, e.Device)
			out[i].pages = append(out[i].pages, e.Page)
			out[i].subs = append(out[i].subs, p.Sub)
		}
	}
	return out
}

// RecordUnits lists the units of the block that rec is of.
func RecordUnits(rec *segment.Record, segments int) Units {
	return UnitsOf(rec.Copies, int64(rec.Pages)*layout.PageSize, segments)
}

// Survive says whether every unit has a copy in a segment for which alive is true, and whole
// whether all of them have all.
func (list Units) Survive(alive func(segment int) bool) (readable, whole bool) {
	readable, whole = true, true
	for i := range list {
		n := 0
		for _, s := range list[i].Segments {
			if alive(s) {
				n++
			}
		}
		readable = readable && n > 0
		whole = whole && n == len(list[i].Segments)
	}
	return readable, whole
}

// NoPlace is the rank of what it is no use to read.
const NoPlace = 1 << 20

var (
	// ErrNoDrive says that bytes lie only on drives that cannot be read now.
	ErrNoDrive = &skep.Error{Op: "restore", Kind: skep.DeviceFailed, Field: "drive", Value: "fenced"}
	// ErrNoCopy says that all copies of some bytes were no use.
	ErrNoCopy = &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "copies", Value: "all wrong"}
)

// Best chooses one of n copies of the same bytes: of those that were not bad before, the first that
// is least in rank. ErrNoCopy: all were bad. ErrNoDrive: it is no use to read any of the others.
func Best(n int, bad func(c int) bool, rank func(c int) int) (int, error) {
	best, least, left := 0, NoPlace, 0
	for c := range n {
		if bad(c) {
			continue
		}
		left++
		if k := rank(c); k < least {
			best, least = c, k
		}
	}
	switch {
	case left == 0:
		return 0, ErrNoCopy
	case least >= NoPlace:
		return 0, ErrNoDrive
	}
	return best, nil
}
