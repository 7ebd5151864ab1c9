package locate

import (
	"slices"

	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/segio"
)

// Recall reads the checksums of a part that is in memory from its block's record.
// Only chained blocks: an unchained one may have been replaced since it was found, and
// the record be of its successor.
func (l *Finder) Recall(c *restore.Asked, f *restore.Located) {
	if !c.NS.Info.Chained {
		return
	}
	e, ok := l.Index.Resolve(f.FP)
	if !ok || e.Location == 0 { // one that is not committed gets another version, and other sums, when it is
		return
	}
	rec, err := l.Rows.Record(f.FP, e)
	if err == nil {
		err = l.Keys.ClearSums(c.NS.Info.Tenant, &rec)
	}
	if err != nil {
		return
	}
	for i := range rec.Parts {
		p := &rec.Parts[i]
		if p.Name != c.Part || p.Size != f.Size {
			continue
		}
		if sums, err := segio.SumsOf("restore", c.NS.Info.Shape, &rec, i); err == nil {
			sums.Sums = slices.Clone(sums.Sums)
			f.Sums = sums
		}
	}
}
