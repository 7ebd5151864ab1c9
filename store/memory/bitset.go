package memory

import "math/bits"

// bitset is a fixed set of small integers that finds its least member in
// O(log64 n): levels[0] holds the bits, and bit i of levels[k+1] says that word
// i of levels[k] is not zero. A linear scan would do for megabytes, not for the
// hundreds of gigabytes an arena may have.
type bitset struct {
	levels [][]uint64
}

func newBitset(n int) bitset {
	var s bitset
	for {
		n = (n + 63) / 64
		s.levels = append(s.levels, make([]uint64, max(n, 1)))
		if n <= 1 {
			return s
		}
	}
}

func (s *bitset) has(i int) bool {
	return s.levels[0][i>>6]&(1<<(i&63)) != 0
}

func (s *bitset) add(i int) {
	for k := range s.levels {
		w := &s.levels[k][i>>6]
		was := *w
		*w |= 1 << (i & 63)
		if was != 0 {
			return // the levels above know of this word already
		}
		i >>= 6
	}
}

func (s *bitset) remove(i int) {
	for k := range s.levels {
		w := &s.levels[k][i>>6]
		*w &^= 1 << (i & 63)
		if *w != 0 {
			return
		}
		i >>= 6
	}
}

// first returns the least member, or −1 when the set is empty.
func (s *bitset) first() int {
	i := 0
	for k := len(s.levels) - 1; k >= 0; k-- {
		w := s.levels[k][i]
		if w == 0 {
			return -1 // only possible at the top
		}
		i = i<<6 | bits.TrailingZeros64(w)
	}
	return i
}
