package space

import (
	"math"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/compact"
	"github.com/skepkv/skep/store/segment"
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
			c := compact.Group{Num: st.Group, Live: layout.SlotPages(st.LivePages),
				Capacity: layout.SlotPages(st.CapacityPages), Age: st.SealedAge}
			if float64(c.Live) < 0.95*float64(c.Capacity) { // or it is full whatever the copies
				c.Live = int64(float64(c.Live) * t.spread(g))
			}
			out = append(out, c)
		}
	}
	return out
}

// spread is how many pages the blocks of a group take for each page of them that the index
// counts, which knows nothing of copies. It is found out once for each group.
func (t *Table) spread(g *Group) float64 {
	if v := g.spread.Load(); v != 0 {
		return math.Float64frombits(v)
	}
	var once, all int64
	err := t.Catalog.ScanGroup(t.Context, g.Num, func(_ layout.Location, row []byte) error {
		var rec segment.Record
		if segment.DecodeRecord(row, &rec) == nil {
			n := int64(layout.SlotsOf(int(rec.Pages), rec.Bytes()))
			once += n
			all += n * int64(max(1, len(rec.Copies)))
		}
		return nil
	})
	v := 1.0
	if err == nil && once > 0 {
		v = float64(all) / float64(once)
		g.spread.Store(math.Float64bits(v))
	}
	return v
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
		n += c.Live * layout.PageSize
	}
	return n
}
