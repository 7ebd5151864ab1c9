package verify

import (
	"context"
	"errors"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/scrub"
	"github.com/skepkv/skep/store/report"
	"github.com/skepkv/skep/store/segment"
)

// devicesAgree tries a rebuild on the side and compares what it gives.
func (c *checker) devicesAgree(ctx context.Context, pending int) (err error) {
	found, err := c.Host.Rebuild(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	if err := found.Err; err != nil && ctx.Err() == nil {
		c.Report.Fault(report.Fault{What: "devices", Problem: "a rebuild would not work: " + err.Error(),
			Do: mendDevices(err)})
		return nil
	} else if err != nil {
		return err
	}
	for _, f := range found.Faults {
		switch {
		case !c.clean, f.What == "segment header": // a crash cuts logs off; those are known
		case f.Torn:
			c.Report.TornLogs++
		default:
			f.Do = "skep scrub writes again what is missing"
			c.Report.Fault(f)
		}
	}
	if err := c.torn(ctx); err != nil {
		return err
	}
	seen := map[index.Fingerprint]bool{}
	err = found.Rows(ctx, func(l layout.Location, row []byte) error {
		h, err := segment.DecodeHead(row)
		if err != nil {
			return err
		}
		fp := c.Names.Fingerprint(h.Instance, namespaces.Tag(h.SaltTag), h.Key)
		seen[fp] = true
		have, ok := c.rows[fp]
		switch {
		case ok && have.written == h.Written():
		case !ok && (c.stale[l.Group] || !c.clean || pending > 0), ok && (!c.clean || pending > 0):
			c.Report.Leftovers++
		case !ok && h.Flags&segment.RecordDurable == 0:
			c.Report.Leftovers++ // evicted, and its group could not be cleaned
		case !ok:
			c.Report.Fault(report.Fault{What: "log", Group: int(l.Group), Key: h.Key.String(),
				Problem: "a rebuild would bring back a block that is not in the catalog",
				Do:      "delete it by its key: that leaves a tombstone"})
		default:
			c.Report.Fault(report.Fault{What: "log", Group: int(l.Group), Key: h.Key.String(),
				Problem: "a rebuild would give another version of the block", Do: "put it again"})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for fp, have := range c.rows {
		if !seen[fp] {
			c.Report.Fault(report.Fault{What: "log", Group: int(layout.Unpack(have.loc).Group),
				Problem: "a block's record is not on the devices: a rebuild would lose it",
				Do:      "skep scrub writes it again"})
		}
	}
	return nil
}

// mendDevices says what to do where a rebuild would not work.
func mendDevices(err error) string {
	if skep.KindOf(err) == skep.Missing {
		return "bring the device back; if it is gone for good, skep device remove gives it up"
	}
	return "skep scrub"
}

// torn finds out what is missing through damaged pages of logs. An append that a crash or an
// error cut off leaves such a page for as long as its group lives, and then nothing is.
func (c *checker) torn(ctx context.Context) error {
	if c.Report.TornLogs == 0 {
		return nil
	}
	rep, err := c.Host.Scrub(ctx, true)
	for _, f := range rep.Faults {
		if f.What == "log" && f.Problem != scrub.RecordMissing { // devicesAgree tells of those
			f.Do = "skep scrub writes it again"
			c.Report.Fault(f)
		}
	}
	return err
}

// payload reads what is stored: all of it, or nothing.
func (c *checker) payload(ctx context.Context) error {
	if !c.Deep {
		return nil
	}
	rep, err := c.Host.Scrub(ctx, false)
	c.Report.BytesRead = rep.Bytes
	for _, f := range rep.Faults {
		if f.What == "block" {
			c.Report.Fault(f)
		}
	}
	return err
}
