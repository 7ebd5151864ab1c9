package elastic

import "math/bits"

// set is a set of small integers that finds its first member from, and its last member up
// to, a given one in as many steps as it has levels: a bit of a level says whether a word
// of the level below has any.
type set struct {
	n      int
	levels [][]uint64 // levels[0] holds the members
}

func newSet(n int) set {
	s := set{n: n}
	for size := n; ; {
		size = (size + 63) / 64
		s.levels = append(s.levels, make([]uint64, max(size, 1)))
		if size <= 1 {
			return s
		}
	}
}

func (s *set) has(i int) bool { return s.levels[0][i>>6]>>(i&63)&1 != 0 }

func (s *set) put(i int, in bool) {
	for l := range s.levels {
		w := &s.levels[l][i>>6]
		old := *w
		if in {
			*w |= 1 << (i & 63)
		} else {
			*w &^= 1 << (i & 63)
		}
		if l+1 == len(s.levels) || (old == 0) == (*w == 0) {
			return // what the level above says of this word stays true
		}
		in = *w != 0
		i >>= 6
	}
}

// first is the least member that is at least from, or -1.
func (s *set) first(from int) int {
	from = max(from, 0)
	for l := 0; l < len(s.levels); l++ {
		if from>>6 >= len(s.levels[l]) {
			return -1
		}
		if w := s.levels[l][from>>6] >> (from & 63); w != 0 {
			return s.down(l, from+bits.TrailingZeros64(w), bits.TrailingZeros64)
		}
		from = from>>6 + 1
	}
	return -1
}

// last is the greatest member that is at most to, or -1.
func (s *set) last(to int) int {
	to = min(to, s.n-1)
	for l := 0; l < len(s.levels); l++ {
		if to < 0 {
			return -1
		}
		if w := s.levels[l][to>>6] << (63 - to&63); w != 0 {
			return s.down(l, to-bits.LeadingZeros64(w), func(w uint64) int { return 63 - bits.LeadingZeros64(w) })
		}
		to = to>>6 - 1
	}
	return -1
}

// down follows bit i of level l to a member, choosing a bit of each word by pick.
func (s *set) down(l, i int, pick func(uint64) int) int {
	for l--; l >= 0; l-- {
		i = i<<6 + pick(s.levels[l][i])
	}
	return i
}
