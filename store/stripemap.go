package store

import (
	"context"
	"github.com/skepkv/skep/layout"
	"slices"
	"sync/atomic"

	"github.com/skepkv/skep/store/internal/space"
)

// copied is how many slots the blocks of a group take, and how many of these are first copies. The
// index counts a block once, whatever its copies.
type copied struct{ once, all atomic.Int64 }

func (c *copied) add(slots, copies int) {
	c.once.Add(int64(slots))
	c.all.Add(int64(slots * max(1, copies)))
}

// of is what n bytes of blocks take with their copies: those of all blocks of the group, where they
// differ.
func (c *copied) of(n int64) int64 {
	once := c.once.Load()
	if once == 0 {
		return n
	}
	return int64(float64(n) * (float64(c.all.Load()) / float64(once)))
}

// StripeMap takes a picture of what each segment of each device holds, for people.
func (s *Store) StripeMap(ctx context.Context) (*StripeMap, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	m := &StripeMap{}
	copies := map[uint32]*copied{}
	s.space.mu.Lock()
	for _, d := range s.allDrives() {
		state := "ok"
		if d.failed != nil {
			state = "failed: " + d.failed.Error()
		}
		m.Devices = append(m.Devices, StripeDevice{
			Index: int(d.index), Path: d.path, State: state, Segments: d.limit,
			Free: len(d.free) + d.limit - d.segments, SegmentBytes: d.segBytes,
		})
	}
	for g := range s.space.mu.groups.Each() {
		sg := StripeGroup{Group: g.num, State: "sealed"}
		switch g.life.State() {
		case space.Claimed:
			sg.State = "cleaning"
		case space.Open:
			sg.State = "open"
		}
		for i, d := range g.drives {
			sg.Devices = append(sg.Devices, int(d.index))
			sg.Segments = append(sg.Segments, int(g.segments[i]))
		}
		copies[g.num] = &g.copied
		m.Groups = append(m.Groups, sg)
	}
	s.space.mu.Unlock()
	for i := range m.Groups {
		g := &m.Groups[i]
		st, ok := s.index.Group(g.Group)
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
	slices.SortFunc(m.Groups, func(a, b StripeGroup) int { return int(int64(a.Group) - int64(b.Group)) })
	return m, nil
}
