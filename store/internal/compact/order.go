package compact

import (
	"cmp"
	"slices"

	"github.com/skepkv/skep/index"
)

// Item is a block to be put in order.
type Item struct {
	FP, Parent index.Fingerprint
	HasParent  bool
}

// Order puts blocks in the order their chains are read: every block after its
// parent, and straight after it where it can be; where a chain forks, the longer branch
// goes on and the others follow. Chains keep the order of their first blocks.
func Order(items []Item) []int {
	at := make(map[index.Fingerprint]int, len(items))
	for i := range items {
		at[items[i].FP] = i
	}
	children := make([][]int, len(items))
	var roots []int
	for i := range items {
		if p, ok := at[items[i].Parent]; ok && items[i].HasParent && p != i {
			children[p] = append(children[p], i)
		} else {
			roots = append(roots, i)
		}
	}
	// Depth below each block, leaves first. A cycle, which no honest chain has, is never
	// reached from a root: it is appended at the end.
	order := make([]int, 0, len(items))
	order = append(order, roots...)
	for i := 0; i < len(order); i++ {
		order = append(order, children[order[i]]...)
	}
	deep := make([]int, len(items))
	for i := len(order) - 1; i >= 0; i-- {
		for _, c := range children[order[i]] {
			deep[order[i]] = max(deep[order[i]], deep[c]+1)
		}
	}
	out := make([]int, 0, len(items))
	seen := make([]bool, len(items))
	var stack []int
	for i := len(roots) - 1; i >= 0; i-- {
		stack = append(stack, roots[i])
	}
	for len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		out = append(out, i)
		seen[i] = true
		c := children[i]
		slices.SortFunc(c, func(a, b int) int { // the deepest last: it is taken first
			return cmp.Or(cmp.Compare(deep[a], deep[b]), cmp.Compare(b, a))
		})
		stack = append(stack, c...)
	}
	for i := range items {
		if !seen[i] {
			out = append(out, i)
		}
	}
	return out
}

// CountBreaks counts links and broken ones among blocks in the order they lie: a block is
// by its parent when no more than width others are between the two.
func CountBreaks(items []Item, width int) (links, breaks int) {
	at := make(map[index.Fingerprint]int, len(items))
	for i := range items {
		at[items[i].FP] = i
	}
	for i := range items {
		if !items[i].HasParent {
			continue
		}
		links++
		if p, ok := at[items[i].Parent]; !ok || p-i > width || i-p > width {
			breaks++
		}
	}
	return links, breaks
}
