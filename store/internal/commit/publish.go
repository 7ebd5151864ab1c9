package commit

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Publish commits blocks that were written to g, synced where that is asked for, shows them in the index and fills
// their results. On an error g is stale, and of the blocks it may not be known whether they are stored.
func (r *Rows) Publish(ns *namespaces.Namespace, g *space.Group, blocks []*Block, durable bool) error {
	if err := r.publish(ns, g, blocks, durable); err != nil {
		r.Space.Suspect(g)
		return err
	}
	r.Trim()
	return nil
}

func (r *Rows) publish(ns *namespaces.Namespace, g *space.Group, blocks []*Block, durable bool) error {
	b := r.Catalog.NewBatch()
	var buf []byte
	for _, in := range blocks {
		buf = in.Record.Append(buf[:0])
		b.PutBlock(in.At, buf)
	}
	// Changes of what is there already are serialised with deletes and the cleaner.
	exclusive := !ns.Info.Chained
	for _, in := range blocks {
		exclusive = exclusive || in.Replaces != nil
	}
	if exclusive {
		if err := r.Catalog.Refuses("put"); err != nil {
			b.End()
			return err
		}
		r.changes.Lock()
		defer r.changes.Unlock()
		r.supersede(ns, g, blocks, b)
	}
	if err := r.commit(b, durable); err != nil {
		return err
	}
	if !durable {
		r.SyncSoon()
	}
	var refused []*Block
	for _, in := range blocks {
		if in.outdated {
			*in.Result = skep.PutResult{Outcome: skep.Committed} // it was there for no time at all
		} else if err := r.show(ns, in); err != nil {
			r.refused(in, err)
			refused = append(refused, in)
		}
		if in.Replaces != nil { // its row is gone, whatever became of this one
			r.drop(ns, in)
		}
	}
	return r.takeBack(refused, durable)
}

// supersede adds to b the deletion of every row that blocks make superfluous, so that a crash leaves the old or the
// new and never both; but of a tail that comes in the same append, whose row drop deletes. REQUIRES: r.changes.
func (r *Rows) supersede(ns *namespaces.Namespace, g *space.Group, blocks []*Block, b *catalog.Batch) {
	locks.Requires(&r.changes)
	earlier := map[index.Fingerprint]*Block{} // of the same append
	for _, in := range blocks {
		if by := in.Replaces; by != nil {
			old, ok := r.Index.Resolve(*by)
			ok = ok && old.Partial
			if in.DropPending = ok && old.Location == 0; ok && !in.DropPending {
				in.dropBytes, in.dropForget = r.forgetter(ns, *by, old)
				in.dropAt = old.Location
				in.dropWritten, _ = r.writtenAt(*by)
				b.DeleteBlock(layout.Unpack(old.Location))
			}
		}
		if ns.Info.Chained {
			continue
		}
		if old := earlier[in.FP]; old != nil {
			b.DeleteBlock(old.At)
			in.replacedBytes, in.forget = old.Size, func() { r.forgetCached(in.FP) }
		} else if old, ok := r.Index.Resolve(in.FP); ok && old.Location != 0 {
			if r.Puts.Rivals.Contended(in.FP) && r.outranked(in, old) {
				in.outdated = true
				b.DeleteBlock(in.At)
				r.Space.Suspect(g)
				continue
			}
			in.replacedBytes, in.forget = r.forgetter(ns, in.FP, old)
			b.DeleteBlock(layout.Unpack(old.Location))
		}
		earlier[in.FP] = in
	}
}

// outranked says whether old was written after in, which the catalog and a rebuild must agree upon.
func (r *Rows) outranked(in *Block, old index.Entry) bool {
	rec, err := r.Record(in.FP, old)
	return err == nil && rec.Written() > in.Record.Written()
}

// show makes one committed block visible. The error is the index's, which has no room for it.
func (r *Rows) show(ns *namespaces.Namespace, in *Block) error {
	e := in.Entry(ns)
	switch {
	case in.Accepted:
		if !r.Index.Move(in.FP, 0, e.Location) { // deleted meanwhile
			r.neverShown(in.At)
			r.suspect(in.At) // its record stays in the log, and no tombstone covers it
			return nil
		}
		in.Settled()
	case !ns.Info.Chained:
		_, replaced, err := r.Index.Replace(e)
		if err != nil {
			return err
		}
		if replaced {
			ns.Stored.Add(-in.replacedBytes)
			if in.forget != nil {
				in.forget()
			}
			r.TellOf(ns, &in.Record, skep.EventDeleted)
		}
	default:
		if _, _, err := r.Index.Insert(e); err != nil {
			return err
		}
	}
	*in.Result = skep.PutResult{Outcome: skep.Committed}
	r.Count.PutBlocks.Add(1)
	r.Count.PutBytes.Add(in.Size)
	r.Count.BoundaryPut.Add(boundaryBytes(&in.Record))
	if !in.Accepted { // those were counted when they were
		ns.Stored.Add(in.Size)
	}
	r.TellOf(ns, &in.Record, skep.EventCommitted)
	return nil
}

// boundaryBytes is what of a block's payload is boundary activations.
func boundaryBytes(rec *segment.Record) (n int64) {
	for i := range rec.Parts {
		if _, _, ok := skep.BoundaryOf(rec.Parts[i].Name); ok {
			n += rec.Parts[i].Size
		}
	}
	return n
}

// suspectDropped suspects the group of what in dropped where no tombstone covers its record, which stays in the log.
func (r *Rows) suspectDropped(in *Block, e index.Entry, written uint64) {
	if written > in.DropCovers {
		r.suspect(layout.Unpack(e.Location))
	}
}

// suspect has the group at l compared with the catalog.
func (r *Rows) suspect(l layout.Location) {
	if g := r.Space.Find(l.Group); g != nil {
		r.Space.Suspect(g)
	}
}

// drop removes a partial tail that another block has made superfluous. REQUIRES: r.changes.
func (r *Rows) drop(ns *namespaces.Namespace, in *Block) {
	locks.Requires(&r.changes)
	e, ok := r.Index.Resolve(*in.Replaces)
	if !ok || !e.Partial {
		return
	}
	if in.dropAt != 0 && in.dropAt == e.Location { // its row is deleted
		if e, ok = r.Index.Remove(*in.Replaces, index.AnyLocation); ok {
			ns.Stored.Add(-in.dropBytes)
			in.dropForget()
			r.suspectDropped(in, e, in.dropWritten)
		}
	} else {
		written, _ := r.writtenAt(*in.Replaces)
		if e, ok = r.remove(ns, *in.Replaces); ok && e.Location != 0 {
			r.deleteRow(layout.Unpack(e.Location))
			in.DropPending = true // unsynced: see Settle
			r.suspectDropped(in, e, written)
		}
	}
	if ok {
		r.tellDeleted(ns, in.tag(), *in.Record.Replaces, e.Depth)
	}
}

// remove takes a block out of the index and the DRAM tier. REQUIRES: r.changes.
func (r *Rows) remove(ns *namespaces.Namespace, fp index.Fingerprint) (e index.Entry, ok bool) {
	locks.Requires(&r.changes)
	if e, ok = r.Index.Resolve(fp); !ok {
		return e, false
	}
	size, forget := r.forgetter(ns, fp, e)
	if e, ok = r.Index.Remove(fp, index.AnyLocation); ok {
		ns.Stored.Add(-size)
		forget()
	}
	return e, ok
}

// refused says of a block that the index has no room for it. Its row goes next: takeBack.
func (r *Rows) refused(in *Block, err error) {
	r.suspect(in.At)
	r.log.Warn("block not indexed", "key", in.Record.Key.Short(), "error", err)
	kind := skep.KindOf(err)
	if kind != skep.NoMemory {
		kind = skep.Full
	}
	*in.Result = skep.PutResult{Outcome: skep.Declined, Reason: kind}
	r.Count.Declined.Add(kind)
}

// takeBack deletes the rows of refused blocks. Those that were synced are deleted so, too, before anybody is told that
// they were declined: no crash brings them back.
func (r *Rows) takeBack(list []*Block, durable bool) error {
	if len(list) == 0 {
		return nil
	}
	b := r.Catalog.NewBatch()
	var rows []layout.Location
	for _, in := range list {
		rows = append(rows, in.At)
		b.DeleteBlock(in.At)
	}
	err := r.commit(b, durable)
	if err != nil {
		r.owed.add(rows...)
	}
	if err != nil || !durable {
		r.loose.Add()
	}
	return err
}
