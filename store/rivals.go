package store

import (
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// logBlocks gives an append's entries: its mark, its records, and tombstones of the
// blocks they replace by name.
func (s *Store) logBlocks(ns *namespaces.Namespace, a *appending, w *segment.LogWriter) error {
	if err := s.beginLog(w); err != nil {
		return err
	}
	for _, in := range a.blocks {
		if !ns.Info.Chained && !in.moved {
			if _, older := s.index.Resolve(in.FP); older || s.puts.Rivals.Contended(in.FP) {
				in.Record.Flags |= segment.RecordSuccessor
			}
		}
		if err := w.Record(&in.Record); err != nil {
			return err
		}
		// A whole block stays. Of what is not there nothing says what it will be: a tombstone would
		// have a rebuild forget a whole block whose put began before.
		if in.Replaces != nil {
			old, ok := s.index.Resolve(*in.Replaces)
			in.DropLogged = ok && old.Partial
		}
		if in.DropLogged {
			t := segment.Tombstone{Seq: a.Seq, Covers: a.Seq, Instance: in.Record.Instance, SaltTag: in.Record.SaltTag, Key: *in.Record.Replaces}
			if err := w.Tombstone(&t); err != nil {
				return err
			}
		}
	}
	return nil
}
