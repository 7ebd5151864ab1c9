package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// accept copies blocks into the DRAM tier, where they are readable at once, and
// commits them behind the caller's back. What does not fit there is committed in
// front of it.
func (s *Store) accept(ctx context.Context, ns *namespaces.Namespace, blocks []*incoming) error {
	todo, err := s.winners(ctx, ns, blocks)
	if err != nil {
		return err
	}
	var behind, front []*incoming
	filtered := s.writeback.Filters(ns)
	for _, in := range todo {
		// What replaces another takes its place when it is committed: were it accepted before
		// that, a put of the other in between would be undone by it.
		if ns.Info.Chained && in.replaces == nil && s.holdOrMakeRoom(ns, in, filtered) {
			behind = append(behind, in)
		} else {
			front = append(front, in)
		}
	}
	if filtered {
		s.writeback.Add(ns, behind)
		behind = nil
		rest := front
		defer s.land(rest)
		var declined []*incoming
		front, declined = s.writeback.Judge(front)
		s.decline(declined, skep.Admission)
	}
	if len(behind) > 0 {
		end := s.accepted.Begin()
		l := lend(func() { // the tier's copies go when no drive writes from them any more
			for _, in := range behind {
				in.unshare()
			}
		})
		for _, in := range behind {
			in.loan = l
		}
		s.background.Go(func() {
			defer end()
			defer l.back()
			defer s.land(behind)
			if err := s.write(s.ctx, ns, space.User, behind); err != nil {
				s.log.Error("accepted blocks not committed", "blocks", len(behind), "error", err)
			}
			promised := s.withdrawAll(ns, behind)
			for _, in := range behind {
				in.parts = nil
			}
			s.keepPromised(ns, promised)
		})
	}
	defer s.land(front)
	return s.write(ctx, ns, space.User, front)
}

// holdOrMakeRoom is hold; where there is no room and blocks wait to be decided on, some
// of them are.
func (s *Store) holdOrMakeRoom(ns *namespaces.Namespace, in *incoming, filtered bool) bool {
	var most int64
	if filtered {
		var waits bool
		if most, waits = s.writeback.Keeps(); !waits {
			return false
		}
	}
	if s.hold(ns, in) {
		return true
	}
	if !filtered || s.cache == nil || in.size > most {
		return false
	}
	s.writeback.MakeRoom(2 * in.size)
	return s.hold(ns, in)
}

// hold puts a copy of a block into the DRAM tier and shows it. False: there is no
// room.
func (s *Store) hold(ns *namespaces.Namespace, in *incoming) bool {
	if s.cache == nil || s.pending.Len() >= admission.MaxWaiting(s.options.CacheBytes) {
		return false
	}
	whole := in.parts
	parts := make([]skep.Part, len(in.parts))
	for i, p := range in.parts {
		name := in.rec.Parts[i].Name
		parts[i].Name = name
		id := memory.IDOf(in.fp, name)
		bytes, v, ok := s.hoard(id, p.Bytes)
		if !ok {
			s.discard(in)
			return false
		}
		parts[i].Bytes = bytes
		in.held = append(in.held, held{id, v})
	}
	given, loan := in.given, in.loan
	in.parts, in.given, in.loan, in.accepted = parts, nil, nil, true
	e := in.entry(ns)
	e.Location = 0
	in.rec.Version = uint32(s.root.Next())
	for i := range in.rec.Parts {
		s.sum(ns, in, i)
	}
	known := in.rec // what is still to be filled in is nobody else's business
	in.known = &known
	s.pending.Add(in.fp, &known)
	if !s.writeback.Filters(ns) { // it is written from there, deleted or not
		for _, h := range in.held {
			b, _ := s.cache.Share(h.id, h.v)
			in.shared = append(in.shared, b...)
		}
	}
	if _, _, err := s.index.Insert(e); err != nil {
		in.unshare()
		s.discard(in) // the way through the drives says why
		in.accepted, in.parts, in.given, in.loan = false, whole, given, loan
		return false
	}
	ns.Stored.Add(in.size)
	// The caller's result is its own; what follows reports elsewhere.
	*in.result = skep.PutResult{Outcome: skep.Accepted}
	in.result = &skep.PutResult{}
	s.tell(s.blockEvent(ns, &in.rec, skep.EventAccepted), in.rec.Instance, namespaces.Tag(in.rec.SaltTag))
	return true
}

// unshare lets go of the memory that was kept for writing from.
func (in *incoming) unshare() {
	memory.ReleaseAll(in.shared)
	in.shared = nil
}

// settled is called when an accepted block is committed: its copy may be evicted now.
func (s *Store) settled(in *incoming) {
	s.pending.Remove(in.fp, in.known)
	for _, h := range in.held {
		s.cache.MarkClean(h.id, h.v)
	}
}

func (s *Store) discard(in *incoming) {
	s.pending.Remove(in.fp, in.known)
	for _, h := range in.held {
		s.cache.Discard(h.id, h.v)
	}
	in.held = nil
}

// held is one part of an accepted block in the DRAM tier.
type held struct {
	id memory.ID
	v  memory.Version
}

// record reads the record of a stored block, wherever it is.
func (s *Store) record(fp index.Fingerprint, e index.Entry) (rec segment.Record, err error) {
	if e.Location == 0 {
		if r := s.pending.Get(fp); r != nil {
			return *r, nil
		}
		// Its commit has just moved it, or it is gone.
		var ok bool
		if e, ok = s.index.Resolve(fp); !ok || e.Location == 0 {
			return rec, errGone
		}
	}
	buf, err := s.catalog.Block(s.ctx, unpack(e.Location), nil)
	if err != nil {
		return rec, err
	}
	err = segment.DecodeRecord(buf, &rec)
	return rec, err
}

// recordNow is record for who does not hold s.changes: the cleaner moves a block's row before it
// moves the index, so one whose row is not there is looked for again when the change of rows under
// way is over. errGone: the block is no longer in the index.
func (s *Store) recordNow(fp index.Fingerprint, e index.Entry) (rec segment.Record, err error) {
	for range lookupTries {
		if rec, err = s.record(fp, e); err == nil || skep.KindOf(err) != skep.NotFound && err != errGone {
			return rec, err
		}
		s.awaitChanges()
		var ok bool
		if e, ok = s.index.Resolve(fp); !ok {
			return rec, errGone
		}
	}
	return rec, &skep.Error{Op: "read record", Kind: skep.Overloaded, Field: "block", Limit: "one that is not moved all the time", Err: err}
}
