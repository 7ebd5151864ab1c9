package store

import (
	"context"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// Degraded counts the blocks that lack copies now.
func (s *Store) Degraded(ctx context.Context) (st DegradedStats, err error) {
	if err := s.enter(ctx); err != nil {
		return st, err
	}
	defer s.leave()
	for _, d := range s.allDrives() {
		if !d.removed.Load() && d.standing.Unreadable() {
			st.Devices++
		}
	}
	if st.Devices == 0 {
		return st, nil
	}
	for _, g := range s.groupList() {
		if g.Healthy() {
			continue
		}
		alive := func(i int) bool { return !g.drives[i].standing.Unreadable() }
		err := s.catalog.ScanGroup(ctx, g.num, func(_ layout.Location, row []byte) error {
			var rec segment.Record
			if segment.DecodeRecord(row, &rec) != nil {
				return nil
			}
			units := segio.RecordUnits(&rec, len(g.drives))
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
