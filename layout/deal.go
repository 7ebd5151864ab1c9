package layout

import "sync/atomic"

// Start is the device a chain's block at depth begins on, when the chain's first
// block (its root) began on device s0. It is SWARM's running pointer (eq. 7) with a
// step. Every block has the same number of units, and a layer spans layerUnits of
// them (rounded up).
//
// SWARM lets the pointer run on by |C| after each cluster, so start(d) = s0 + d·n.
// With g = gcd(n, N) that comes back to s0 after N/g blocks, and then the same layer
// of every N/g-th block is on the same devices for ever: with 8 units on 8 devices
// all of them. So the pointer takes a step after each such sweep, and after all N
// starts have been used once the deal begins anew:
//
//	start(d) = s0 + d·t + e·a + ⌊e·h/G⌋   e = ⌊d·G/N⌋ (sweeps done), G = gcd(t, N), h = gcd(a, G)
//
// The last term is the second-level correction that makes N successive starts all
// different whatever t and a are. Usually t is n and a is layerUnits. Where another
// pair deals more evenly it is taken, and where no pair keeps every device within one
// unit of its even share an order found by search is, if there is one. Both are
// worked out once for each (N, n mod N, layerUnits mod N) with N ≤ 16; above, the
// usual pair is kept. docs/reference/layout.md says what is reached.
//
// The result is 0 for n < 1. Nothing stored depends on the rule: a block's location
// says where it begins.
func Start(s0, depth, units, n, layerUnits int) int {
	if n < 1 {
		return 0
	}
	return mod(mod(s0, n)+dealt(mod(depth, n), mod(units, n), mod(layerUnits, n), n), n)
}

// Base is Start's inverse: the s0 of a chain whose block at depth began on start. A
// child finds its own start with it when all it knows is its parent's.
func Base(start, depth, units, n, layerUnits int) int {
	if n < 1 {
		return 0
	}
	return mod(mod(start, n)-dealt(mod(depth, n), mod(units, n), mod(layerUnits, n), n), n)
}

// LayerUnits is the layerUnits of Start: how many units of unitPages a layer of
// layerBytes spans, rounded up.
func LayerUnits(layerBytes int64, unitPages int) int {
	if layerBytes < 1 || unitPages < 1 {
		return 0
	}
	return int(ceil(layerBytes, int64(unitPages)*PageSize))
}

const maxSearched = 16 // devices for which a deal is worked out

// deals remembers, for each (N, n mod N, layerUnits mod N), the order of starts, four
// bits each, lowest first. 0 is not yet worked out: a deal of 2 and more is never 0.
// The function is pure, so whoever comes second stores the same.
var deals [maxSearched + 1][maxSearched][maxSearched]atomic.Uint64

// dealt is start(d) - s0 for d, r and q in 0 to n-1.
func dealt(d, r, q, n int) int {
	if n == 1 {
		return 0
	}
	if n > maxSearched {
		t, a := usual(r, q, n)
		return step(d, t, a, n)
	}
	cell := &deals[n][r][q]
	v := cell.Load()
	if v == 0 {
		for i, s := range bestDeal(n, r, q) {
			v |= uint64(s) << (4 * i)
		}
		cell.Store(v)
	}
	return int(v >> (4 * d) & 15)
}

func step(d, t, a, n int) int {
	g := gcd(t, n)
	e := d * g / n
	return (d*t + e*a + e*gcd(a, g)/g) % n
}

func usual(r, q, n int) (t, a int) {
	switch {
	case r != 0:
		return r, q % gcd(r, n)
	case q != 0:
		return q, 0
	}
	return 1, 0
}

// bestDeal is the order in which n starts are used, for blocks that cover r devices
// once more than the rest and layers that cover q once more. A layer is seldom a
// whole number of units: bytes of one that is 2.3 are dealt as evenly as arcs of 2
// and of 3 are, so one less than q matters too, but gives way.
func bestDeal(n, r, q int) []int {
	order, less := make([]int, n), mod(q-1, n)
	score := func(t, a int) (worst, near int) {
		for d := range order {
			order[d] = step(d, t, a, n)
		}
		return max(uneven(order, r), uneven(order, q)), uneven(order, less)
	}
	bt, ba := usual(r, q, n)
	best, near := score(bt, ba)
	for t := range n {
		for a := range gcd(t, n) {
			if w, c := score(t, a); w < best || w == best && c < near {
				bt, ba, best, near = t, a, w, c
			}
		}
	}
	if max(best, near) > n {
		if found := newSearch(n, r, q, less); found.deal() {
			return found.order
		}
	}
	if best > n {
		if found := newSearch(n, r, q); found.deal() {
			return found.order
		}
	}
	score(bt, ba)
	return order
}

// uneven is by how much, in n-ths of a unit, any device is ever off its even share
// when arcs of the given length are dealt in that order.
func uneven(order []int, arc int) (worst int) {
	n := len(order)
	count := make([]int, n)
	for d, s := range order {
		for j := range arc {
			count[(s+j)%n]++
		}
		for _, c := range count {
			worst = max(worst, c*n-(d+1)*arc, (d+1)*arc-c*n)
		}
	}
	return worst
}

// searchNodes bounds the search. The hardest deals take a small part of it
// (TestSearchIsFarFromItsLimit).
const searchNodes = 200_000

// search looks for an order of all starts in which no device is ever off its even
// share by more than one unit, for none of the given lengths of arcs.
type search struct {
	n, left int
	arcs    []int
	count   [][]int // of each arc, on each device
	used    uint32
	order   []int
}

func newSearch(n int, arcs ...int) *search {
	s := &search{n: n, left: searchNodes, arcs: arcs, count: make([][]int, len(arcs))}
	for i := range s.count {
		s.count[i] = make([]int, n)
	}
	return s
}

func (s *search) deal() bool {
	if len(s.order) == s.n {
		return true
	}
	for x := range s.n {
		if s.used>>x&1 == 1 || s.left == 0 || len(s.order) == 0 && x > 0 {
			continue
		}
		s.left--
		s.used ^= 1 << x
		s.order = append(s.order, x)
		if s.add(x, 1) && s.deal() {
			return true
		}
		s.add(x, -1)
		s.order = s.order[:len(s.order)-1]
		s.used ^= 1 << x
	}
	return false
}

// add counts the arcs from x on, or takes them back, and says whether all is even.
func (s *search) add(x, by int) bool {
	even := true
	for i, arc := range s.arcs {
		for j := range arc {
			s.count[i][(x+j)%s.n] += by
		}
		for _, c := range s.count[i] {
			off := c*s.n - len(s.order)*arc
			even = even && max(off, -off) <= s.n
		}
	}
	return even
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func mod(a, n int) int {
	if a %= n; a < 0 {
		a += n
	}
	return a
}
