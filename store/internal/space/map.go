package space

import (
	"context"
	"slices"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/report"
	"github.com/skepkv/skep/store/segment"
)

// Stripes takes a picture of what each segment of each device holds, for people.
func (t *Table) Stripes() *report.StripeMap {
	m := &report.StripeMap{}
	copies := map[uint32]*copied{}
	t.mu.Lock()
	for _, d := range t.Drives() {
		state := "ok"
		if d.Failed != nil {
			state = "failed: " + d.Failed.Error()
		}
		m.Devices = append(m.Devices, report.StripeDevice{
			Index: int(d.Index), Path: d.Path, State: state, Segments: d.Limit,
			Free: len(d.Free) + d.Limit - d.Segments, SegmentBytes: d.SegBytes,
		})
	}
	for g := range t.mu.Groups.Each() {
		sg := report.StripeGroup{Group: g.Num, State: "sealed"}
		switch g.Life.State() {
		case Claimed:
			sg.State = "cleaning"
		case Open:
			sg.State = "open"
		}
		for i, d := range g.Drives {
			sg.Devices = append(sg.Devices, int(d.Index))
			sg.Segments = append(sg.Segments, int(g.Segments[i]))
		}
		copies[g.Num] = &g.copied
		m.Groups = append(m.Groups, sg)
	}
	t.mu.Unlock()
	for i := range m.Groups {
		g := &m.Groups[i]
		st, ok := t.Index.Group(g.Group)
		if !ok {
			continue
		}
		g.Blocks = int64(st.Blocks)
		g.LiveBytes = copies[g.Group].of(layout.SlotBytes(st.LivePages))
		g.HotBytes = copies[g.Group].of(layout.SlotBytes(st.TouchedPages))
		g.CapacityBytes = layout.SlotBytes(st.CapacityPages)
		if g.CapacityBytes > 0 {
			g.Age = st.SealedAge
		}
	}
	slices.SortFunc(m.Groups, func(a, b report.StripeGroup) int { return int(int64(a.Group) - int64(b.Group)) })
	return m
}

// Degraded counts the blocks that lack copies now.
func (t *Table) Degraded(ctx context.Context) (st report.Degraded, err error) {
	for _, d := range t.Drives() {
		if !d.Removed.Load() && d.Standing.Unreadable() {
			st.Devices++
		}
	}
	if st.Devices == 0 {
		return st, nil
	}
	for _, g := range t.Groups() {
		if g.Healthy() {
			continue
		}
		alive := func(i int) bool { return !g.Drives[i].Standing.Unreadable() }
		err := t.Catalog.ScanGroup(ctx, g.Num, func(_ layout.Location, row []byte) error {
			var rec segment.Record
			if segment.DecodeRecord(row, &rec) != nil {
				return nil
			}
			units := segio.RecordUnits(&rec, len(g.Drives))
			readable, whole := units.Survive(alive)
			if whole {
				return nil
			}
			st.Blocks++
			if !readable {
				st.Unreadable++
			}
			for _, u := range units {
				for _, p := range u.Segments {
					if !alive(p) {
						st.Bytes += u.N
					}
				}
			}
			return nil
		})
		if err != nil {
			return st, err
		}
	}
	return st, nil
}
