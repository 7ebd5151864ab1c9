package commit

import (
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// Records reads the records of blocks on devices, in whatever order the catalog has
// them; rows that lie together cost one seek. visit may keep nothing of rec. Rows that
// are gone or damaged are left out.
func (r *Rows) Records(locs []layout.Location, visit func(i int, rec *segment.Record) error) error {
	if len(locs) == 0 {
		return nil
	}
	var rec segment.Record
	return r.Catalog.Blocks(r.Context, locs, func(i int, row []byte) error {
		if row == nil {
			return nil
		}
		if err := segment.DecodeRecord(row, &rec); err != nil {
			r.log.Error("damaged row in the catalog", "location", locs[i].String(), "error", err)
			return nil
		}
		return visit(i, &rec)
	})
}
