package space

import (
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/compact"
)

// Costs are the sealed groups as the index counts them, without the order of their
// chains, which takes a scan.
func (t *Table) Costs(groups []*Group) []compact.Group {
	known := map[uint32]*Group{}
	for _, g := range groups {
		known[g.Num] = g
	}
	var out []compact.Group
	for _, st := range t.Index.Groups() {
		if g := known[st.Group]; g != nil {
			out = append(out, compact.Group{Num: st.Group, Bytes: g.copied.of(layout.SlotBytes(st.LivePages)),
				Live:     layout.SlotPages(g.taken(int64(st.Blocks), int64(st.LivePages))),
				Capacity: layout.SlotPages(st.CapacityPages), Age: st.SealedAge})
		}
	}
	return out
}

// Unbalanced is a group to be moved so that a drive with much free space gets its share:
// the oldest of those that do without it. Nil: the drives are filled alike.
func (t *Table) Unbalanced(groups []*Group, free func(*Group) bool) *Group {
	t.mu.Lock()
	type fill struct {
		d    *Drive
		used float64
	}
	var list []fill
	for _, d := range t.Drives() {
		if d.Failed == nil && d.Segments > 0 {
			list = append(list, fill{d, 1 - float64(len(d.Free))/float64(d.Segments)})
		}
	}
	t.mu.Unlock()
	if len(list) < 2 {
		return nil
	}
	used := make([]float64, len(list))
	for i := range list {
		used[i] = list[i].used
	}
	i := compact.Emptiest(used)
	if i < 0 {
		return nil
	}
	for _, g := range groups {
		if !g.Has(list[i].d) && free(g) {
			return g
		}
	}
	return nil
}

// LiveBytes is what lives in groups, all copies together, in bytes.
func (t *Table) LiveBytes(list []*Group) (n int64) {
	for _, c := range t.Costs(list) {
		n += c.Bytes
	}
	return n
}
