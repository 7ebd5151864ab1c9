package commit

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// LiesAt says whether the index has a block at l: it may be of a salt that is purged.
func (r *Rows) LiesAt(fp index.Fingerprint, l layout.Location) bool {
	e, ok := r.Index.Resolve(fp)
	return ok && e.Location == l.Pack()
}

// Stands says of the block of a record that lies at l, or did, that it is to be found, and there.
func (r *Rows) Stands(fp index.Fingerprint, l layout.Location, rec *segment.Record) bool {
	return r.LiesAt(fp, l) && !r.Names.Dead(rec.Instance, namespaces.Tag(rec.SaltTag))
}

// Move commits blocks that were written again to g and points the index at them. moved are those that it moved: what
// was deleted, or put again, meanwhile is not among them. Deletes are kept out between looking and moving, so that
// none is undone. On an error nothing has moved, or the store has failed.
func (r *Rows) Move(ns *namespaces.Namespace, g *space.Group, blocks []*Block) (moved []*Block, err error) {
	r.changes.Lock()
	defer r.changes.Unlock()
	b := r.Catalog.NewBatch()
	var buf []byte
	var still []*Block
	for _, in := range blocks {
		if e, ok := r.Index.Resolve(in.FP); !ok || e.Location != in.From.Pack() {
			r.Space.Suspect(g) // its copy lies there now
			continue
		}
		buf = in.Record.Append(buf[:0])
		b.PutBlock(in.At, buf)
		b.DeleteBlock(in.From)
		still = append(still, in)
	}
	if err := r.commit(b, false); err != nil {
		return nil, err
	}
	for _, in := range still {
		if r.Index.Move(in.FP, in.From.Pack(), in.At.Pack()) {
			moved = append(moved, in)
			r.Count.MovedBytes.Add(in.Size)
			r.TellOf(ns, &in.Record, skep.EventMoved)
		} else { // found damaged by a reader meanwhile
			r.neverShown(in.At)
			r.Space.Suspect(g)
		}
	}
	return moved, nil
}
