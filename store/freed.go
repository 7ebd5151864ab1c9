package store

import (
	"context"
	"time"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// What is left on the devices of groups and blocks that are gone.
//
// The catalog says what is stored; the devices' logs say so too, for the day the catalog
// is lost. A group that was cleaned is therefore marked as freed in its headers before
// its segments are reused, and a record that no row speaks for any more, in a group that
// goes on, makes that group stale: until a tombstone takes care of it, a deletion of
// something that is not there must leave one all the same.

// stray is the tombstone of one such record. Where the block is stored in an older
// version, or in another copy of this one, only this record is meant: it was never
// committed. Else whatever is older is gone as well.
func (s *Store) stray(h *segment.Head) segment.Tombstone {
	t := segment.Tombstone{Seq: s.root.Next(), Covers: h.Written(), Instance: h.Instance, SaltTag: h.SaltTag, Key: h.Key}
	fp := s.names.Fingerprint(h.Instance, namespaces.Tag(h.SaltTag), h.Key)
	exact := s.puts.Rivals.Before(fp, h.Written()) < h.Written()
	if e, ok := s.index.Resolve(fp); ok && e.Location != 0 {
		// Not as it was a moment ago: a block that is being moved keeps its version.
		rec, err := s.rows.RecordNow(fp, e)
		exact = exact || err != commit.ErrGone && (err != nil || h.Written() >= rec.Written())
	}
	if exact {
		t.Covers, t.Exact = h.Seq, true
	}
	return t
}

// strays are tombstones for the records in g's log that no row speaks for: of
// appends that were never committed, of blocks a crash or a drive damaged. scan visits the log.
func (s *Store) strays(ctx context.Context, g *space.Group, scan space.Scanner) (list []segment.Tombstone, err error) {
	rows := map[segment.RecordID]bool{}
	err = s.catalog.ScanGroup(ctx, g.Num, func(_ layout.Location, row []byte) error {
		if h, err := segment.DecodeHead(row); err == nil {
			rows[h.ID()] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = scan(ctx, g, func(a *segment.Append, e segment.Entry) error {
		s.root.Pass(a.Seq) // of an append that was never committed no row tells
		if e.Kind != segment.KindBlock {
			return nil
		}
		h, err := segment.PeekHead(e.Body)
		if err != nil {
			return nil
		}
		id := h.ID()
		if rows[id] {
			return nil
		}
		rows[id] = true // its copies too
		if !s.names.Dead(h.Instance, namespaces.Tag(h.SaltTag)) {
			list = append(list, s.stray(&h))
		}
		return nil
	})
	return list, err
}

// reconcile makes the devices' logs say what the catalog says of the given groups, which
// nobody writes to, by intents in b, to be carried out after its commit.
func (s *Store) reconcile(ctx context.Context, b *catalog.Batch, groups []*space.Group) (out []catalog.Intent, err error) {
	for _, g := range groups {
		list, err := s.strays(ctx, g, s.space.ScanWholeGroup)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			s.log.Warn("log not compared with the catalog", "group", g.Num, "error", err)
			state := s.space.StaleRow(g)
			b.PutGroup(&state)
			continue
		}
		more, err := s.intents.PutTombstones(b, s.space.SegmentBytes, list)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
		state := s.space.Settled(g)
		b.PutGroup(&state)
	}
	return out, nil
}

// reconcileStale compares one sealed group, of those that failures made stale, with the
// catalog. The cleaner calls it, and Close beside the cleaner: nobody else frees the group
// meanwhile, or a row that says that it is sealed would come after the one that says it is gone.
func (s *Store) reconcileStale(ctx context.Context) {
	g := s.space.NextSuspect()
	if g == nil {
		return
	}
	defer s.space.Release(g)
	b := s.catalog.NewBatch()
	list, err := s.reconcile(ctx, b, []*space.Group{g})
	if err == nil {
		err = s.saveRoot(ctx, b, true)
	}
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("stale group stays so", "group", g.Num, "error", err)
		}
		s.space.SetStale(g)
		return
	}
	s.carryOutWithin(ctx, 0, list)
}

// settleDevices has the devices told, before an orderly end, what only the catalog knows.
// What it does not get to is left to the next open.
func (s *Store) settleDevices(ctx context.Context) {
	for range s.space.SealSuspects() {
		if ctx.Err() != nil {
			return
		}
		s.reconcileStale(ctx)
	}
	for s.intents.Underway() && ctx.Err() == nil { // the cleaner is at it: what it cannot do comes back
		time.Sleep(time.Millisecond)
	}
	defer s.intents.Tried()
	if left := s.intents.Take(); len(left) > 0 {
		s.carryOutWithin(ctx, 0, left)
	}
}

// place finds room for survivors, and begins to write them. Groups that were cleaned before may still wait for the
// marks in their headers, and nobody but the cleaner takes them back: so it looks for them
// while it waits. A spare that is being made has segments too, and is there soon. A catalog
// that refuses the row of a group is not waited for.
func (c *cleaner) place(ctx context.Context, ns *namespaces.Namespace, blocks []*appender.Block) (*appender.Append, int, error) {
	deadline := time.Now().Add(c.s.options.SpaceTimeout)
	for {
		a, n, err := c.s.appends.Rewrite(ctx, ns, space.Kept, blocks, time.Now())
		if err != space.ErrFull || !c.s.space.Emptying() && !c.s.space.Sparing() || time.Now().After(deadline) {
			return a, n, err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return a, n, err
		}
		c.s.space.Regain()
	}
}
