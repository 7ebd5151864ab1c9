package compact

import (
	"cmp"
	"slices"
)

// Group is a sealed group as compaction sees it.
type Group struct {
	Num      uint32
	Bytes    int64   // of blocks that count, all copies
	Live     int64   // pages of them, with what the logs say of them
	Capacity int64   // pages
	Age      float64 // since it was sealed, in capacities put
	Links    int     // blocks with a parent
	Breaks   int     // of them, those that do not lie by their parent
}

// Cost-benefit of rewriting a group, after Rosenblum and Ousterhout's log-structured file
// system (benefit ÷ cost = free space × age ÷ cost of moving): it costs to read and write
// what lives in it, (1 + u) with u its share of the group; it gains the rest, 1 - u, and
// the order of its chains, counted as orderWorth of the broken links. What is old stays as
// it is for longer, so the gain lasts.
func (g Group) score() float64 {
	if g.Capacity <= 0 {
		return 0
	}
	u := min(1, float64(g.Live)/float64(g.Capacity))
	return (1 - u + orderWorth*g.disorder()) * (1 + g.Age) / (1 + u)
}

// disorder is the share of links that are broken.
func (g Group) disorder() float64 {
	if g.Links == 0 {
		return 0
	}
	return float64(g.Breaks) / float64(g.Links)
}

// orderWorth is what a group all of whose links are broken gains, in shares of a group of
// free space.
const orderWorth = 0.5

// Choice says which groups are worth rewriting.
type Choice struct {
	MinHoles    float64 // share of a group that is dead
	MinDisorder float64 // or share of its links that are broken
}

var (
	// Asked is what `skep compact` takes up.
	Asked = Choice{MinHoles: 0.05, MinDisorder: 0.25}
	// Unasked is what is done in the background: only what a good part of is dead, since
	// every byte moved wears the drives.
	Unasked = Choice{MinHoles: 0.35, MinDisorder: 2}
)

// Choose gives the groups to rewrite, best first. Groups whose live parts fill as many
// groups again, and whose chains are in order, are left alone.
func (c Choice) Choose(list []Group) []Group {
	var out []Group
	for _, g := range list {
		if g.Capacity <= 0 {
			continue
		}
		holes := 1 - float64(g.Live)/float64(g.Capacity)
		if holes >= c.MinHoles || g.disorder() >= c.MinDisorder {
			out = append(out, g)
		}
	}
	slices.SortStableFunc(out, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.score(), a.score()), cmp.Compare(a.Num, b.Num))
	})
	var live, capacity int64
	disorder := false
	for _, g := range out {
		live += g.Live
		capacity = max(capacity, g.Capacity)
		disorder = disorder || g.disorder() >= c.MinDisorder
	}
	if !disorder && capacity > 0 && int((live+capacity-1)/capacity) >= len(out) {
		return nil // nothing would come free
	}
	return out
}

// Disorder is the share of all their links that are broken.
func Disorder(list []Group) float64 {
	var sum Group
	for _, c := range list {
		sum.Links, sum.Breaks = sum.Links+c.Links, sum.Breaks+c.Breaks
	}
	return sum.disorder()
}

// Emptiest is the drive that is so much emptier than the fullest that moving blocks to it
// is worth the wear; -1: none.
func Emptiest(used []float64) int {
	low, high := 0, 0
	for i, u := range used {
		if u < used[low] {
			low = i
		}
		if u > used[high] {
			high = i
		}
	}
	if len(used) < 2 || used[high]-used[low] < imbalance {
		return -1
	}
	return low
}

// imbalance is how much fuller, in shares of itself, one drive may be than another.
const imbalance = 0.1
