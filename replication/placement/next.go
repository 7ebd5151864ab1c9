package placement

import (
	"cmp"
	"slices"

	"github.com/skepkv/skep/replication/clustermap"
)

// Next is New(m), of a map that comes after was, whose table t is. It looks only at the slots that nodes which are gone,
// or draw otherwise now, had, and at what nodes that are new draw: among many nodes of which few change it takes a
// thousandth of the time.
func (t *Table) Next(was, m *clustermap.Map) *Table {
	next := empty(m)
	if next.copies != t.copies || was.Seed != m.Seed {
		return New(m)
	}
	stays := func(a, b *clustermap.Node) bool {
		return a.State == clustermap.Up && b.State == clustermap.Up && a.Weight == b.Weight && slices.Equal(a.Domain, b.Domain)
	}
	before := make(map[uint64]int, len(was.Nodes))
	for i := range was.Nodes {
		before[was.Nodes[i].ID] = i
	}
	const gone = -1
	at := make([]int, len(was.Nodes)) // where a node is now that draws as it did
	for i := range at {
		at[i] = gone
	}
	var added []int
	for i := range m.Nodes {
		n := &m.Nodes[i]
		if j, ok := before[n.ID]; ok && stays(&was.Nodes[j], n) {
			at[j] = i
		} else if n.State == clustermap.Up {
			added = append(added, i)
		}
	}
	if len(added) > len(m.Nodes)/8 {
		return New(m)
	}
	draws := make([]uint64, len(m.Nodes))
	for slot := range Slots {
		same := true
		mine := next.Nodes(uint16(slot))
		for k, j := range t.Nodes(uint16(slot)) {
			same = same && at[j] != gone
			mine[k] = uint16(max(at[j], 0))
		}
		if !same || slices.ContainsFunc(added, func(i int) bool { return wins(m.Nodes, uint16(slot), mine, i) }) {
			next.fill(m.Nodes, uint16(slot), draws)
		}
	}
	return next
}

// wins says whether a node that is new has a slot instead of one of those that it had.
func wins(nodes []clustermap.Node, slot uint16, mine []uint16, i int) bool {
	d, common := drawOf(slot, &nodes[i]), 0
	for k, j := range mine {
		theirs := 0
		for _, b := range mine[:k] {
			theirs = max(theirs, shared(nodes[j].Domain, nodes[b].Domain))
		}
		if k > 0 {
			common = max(common, shared(nodes[i].Domain, nodes[mine[k-1]].Domain))
		}
		if cmp.Or(cmp.Compare(common, theirs), cmp.Compare(d, drawOf(slot, &nodes[j])),
			cmp.Compare(nodes[i].ID, nodes[j].ID)) < 0 {
			return true
		}
	}
	return false
}
