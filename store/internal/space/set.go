package space

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"github.com/RoaringBitmap/roaring/v2"
)

// Member is a group as a Set sees it. Neither changes while it is in the set.
type Member interface {
	comparable
	Number() uint32    // no other group has it, ever
	OpenedSeq() uint64 // the sequence number it was opened at
}

// Set is the groups that can be found, by number and by age. A store of thirty terabytes has three hundred thousand of
// them: so what is asked for each victim of the cleaner, or while puts wait for a lock, does not walk them all. Make
// it with NewSet. It has no lock of its own.
type Set[G Member] struct {
	all     map[uint32]G
	numbers *roaring.Bitmap
	// age is the groups by when they were opened, oldest first. Those that are gone stay in it
	// until they are the oldest, or most of it is gone.
	age []G
}

// NewSet makes an empty set.
func NewSet[G Member]() Set[G] {
	return Set[G]{all: map[uint32]G{}, numbers: roaring.New()}
}

// Get is the group of a number, the zero G when it is not there.
func (s *Set[G]) Get(num uint32) G { return s.all[num] }

// Has says whether it is this very group that has its number.
func (s *Set[G]) Has(g G) bool {
	o, ok := s.all[g.Number()]
	return ok && o == g
}

// Len is how many there are.
func (s *Set[G]) Len() int { return len(s.all) }

// Each is the groups in no order.
func (s *Set[G]) Each() iter.Seq[G] {
	return func(yield func(G) bool) {
		for _, g := range s.all {
			if !yield(g) {
				return
			}
		}
	}
}

// Add puts g in, whose number is not there.
func (s *Set[G]) Add(g G) {
	s.all[g.Number()] = g
	s.numbers.Add(g.Number())
	at := len(s.age)
	if at > 0 && g.OpenedSeq() < s.age[at-1].OpenedSeq() { // a spare was opened before it is used
		at, _ = slices.BinarySearchFunc(s.age, g, func(a, b G) int { return cmp.Compare(a.OpenedSeq(), b.OpenedSeq()) })
	}
	s.age = slices.Insert(s.age, at, g)
}

// Remove takes g out, if it is in.
func (s *Set[G]) Remove(g G) {
	if !s.Has(g) {
		return
	}
	delete(s.all, g.Number())
	s.numbers.Remove(g.Number())
	for len(s.age) > 0 && !s.Has(s.age[0]) {
		clear(s.age[:1])
		s.age = s.age[1:]
	}
	if len(s.age) > 2*len(s.all)+16 {
		s.age = slices.DeleteFunc(s.age, func(g G) bool { return !s.Has(g) })
	}
}

// Oldest is the group opened first, the zero G when there is none.
func (s *Set[G]) Oldest() (g G) {
	if len(s.age) > 0 {
		g = s.age[0]
	}
	return g
}

// OpenedBeside is when the oldest but g was opened, and the largest number when there is none.
func (s *Set[G]) OpenedBeside(g G) uint64 {
	for _, o := range s.age {
		if o != g && s.Has(o) {
			return o.OpenedSeq()
		}
	}
	return math.MaxUint64
}

// Above is the numbers of the groups above n, ascending.
func (s *Set[G]) Above(n uint32) []uint32 {
	it := s.numbers.Iterator()
	if n == math.MaxUint32 {
		return nil
	}
	it.AdvanceIfNeeded(n + 1)
	out := make([]uint32, 0, s.numbers.GetCardinality()-s.numbers.Rank(n))
	for it.HasNext() {
		out = append(out, it.Next())
	}
	return out
}
