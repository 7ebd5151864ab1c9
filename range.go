package skep

import "fmt"

// Range is the interval [From, To): of tokens, of layers, of blocks or of heads, as the field that has it says. The
// zero Range is empty.
type Range struct{ From, To int }

// Len is the number of elements.
func (r Range) Len() int { return r.To - r.From }

// Subset is the Subset of exactly these elements.
func (r Range) Subset() Subset { return Subset{only: r, some: true} }

// Subset says which elements of a list a call is about: All of them, which is the zero Subset, or Only a Range of them.
type Subset struct {
	only Range
	some bool
}

// All is every element, however many there are.
var All Subset

// Only is the elements [from, to). An empty one, as Only(0, 0) is, asks for nothing: calls refuse it as Invalid.
func Only(from, to int) Subset { return Range{from, to}.Subset() }

// IsAll reports whether s is All. Only(0, n) is not, where there are n.
func (s Subset) IsAll() bool { return !s.some }

// In gives the Range of s in a list of n elements: [0, n) for All. It is false where s is empty, or passes either end of the list.
func (s Subset) In(n int) (Range, bool) {
	if !s.some {
		return Range{0, n}, true
	}
	return s.only, s.only.From >= 0 && s.only.From < s.only.To && s.only.To <= n
}

// Bounds gives the Range that was asked for; false for All.
func (s Subset) Bounds() (Range, bool) { return s.only, s.some }

func (s Subset) String() string {
	if !s.some {
		return "all"
	}
	return fmt.Sprintf("%d to %d", s.only.From, s.only.To)
}
