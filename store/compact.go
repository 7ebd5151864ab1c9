package store

import (
	"cmp"
	"slices"

	"github.com/skepkv/skep/index"
)

// groupCost is a sealed group as compaction sees it.
type groupCost struct {
	num      uint32
	live     int64   // pages of blocks that count
	capacity int64   // pages
	age      float64 // since it was sealed, in capacities put
	links    int     // blocks with a parent
	breaks   int     // of them, those that do not lie by their parent
}

// Cost-benefit of rewriting a group, after Rosenblum and Ousterhout's log-structured file
// system (benefit ÷ cost = free space × age ÷ cost of moving): it costs to read and write
// what lives in it, (1 + u) with u its share of the group; it gains the rest, 1 - u, and
// the order of its chains, counted as orderWorth of the broken links. What is old stays as
// it is for longer, so the gain lasts.
func (g groupCost) score() float64 {
	if g.capacity <= 0 {
		return 0
	}
	u := min(1, float64(g.live)/float64(g.capacity))
	return (1 - u + orderWorth*g.disorder()) * (1 + g.age) / (1 + u)
}

// disorder is the share of links that are broken.
func (g groupCost) disorder() float64 {
	if g.links == 0 {
		return 0
	}
	return float64(g.breaks) / float64(g.links)
}

// orderWorth is what a group all of whose links are broken gains, in shares of a group of
// free space.
const orderWorth = 0.5

// compactChoice says which groups are worth rewriting.
type compactChoice struct {
	minHoles    float64 // share of a group that is dead
	minDisorder float64 // or share of its links that are broken
}

var (
	// askedFor is what `skep compact` takes up.
	askedFor = compactChoice{minHoles: 0.05, minDisorder: 0.25}
	// unasked is what is done in the background: only what a good part of is dead, since
	// every byte moved wears the drives.
	unasked = compactChoice{minHoles: 0.35, minDisorder: 2}
)

// choose gives the groups to rewrite, best first. Groups whose live parts fill as many
// groups again, and whose chains are in order, are left alone.
func (c compactChoice) choose(list []groupCost) []groupCost {
	var out []groupCost
	for _, g := range list {
		if g.capacity <= 0 {
			continue
		}
		holes := 1 - float64(g.live)/float64(g.capacity)
		if holes >= c.minHoles || g.disorder() >= c.minDisorder {
			out = append(out, g)
		}
	}
	slices.SortStableFunc(out, func(a, b groupCost) int {
		return cmp.Or(cmp.Compare(b.score(), a.score()), cmp.Compare(a.num, b.num))
	})
	var live, capacity int64
	disorder := false
	for _, g := range out {
		live += g.live
		capacity = max(capacity, g.capacity)
		disorder = disorder || g.disorder() >= c.minDisorder
	}
	if !disorder && capacity > 0 && int((live+capacity-1)/capacity) >= len(out) {
		return nil // nothing would come free
	}
	return out
}

// countBreaks counts links and broken ones among blocks in the order they lie: a block is
// by its parent when no more than width others are between the two.
func countBreaks(items []chainItem, width int) (links, breaks int) {
	at := make(map[index.Fingerprint]int, len(items))
	for i := range items {
		at[items[i].fp] = i
	}
	for i := range items {
		if !items[i].hasParent {
			continue
		}
		links++
		if p, ok := at[items[i].parent]; !ok || p-i > width || i-p > width {
			breaks++
		}
	}
	return links, breaks
}
