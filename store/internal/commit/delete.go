package commit

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// Deleted is what a Delete has done, and what is to follow it.
type Deleted struct {
	Blocks  int
	Intents []catalog.Intent    // to be carried out
	Away    []index.Fingerprint // accepted, and perhaps being committed now: those commits find that they are gone
}

// deletion is a block that is being deleted.
type deletion struct {
	key    skep.Key
	fp     index.Fingerprint
	was    index.Entry
	size   int64
	forget func()
}

// Delete deletes keys in one commit, with their side rows and tombstones of them as intents, after which the index
// forgets them. When the catalog refuses the commit all are there as before.
//
// Errors: Deadline, when ctx has ended before anything happened; the commit's. While the catalog takes none, one may be
// waiting under the lock: then it is refused after 20 ms, or when ctx ends, unless the lock is free before, and else
// refused where something is to be committed.
func (r *Rows) Delete(ctx context.Context, ns *namespaces.Namespace, t namespaces.Tag, keys []skep.Key) (out Deleted,
	err error) {
	var tombs []segment.Tombstone
	var list []deletion
	sided := map[index.Fingerprint]catalog.SideID{}
	if err := r.Catalog.Refuses("delete"); err == nil {
		r.changes.Lock()
	} else if !r.tryChanges(ctx) {
		return out, err
	}
	defer r.changes.Unlock()
	b := r.Catalog.NewBatch()
	if ctx.Err() != nil { // the last moment at which nothing has happened
		return out, &skep.Error{Op: "delete", Kind: skep.Deadline, Err: ctx.Err()}
	}
	seq := r.Root.Next()
	for _, key := range keys {
		fp := r.Names.Fingerprint(ns.Instance, t, key)
		if r.Sidecars.Has(fp) {
			sided[fp] = catalog.SideID{Instance: ns.Instance, Tag: t, Key: key}
			b.DeleteSide(sided[fp])
		}
		e, ok := r.Index.Resolve(fp)
		if !ok || e.Location == 0 { // an earlier delete may have left before it was certain
			out.Away = append(out.Away, fp)
		}
		if !ok {
			if r.Space.AnyStale() { // a record of it may lie on a device for all that
				tombs = append(tombs, tombstoneOf(ns, t, key, seq, r.Puts.Rivals.Before(fp, seq)))
			}
			continue
		}
		d := deletion{key: key, fp: fp, was: e}
		d.size, d.forget = r.forgetter(ns, fp, e)
		list = append(list, d)
		if e.Location == 0 {
			continue
		}
		b.DeleteBlock(layout.Unpack(e.Location))
		written, record := r.writtenAt(fp)
		// A put under way may be committed yet, although it has a lower number.
		covers := r.Puts.Rivals.Before(fp, written)
		tombs = append(tombs, tombstoneOf(ns, t, key, seq, covers))
		if covers < written {
			exact := tombstoneOf(ns, t, key, seq, record)
			exact.Exact = true
			tombs = append(tombs, exact)
		}
	}
	out.Intents, err = r.Intents.PutTombstones(b, r.Space.SegmentBytes, tombs)
	if err == nil && b.Len() > 0 {
		// Not under ctx: the index must follow the rows. With the root row: no number of a
		// tombstone is ever given to what is put later.
		err = r.commitRows(b, func() error { return r.Root.Save(r.Context, r.Catalog, b, true) })
	}
	if err == nil {
		r.Sidecars.Forget(sided)
		out.Blocks = r.deleted(ns, t, list)
	}
	return out, err
}

// tryChanges takes r.changes where nobody has it for longer than 20 ms, or until ctx ends.
func (r *Rows) tryChanges(ctx context.Context) bool {
	const tries, pause = 20, time.Millisecond
	for range tries {
		if r.changes.TryLock() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
	return false
}

// deleted has the index forget blocks whose rows are deleted, and says how many were there still. REQUIRES: r.changes.
func (r *Rows) deleted(ns *namespaces.Namespace, t namespaces.Tag, list []deletion) (n int) {
	locks.Requires(&r.changes)
	for _, d := range list {
		e, ok := r.Index.Remove(d.fp, index.AnyLocation)
		if !ok { // named twice, or withdrawn meanwhile
			continue
		}
		n++
		if e.Location != d.was.Location { // accepted, and committed meanwhile
			l := layout.Unpack(e.Location)
			r.deleteRow(l)
			r.suspect(l) // no tombstone covers its record
		}
		ns.Stored.Add(-d.size)
		d.forget()
		r.tellDeleted(ns, t, d.key, e.Depth)
	}
	return n
}

// tombstoneOf, made at seq, covers every record of a block written up to covers.
func tombstoneOf(ns *namespaces.Namespace, t namespaces.Tag, key skep.Key, seq, covers uint64) segment.Tombstone {
	return segment.Tombstone{Seq: seq, Covers: covers, Instance: ns.Instance, SaltTag: segment.SaltTag(t), Key: key}
}

// writtenAt is when the block's bytes were written, and its record's own number; now when that cannot be read.
func (r *Rows) writtenAt(fp index.Fingerprint) (written, record uint64) {
	e, ok := r.Index.Resolve(fp)
	if !ok || e.Location == 0 {
		return r.Root.Last(), 0
	}
	rec, err := r.Record(fp, e)
	if err != nil {
		return r.Root.Last(), 0
	}
	return rec.Written(), rec.Seq
}
