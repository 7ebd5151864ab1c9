package moving

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/clean"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/report"
	"github.com/skepkv/skep/store/segment"
)

// plan is what draining groups would do, by the catalog and by which drives are there: p says how much would be moved,
// and how many blocks no drive can give. The error is the one that the drain would end with for their sake.
func (m *Mover) plan(ctx context.Context, op string, groups []*space.Group, o report.MoveOptions,
	p *report.Progress) error {
	gone := func(d *space.Drive) bool { return d.Away() || d.Standing.Unreadable() }
	kept, damaged := 0, error(nil)
	for _, g := range groups {
		if !slices.ContainsFunc(g.Drives, gone) { // no row needs to be looked at
			if st, ok := m.Index.Group(g.Num); ok {
				p.Blocks += int64(st.Blocks)
				p.Bytes += layout.SlotBytes(st.LivePages)
			}
			continue
		}
		err := m.Catalog.ScanGroup(ctx, g.Num, func(at layout.Location, row []byte) error {
			var rec segment.Record
			if err := segment.DecodeRecord(row, &rec); err != nil {
				p.Unreadable++
				damaged = catalog.DamagedRow(at, err)
				return nil
			}
			if _, ok := m.stands(&rec, at); !ok {
				return nil
			}
			readable, _ := segio.RecordUnits(&rec, len(g.Drives)).Survive(func(i int) bool { return !gone(g.Drives[i]) })
			switch durable := rec.Flags&segment.RecordDurable != 0; {
			case readable:
				p.Blocks++
				p.Bytes += layout.SlotBytes(uint64(layout.SlotsOf(int(rec.Pages), rec.Bytes())))
			case durable && o.Force:
				p.GivenUp++
				p.Unreadable++
			case durable:
				kept++
				p.Unreadable++
			default:
				p.Unreadable++
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if kept > 0 {
		return m.errKeeps(op, kept)
	}
	return damaged
}

// errKeeps is what a drain ends with that leaves durable blocks where they are: no drive can give them.
func (m *Mover) errKeeps(op string, blocks int) error {
	var away []string
	for _, d := range m.Members.All() {
		if d.Away() && !d.Removed.Load() && !d.GivenUp { // that one does not come back
			away = append(away, strconv.Itoa(int(d.Index)))
		}
	}
	back := "see what ails the drives"
	if len(away) > 0 {
		back = "bring device " + strings.Join(away, ", ") + " back"
	}
	return &skep.Error{Op: op, Kind: skep.DeviceFailed, Field: "durable " + clean.Unread, Value: blocks,
		Limit: "0: " + back + ", or give them up (skep device remove --force)"}
}
