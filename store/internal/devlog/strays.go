package devlog

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Stray is the tombstone of a record that no row speaks for. Where the block is stored in an older
// version, or in another copy of this one, only this record is meant: it was never
// committed. Else whatever is older is gone as well.
func (l *Log) Stray(ctx context.Context, h *segment.Head) segment.Tombstone {
	t := segment.Tombstone{Seq: l.Root.Next(), Covers: h.Written(), Instance: h.Instance, SaltTag: h.SaltTag, Key: h.Key}
	fp := l.Names.Fingerprint(h.Instance, namespaces.Tag(h.SaltTag), h.Key)
	exact := l.Puts.Rivals.Before(fp, h.Written()) < h.Written()
	if e, ok := l.Index.Resolve(fp); ok && e.Location != 0 {
		// Not as it was a moment ago: a block that is being moved keeps its version.
		rec, err := l.Rows.RecordNow(ctx, fp, e)
		exact = exact || err != commit.ErrGone && (err != nil || h.Written() >= rec.Written())
	}
	if exact {
		t.Covers, t.Exact = h.Seq, true
	}
	return t
}

// Strays are tombstones for the records in g's log that no row speaks for: of
// appends that were never committed, of blocks a crash or a drive damaged. scan visits the log.
func (l *Log) Strays(ctx context.Context, g *space.Group, scan space.Scanner) (list []segment.Tombstone, err error) {
	rows := map[segment.RecordID]bool{}
	err = l.Catalog.ScanGroup(ctx, g.Num, func(at layout.Location, row []byte) error {
		h, err := segment.DecodeHead(row)
		rows[h.ID()] = true
		return catalog.DamagedRow(at, err)
	})
	if err != nil {
		return nil, err
	}
	err = scan(ctx, g, func(a *segment.Append, e segment.Entry) error {
		l.Root.Pass(a.Seq) // of an append that was never committed no row tells
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
		if !l.Names.Dead(h.Instance, namespaces.Tag(h.SaltTag)) {
			list = append(list, l.Stray(ctx, &h))
			t, ok, err := l.unreplaced(ctx, &h, e.Body)
			if err != nil {
				return err
			}
			if ok {
				list = append(list, t)
			}
		}
		return nil
	})
	return list, err
}

// unreplaced is of a record that no row speaks for and that names a tail which is stored: the record's append, as it
// was never committed, has a tombstone of the tail, and this one takes it back. An error: nobody knows whether there is
// such a tail, and the log is to be compared again.
func (l *Log) unreplaced(ctx context.Context, h *segment.Head, record []byte) (t segment.Tombstone, ok bool,
	err error) {
	var rec segment.Record
	if segment.DecodeRecord(record, &rec) != nil || rec.Replaces == nil {
		return t, false, nil
	}
	fp := l.Names.Fingerprint(h.Instance, namespaces.Tag(h.SaltTag), *rec.Replaces)
	e, ok := l.Index.Resolve(fp)
	if !ok || e.Location == 0 {
		return t, false, nil
	}
	tail, err := l.Rows.RecordNow(ctx, fp, e)
	switch {
	case err == commit.ErrGone:
		return t, false, nil
	case err != nil:
		return t, false, err
	case tail.Seq == h.Seq || tail.Written() > h.Seq:
		return t, false, nil
	}
	return segment.Tombstone{Seq: l.Root.Next(), Covers: h.Seq, Exact: true, Instance: h.Instance, SaltTag: h.SaltTag,
		Key: *rec.Replaces}, true, nil
}

// gone finds the namespaces that a group's log says there are, and that are no more, where it does not say so itself:
// what said so may have been lost with drives, and a rebuild has only the logs.
type gone struct {
	l    *Log
	list map[skep.NamespaceID]*segment.Namespace // nil: said here
}

// scan is space.Scanner.
func (o *gone) scan(ctx context.Context, g *space.Group, visit func(*segment.Append, segment.Entry) error) error {
	o.list = map[skep.NamespaceID]*segment.Namespace{}
	return o.l.Space.ScanWholeGroup(ctx, g, func(a *segment.Append, e segment.Entry) error {
		if v, err := segment.DecodeNamespace(e.Body); e.Kind == segment.KindNamespace && err == nil {
			have, known := o.list[v.Info.ID]
			switch n := o.l.Names; {
			case v.Deleted:
				o.list[v.Info.ID] = nil
			case n.Of(v.Instance) == nil && n.Get(v.Info.ID) == nil && (!known || have != nil && v.Instance > have.Instance):
				v.Deleted = true
				o.list[v.Info.ID] = &v
			}
		}
		return visit(a, e)
	})
}

// intend has b say that they are no more.
func (o *gone) intend(b *catalog.Batch) (out []catalog.Intent, err error) {
	var list []*segment.LogWriter
	for _, v := range o.list {
		if v == nil {
			continue
		}
		if n := len(list); n == 0 || list[n-1].Len() > segment.BodySize/2 {
			list = append(list, &segment.LogWriter{})
		}
		if err := list[len(list)-1].Namespace(v); err != nil {
			return nil, err
		}
	}
	for _, w := range list {
		out = append(out, o.l.Intents.Put(b, w))
	}
	return out, nil
}

// Reconcile makes the devices' logs say what the catalog says of the given groups, which
// nobody writes to, by intents in b, to be carried out after its commit.
func (l *Log) Reconcile(ctx context.Context, b *catalog.Batch, groups []*space.Group) ([]catalog.Intent, error) {
	return l.reconcile(ctx, b, groups, func() error { return nil })
}

// reconcile is Reconcile with the commit of b. What is dropped of a group meanwhile was not seen, and nothing is before
// its row says that it is settled: else that came after the one that says what was dropped.
func (l *Log) reconcile(ctx context.Context, b *catalog.Batch, groups []*space.Group,
	commit func() error) (out []catalog.Intent, err error) {
	seen := map[*space.Group]uint64{}
	for _, g := range groups {
		over := gone{l: l}
		stales, err := l.Rows.Stales(g)
		var list []segment.Tombstone
		if err == nil {
			list, err = l.Strays(ctx, g, over.scan)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			l.Log.Warn("log not compared with the catalog", "group", g.Num, "error", err)
			l.Space.SuspectLater(g)
			state := l.Space.StaleRow(g)
			b.PutGroup(&state)
			continue
		}
		more, err := l.Intents.PutTombstones(b, l.Space.SegmentBytes, list)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
		if more, err = over.intend(b); err != nil {
			return nil, err
		}
		out = append(out, more...)
		seen[g] = stales
	}
	l.Rows.Changes().Lock()
	defer l.Rows.Changes().Unlock()
	for g, stales := range seen {
		state, settled := l.Space.Settles(g, stales)
		b.PutGroup(&state)
		if !settled {
			delete(seen, g)
		}
	}
	if err := commit(); err != nil {
		return nil, err
	}
	for g := range seen {
		l.Space.Settled(g)
	}
	return out, nil
}

// ReconcileStale compares one sealed group, of those that failures made stale, with the
// catalog. The cleaner calls it, and Close beside the cleaner: nobody else frees the group
// meanwhile, or a row that says that it is sealed would come after the one that says it is gone.
func (l *Log) ReconcileStale(ctx context.Context) {
	g := l.Space.NextSuspect()
	if g == nil {
		return
	}
	defer l.Space.Release(g)
	b := l.Catalog.NewBatch()
	list, err := l.reconcile(ctx, b, []*space.Group{g}, func() error { return l.Root.Save(ctx, l.Catalog, b, true) })
	if err != nil {
		if ctx.Err() == nil {
			l.Log.Warn("stale group stays so", "group", g.Num, "error", err)
		}
		l.Space.SuspectLater(g)
		return
	}
	l.CarryOutWithin(ctx, 0, list)
}

// Settle has the devices told, before an orderly end, what only the catalog knows.
// What it does not get to within wait is left to the next open, and so is what others have for longer than half of that.
func (l *Log) Settle(ctx context.Context, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for range l.Space.SealSuspects() {
		if ctx.Err() != nil {
			return
		}
		l.ReconcileStale(ctx)
	}
	for began := time.Now(); l.Space.SuspectsHeld() && time.Since(began) < wait/2 && ctx.Err() == nil; {
		time.Sleep(time.Millisecond) // who moves blocks ends now, and gives back what it has
		l.ReconcileStale(ctx)
	}
	for l.Intents.Underway() && ctx.Err() == nil { // the cleaner is at it: what it cannot do comes back
		time.Sleep(time.Millisecond)
	}
	defer l.Intents.Tried()
	if left := l.Intents.Take(); len(left) > 0 {
		l.CarryOutWithin(ctx, 0, left)
	}
}
