// Package pieces knows which bytes of something have been written, piece by piece and in any order, and counts what
// memory things take that are open for that.
package pieces

import (
	"slices"
	"sort"

	"github.com/skepkv/skep"
)

// Set is what has been written of so many bytes. It keeps disjoint ranges, joined where they meet, and takes memory
// when its user says so: Grow.
type Set struct {
	bytes   int
	written []skep.Range // disjoint, sorted
}

const (
	rangeBytes = 16 // of a range in memory
	least      = 8  // ranges that a set has room for at first
)

// New is an empty set, of something with so many bytes.
func New(bytes int) Set { return Set{bytes: bytes} }

// Growth is what the memory of the set has to grow by before r is added, in bytes; 0: it has room, or needs none.
func (s *Set) Growth(r skep.Range) int64 {
	n := cap(s.written)
	if _, before, behind, free := s.place(r); len(s.written) < n || before || behind || !free {
		return 0
	}
	return rangeBytes * int64(max(n, least))
}

// Grow makes room for so many bytes more.
func (s *Set) Grow(bytes int64) {
	grown := make([]skep.Range, len(s.written), cap(s.written)+int(bytes/rangeBytes))
	copy(grown, s.written)
	s.written = grown
}

// place is where r belongs, whether it meets its neighbours, and whether nothing of it was written.
func (s *Set) place(r skep.Range) (i int, before, behind, free bool) {
	i = sort.Search(len(s.written), func(i int) bool { return s.written[i].To > r.From })
	there := i < len(s.written)
	return i, i > 0 && s.written[i-1].To == r.From, there && s.written[i].From == r.To, !there || s.written[i].From >= r.To
}

// Add enters r, which lies within the bytes, unless it overlaps what was written. REQUIRES: there is room.
func (s *Set) Add(r skep.Range) bool {
	i, before, behind, free := s.place(r)
	switch { // joined with its neighbours, so that sequential writers keep the list short
	case !free:
		return false
	case before && behind:
		s.written[i-1].To = s.written[i].To
		s.written = slices.Delete(s.written, i, i+1)
	case before:
		s.written[i-1].To = r.To
	case behind:
		s.written[i].From = r.From
	default:
		s.written = slices.Insert(s.written, i, r)
	}
	return true
}

// Gap is the first range that was not written.
func (s *Set) Gap() (gap skep.Range, ok bool) {
	gap.To = s.bytes
	for _, r := range s.written[:min(len(s.written), 2)] {
		if r.From > gap.From {
			gap.To = r.From
			break
		}
		gap.From = r.To
	}
	return gap, gap.From < gap.To
}
