package recovery

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// Degraded refuses an open that would lose durable blocks with a missing drive. It
// changes nothing.
func (ld *Loader) Degraded(ctx context.Context) error {
	absent := ld.Space.AbsentDrives()
	if len(absent) == 0 {
		return nil
	}
	var hit, lost, once, unknown int64
	for _, g := range ld.Space.Groups() {
		if !slices.ContainsFunc(absent, g.Has) {
			continue
		}
		err := ld.Catalog.ScanGroup(ctx, g.Num, func(l layout.Location, row []byte) error {
			var rec segment.Record
			if err := segment.DecodeRecord(row, &rec); err != nil {
				unknown++
				return ld.damaged(l, err)
			}
			if len(rec.Copies) == 0 {
				return nil
			}
			readable, whole := segio.RecordUnits(&rec, len(g.Drives)).Survive(func(i int) bool { return g.Drives[i].Absent == nil })
			switch {
			case !readable && rec.Flags&segment.RecordDurable != 0:
				lost++
			case !readable:
				hit++
			case !whole:
				once++
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	d := absent[0]
	if lost > 0 && !ld.Whatever {
		return &skep.Error{Op: "open store", Kind: skep.Missing, Field: "device " + strconv.Itoa(int(d.Index)), Value: d.Path, Err: d.Absent,
			Limit: fmt.Sprintf("present: %d durable blocks have no other copy; bring it back, or open with Degraded \"always\" to go on without them", lost)}
	}
	ld.Log.Warn("store opened without a device", "devices", len(absent), "path", d.Path,
		"durable_blocks_lost", lost, "cache_blocks_unreadable", hit, "blocks_with_copies_to_make_again", once,
		"blocks_with_damaged_rows", unknown)
	return nil
}
