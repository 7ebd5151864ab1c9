package store

import (
	"github.com/skepkv/skep/store/internal/locks"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// rivals are the puts of one key under way at once. Where the last writer wins, a record
// says whether an older one of its key may lie on a device, and of two rivals that is
// decided by their sequence numbers, which are given out between begin and the record's
// encoding: one that was encoded before the other began has the lower one.
type rivals struct {
	mu locks.Mutex[locks.Rivals]
	m  map[index.Fingerprint]*rivalry
}

type rivalry struct {
	n         int    // under way
	contended bool   // there were several at once
	since     uint64 // what they put has sequence numbers above this
}

// begin enters blocks whose sequence numbers will be above seq.
func (r *rivals) begin(blocks []*incoming, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = map[index.Fingerprint]*rivalry{}
	}
	for _, in := range blocks {
		v := r.m[in.fp]
		if v == nil {
			v = &rivalry{since: seq}
			r.m[in.fp] = v
		}
		v.n++
		v.contended = v.contended || v.n > 1
	}
}

func (r *rivals) end(blocks []*incoming) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, in := range blocks {
		if v := r.m[in.fp]; v != nil {
			if v.n--; v.n == 0 {
				delete(r.m, in.fp)
			}
		}
	}
}

// contended says whether fp has, or had since it began, a rival.
func (r *rivals) contended(fp index.Fingerprint) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.m[fp]
	return v != nil && v.contended
}

// before is seq, or less where a put of fp is under way: below all that such a put has.
func (r *rivals) before(fp index.Fingerprint, seq uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.m[fp]; v != nil {
		seq = min(seq, v.since)
	}
	return seq
}

// outranked says whether old was written after in, which the catalog and
// a rebuild must agree upon.
func (s *Store) outranked(in *incoming, old index.Entry) bool {
	rec, err := s.record(in.fp, old)
	return err == nil && rec.Written() > in.rec.Written()
}

// tombstoneEntry is what a tombstone takes of an append's log pages.
var tombstoneEntry = segment.EntrySize(segment.TombstoneSize)

// logBlocks gives an append's entries: its mark, its records, and tombstones of the
// blocks they replace by name.
func (s *Store) logBlocks(ns *namespaces.Namespace, a *appending, w *segment.LogWriter) error {
	if err := s.beginLog(w); err != nil {
		return err
	}
	for _, in := range a.blocks {
		if !ns.Info.Chained && in.moved == nil {
			if _, older := s.index.Resolve(in.fp); older || s.rivals.contended(in.fp) {
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
			t := segment.Tombstone{Seq: a.seq, Covers: a.seq, Instance: in.rec.Instance, SaltTag: in.rec.SaltTag, Key: *in.rec.Replaces}
			if err := w.Tombstone(&t); err != nil {
				return err
			}
		}
	}
	return nil
}

// has says whether a group is there yet.
func (sp *groupTable) has(g *group) bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.mu.groups.Has(g)
}

// find gives a group, not pinned.
func (sp *groupTable) find(num uint32) *group {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.mu.groups.Get(num)
}
