package store

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"github.com/RoaringBitmap/roaring/v2"
)

// groupSet is the store's groups, by number and by age. A store of thirty terabytes has three
// hundred thousand of them, so that what is asked for each victim of the cleaner, or while
// puts wait for a lock, must not walk them all.
type groupSet struct {
	all     map[uint32]*group
	numbers *roaring.Bitmap
	// age is the groups by when they were opened, oldest first. Those that are gone stay in it
	// until they are the oldest, or most of it is gone.
	age []*group
}

func newGroupSet() groupSet {
	return groupSet{all: map[uint32]*group{}, numbers: roaring.New()}
}

func (s *groupSet) get(num uint32) *group { return s.all[num] }

// has says whether it is this very group that has its number.
func (s *groupSet) has(g *group) bool { return s.all[g.num] == g }

func (s *groupSet) len() int { return len(s.all) }

// each is the groups in no order.
func (s *groupSet) each() iter.Seq[*group] {
	return func(yield func(*group) bool) {
		for _, g := range s.all {
			if !yield(g) {
				return
			}
		}
	}
}

func (s *groupSet) add(g *group) {
	s.all[g.num] = g
	s.numbers.Add(g.num)
	at := len(s.age)
	if at > 0 && g.state.OpenedSeq < s.age[at-1].state.OpenedSeq { // a spare was opened before it is used
		at, _ = slices.BinarySearchFunc(s.age, g, func(a, b *group) int { return cmp.Compare(a.state.OpenedSeq, b.state.OpenedSeq) })
	}
	s.age = slices.Insert(s.age, at, g)
}

func (s *groupSet) remove(g *group) {
	if !s.has(g) {
		return
	}
	delete(s.all, g.num)
	s.numbers.Remove(g.num)
	for len(s.age) > 0 && !s.has(s.age[0]) {
		s.age[0] = nil
		s.age = s.age[1:]
	}
	if len(s.age) > 2*len(s.all)+16 {
		s.age = slices.DeleteFunc(s.age, func(g *group) bool { return !s.has(g) })
	}
}

// oldest is the group opened first, nil when there is none.
func (s *groupSet) oldest() *group {
	if len(s.age) == 0 {
		return nil
	}
	return s.age[0]
}

// openedBeside is when the oldest but g was opened, and the largest number when there is none.
func (s *groupSet) openedBeside(g *group) uint64 {
	for _, o := range s.age {
		if o != g && s.has(o) {
			return o.state.OpenedSeq
		}
	}
	return math.MaxUint64
}

// above is the numbers of the groups above n, ascending.
func (s *groupSet) above(n uint32) []uint32 {
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
