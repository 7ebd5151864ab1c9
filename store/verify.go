package store

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/space"
)

// damaged takes note of a block whose bytes did not match, and returns the event that tells of it.
func (s *Store) damaged(c *restore.Asked, f *restore.Located) skep.Event {
	s.count.Damaged.Add(1)
	s.badLog.Error(s.log, "damaged block", "key", c.Keys[f.Block].Short(), "location", f.At.String(), "drive", f.Stripe.Drive(int(f.At.Device)%f.Stripe.Len()).(*space.Drive).Path)
	ev := skep.Event{Kind: skep.EventDamaged, Namespace: c.NS.Info.ID, Key: c.Keys[f.Block], Depth: f.Block, Tier: skep.TierDevice, Reason: skep.Damaged}
	s.rows.Salt(&ev, c.NS.Instance, c.Tag)
	return ev
}

// Failed takes note of a copy that could not be read or was wrong.
//
// lost says that no copy has the right bytes.
func (o source) Failed(c *restore.Asked, f *restore.Located, err error, lost bool) {
	s := o.s
	if skep.KindOf(err) != skep.Damaged {
		return
	}
	ev := s.damaged(c, f)
	fp, loc, ns := f.FP, f.At, c.NS
	if !lost {
		s.rows.Tell(ev, c.NS.Instance, c.Tag)
		if !s.options.ReadOnly {
			s.mends.RepairSoon(fp, loc)
		}
		return
	}
	s.space.Suspect(f.Stripe.(*space.Group))
	s.background.Go(func() { // not on a worker: it commits to the catalog
		s.rows.ForgetDamaged(ns, c.Tag, fp, loc, f.Size, ev)
	})
}
