package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// What the devices must say of deletions, purges and namespaces, so that a rebuild that
// has nothing else resurrects none and knows whose blocks there are.
//
// The catalog comes first: its commit decides, and carries the entries along as an
// intent. Then the entries are written to two drives and flushed, and the intent goes.
// What a crash or a full store keeps from the drives stays an intent and is tried again:
// by the cleaner, as soon as there is room, and by every open.

// carryOut writes what was intended to the devices. It does not fail: what cannot be
// written now is written later, and until then only the catalog knows it.
func (s *Store) carryOut(ctx context.Context, list ...catalog.Intent) {
	s.carryOutWithin(ctx, s.options.SpaceTimeout, list)
}

// carryOutWithin is carryOut for who may wait so long for room.
func (s *Store) carryOutWithin(ctx context.Context, wait time.Duration, list []catalog.Intent) {
	s.carryOutTo(ctx, space.User, wait, list)
}

func (s *Store) carryOutTo(ctx context.Context, st space.Stream, wait time.Duration, list []catalog.Intent) {
	for n, i := range list {
		if err := s.writeIntent(ctx, st, wait, i); err != nil {
			if s.ctx.Err() == nil && ctx.Err() == nil {
				s.log.Warn("names or deletions not on the devices yet: tried again when there is room", "error", err)
			}
			s.intents.Add(list[n:]...)
			return
		}
		b := s.catalog.NewBatch()
		b.DeleteIntent(i.Number)
		if err := s.catalog.Commit(s.ctx, b, false); err != nil {
			s.log.Debug("intent stays: it is carried out again at the next open", "error", err)
		}
	}
}

// writeIntent writes to the devices what of an intent still holds.
func (s *Store) writeIntent(ctx context.Context, st space.Stream, wait time.Duration, i catalog.Intent) error {
	defer s.entering.Begin()()
	entries, err := s.endedNow(i.Entries)
	if err != nil || len(entries) == 0 {
		return err
	}
	return s.appends.Entries(ctx, st, wait, entries)
}

// promise notes what the catalog says for a group that is being freed: until the devices say it,
// a rebuild does not know it. So it is the first that the cleaner does with the room there is then.
func (c *cleaner) promise(list []catalog.Intent) {
	if len(list) == 0 {
		return
	}
	if !c.promised {
		c.promised = true
		c.s.intents.Begin() // Close waits for it
	}
	c.s.intents.Add(list...)
}

// keepPromises writes to the cleaner's own group what was promised; the segments that are free
// now serve if it has none open. False: there is no room yet.
func (c *cleaner) keepPromises() bool {
	switch {
	case !c.promised:
		return true
	case !c.s.space.KeptHasRoom():
		return false
	}
	if list := c.s.intents.Take(); len(list) > 0 {
		c.s.carryOutTo(c.s.ctx, space.Kept, 0, list)
	}
	if none := c.s.intents.Tried(); !none {
		return false
	}
	c.promised = false
	c.s.intents.Tried()
	return true
}

// end keeps what was promised before the cleaner ends, if what it cleaned can be had yet.
func (c *cleaner) end() {
	for c.s.ctx.Err() == nil && c.s.rows.Failed() == nil && !c.keepPromises() && c.s.space.Emptying() {
		time.Sleep(time.Millisecond)
		c.s.space.Regain()
	}
	if c.promised {
		c.s.intents.Tried()
	}
}

// retryIntents tries again what could not be written. The cleaner calls it.
func (s *Store) retryIntents() {
	defer s.intents.Tried()
	if list := s.intents.Take(); len(list) > 0 {
		s.carryOutWithin(s.ctx, 0, list)
	}
}

// nameEntries are the log entries of every namespace and purge there is.
func (s *Store) nameEntries() (out []*segment.LogWriter, err error) {
	n := s.names
	add := func(write func(w *segment.LogWriter) error) {
		if err != nil {
			return
		}
		if len(out) == 0 || out[len(out)-1].Len() > segment.BodySize/2 {
			out = append(out, &segment.LogWriter{})
		}
		err = write(out[len(out)-1])
	}
	for ns := range n.All() {
		add(func(w *segment.LogWriter) error { return w.Namespace(ns.Entry(s.root.Next())) })
	}
	for k, epoch := range n.DeadSalts() {
		p := segment.Purge{Seq: epoch, Covers: s.root.Last(), Instance: k.Instance, Salted: true, SaltTag: segment.SaltTag(k.Tag)}
		add(func(w *segment.LogWriter) error { return w.Purge(&p) })
	}
	return out, err
}

// logAgain intends what the devices' logs may lack after a rebuild that went on without a
// device: every namespace and purge; and every group may have records of blocks that are gone
// whose tombstones the device had. REQUIRES: names and groups are loaded.
func (s *Store) logAgain(b *catalog.Batch) error {
	s.log.Info("logging again what a rebuild could not find on all devices")
	parts, err := s.nameEntries()
	if err != nil {
		return &skep.Error{Op: "log again", Kind: skep.KindOf(err), Field: "names", Err: err}
	}
	for _, w := range parts {
		s.intents.Add(s.intents.Put(b, w))
	}
	s.space.AllStale(b)
	return nil
}
