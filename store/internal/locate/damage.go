package locate

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/space"
)

// Undecipherable takes note of a block with right checksums that its key does not open.
func (l *Finder) Undecipherable(c *restore.Asked, f *restore.Located) {
	l.Rows.Tell(l.damaged(c, f), c.NS.Instance, c.Tag)
}

// damaged takes note of a block whose bytes did not match, and returns the event that tells of it.
func (l *Finder) damaged(c *restore.Asked, f *restore.Located) skep.Event {
	l.Count.Damaged.Add(1)
	l.Bad.Error(l.Log, "damaged block", "key", c.Keys[f.Block].Short(), "location", f.At.String(),
		"drive", f.Stripe.Drive(int(f.At.Device)%f.Stripe.Len()).(*space.Drive).Path)
	ev := skep.Event{Kind: skep.EventDamaged, Namespace: c.NS.Info.ID, Key: c.Keys[f.Block], Depth: f.Block,
		Tier: skep.TierDevice, Reason: skep.Damaged}
	l.Rows.Salt(&ev, c.NS.Instance, c.Tag)
	return ev
}

// Failed takes note of a copy that could not be read or was wrong. lost says that no copy has the right bytes.
func (l *Finder) Failed(c *restore.Asked, f *restore.Located, err error, lost bool) {
	if skep.KindOf(err) != skep.Damaged {
		return
	}
	ev := l.damaged(c, f)
	fp, loc, size := f.FP, f.At, f.Size
	if !lost {
		l.Rows.Tell(ev, c.NS.Instance, c.Tag)
		if l.RepairSoon != nil {
			l.RepairSoon(fp, loc)
		}
		return
	}
	l.Background.Go(func() { // not on a worker: it commits to the catalog
		l.Rows.ForgetDamaged(c.NS, c.Tag, fp, loc, size, ev)
	})
}
