package verify

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/report"
)

// sides compares side rows with the records of the blocks they are of.
func (c *checker) sides(ctx context.Context) error {
	roots, err := c.Catalog.SideRoots(ctx)
	if skep.KindOf(err) == skep.Damaged {
		c.Report.Fault(report.Fault{What: "side rows", Problem: err.Error(),
			Do: "skep rebuild: rows are made anew from their blocks"})
		return nil
	}
	if err != nil {
		return err
	}
	editions := map[catalog.SideID]uint64{}
	for i := range roots {
		editions[roots[i].ID] = roots[i].Edition
		c.Report.Sides++
		if err := c.side(ctx, &roots[i]); err != nil {
			return err
		}
	}
	owners, err := c.Catalog.SideOwners(ctx)
	if err != nil {
		return err
	}
	for _, o := range owners {
		if edition, ok := editions[o.ID]; !ok || o.Last > edition { // a put was cut off
			c.Report.StaleSides++
		}
	}
	return nil
}

func (c *checker) side(ctx context.Context, r *catalog.SideRoot) error {
	ns := c.Names.Of(r.ID.Instance)
	fp := c.Names.Fingerprint(r.ID.Instance, r.ID.Tag, r.ID.Key)
	row, stored := c.rows[fp]
	if ns == nil || !stored || c.Names.Dead(r.ID.Instance, r.ID.Tag) || row.written != r.Edition {
		c.Report.StaleSides++
		return nil
	}
	rec, err := c.Host.Record(r.ID.Key, fp)
	if err == nil {
		_, err = c.Sidecars.Pieces(ctx, ns, &rec, r)
	}
	switch skep.KindOf(err) {
	case skep.Damaged:
		c.Report.Fault(report.Fault{What: "side rows", Group: int(layout.Unpack(row.loc).Group), Key: r.ID.Key.String(),
			Problem: err.Error(),
			Do:      "open the context they are of: they are made anew from the block"})
		return nil
	case skep.Denied: // encrypted, and the key is not here
		return nil
	}
	return err
}
