package store

import (
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// outranked says whether old was written after in, which the catalog and
// a rebuild must agree upon.
func (s *Store) outranked(in *incoming, old index.Entry) bool {
	rec, err := s.record(in.fp, old)
	return err == nil && rec.Written() > in.rec.Written()
}

// logBlocks gives an append's entries: its mark, its records, and tombstones of the
// blocks they replace by name.
func (s *Store) logBlocks(ns *namespaces.Namespace, a *appending, w *segment.LogWriter) error {
	if err := s.beginLog(w); err != nil {
		return err
	}
	for _, in := range a.blocks {
		if !ns.Info.Chained && in.moved == nil {
			if _, older := s.index.Resolve(in.fp); older || s.rivals.Contended(in.fp) {
				in.rec.Flags |= segment.RecordSuccessor
			}
		}
		if err := w.Record(&in.rec); err != nil {
			return err
		}
		// A whole block stays. Of what is not there nothing says what it will be: a tombstone would
		// have a rebuild forget a whole block whose put began before.
		if in.replaces != nil {
			old, ok := s.index.Resolve(*in.replaces)
			in.dropLogged = ok && old.Partial
		}
		if in.dropLogged {
			t := segment.Tombstone{Seq: a.Seq, Covers: a.Seq, Instance: in.rec.Instance, SaltTag: in.rec.SaltTag, Key: *in.rec.Replaces}
			if err := w.Tombstone(&t); err != nil {
				return err
			}
		}
	}
	return nil
}
