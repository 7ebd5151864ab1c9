package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
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
		if ns.Info.Chained && in.Replaces == nil && s.holdOrMakeRoom(ns, in, filtered) {
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
		s.appends.Decline(toWrite(declined), skep.Admission)
	}
	if len(behind) > 0 {
		end := s.puts.Accepted.Begin()
		l := appender.Lend(func() { // the tier's copies go when no drive writes from them any more
			for _, in := range behind {
				in.unshare()
			}
		})
		for _, in := range behind {
			in.Loan = l
		}
		s.background.Go(func() {
			defer end()
			defer l.Back()
			defer s.land(behind)
			if err := s.appends.Write(s.ctx, ns, space.User, toWrite(behind)); err != nil {
				s.log.Error("accepted blocks not committed", "blocks", len(behind), "error", err)
			}
			promised := s.withdrawAll(ns, behind)
			for _, in := range behind {
				in.Parts = nil
			}
			s.keepPromised(ns, promised)
		})
	}
	defer s.land(front)
	return s.appends.Write(ctx, ns, space.User, toWrite(front))
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
	if !filtered || s.cache == nil || in.Size > most {
		return false
	}
	s.writeback.MakeRoom(2 * in.Size)
	return s.hold(ns, in)
}

// hold puts a copy of a block into the DRAM tier and shows it. False: there is no
// room.
func (s *Store) hold(ns *namespaces.Namespace, in *incoming) bool {
	if s.cache == nil || s.puts.Records.Len() >= admission.MaxWaiting(s.options.CacheBytes) {
		return false
	}
	whole := in.Parts
	parts := make([]skep.Part, len(in.Parts))
	for i, p := range in.Parts {
		name := in.Record.Parts[i].Name
		parts[i].Name = name
		id := memory.IDOf(in.FP, name)
		bytes, v, ok := s.hoard(id, p.Bytes)
		if !ok {
			s.discard(in)
			return false
		}
		parts[i].Bytes = bytes
		in.held = append(in.held, held{id, v})
	}
	given, loan := in.Given, in.Loan
	in.Parts, in.Given, in.Loan, in.Accepted = parts, nil, nil, true
	e := in.Entry(ns)
	e.Location = 0
	in.Record.Version = uint32(s.root.Next())
	for i := range in.Record.Parts {
		in.Sum(ns, i)
	}
	known := in.Record // what is still to be filled in is nobody else's business
	in.Known, in.Settled = &known, func() { s.settled(in) }
	s.puts.Records.Add(in.FP, &known)
	if !s.writeback.Filters(ns) { // it is written from there, deleted or not
		for _, h := range in.held {
			b, _ := s.cache.Share(h.id, h.v)
			in.shared = append(in.shared, b...)
		}
	}
	if _, _, err := s.index.Insert(e); err != nil {
		in.unshare()
		s.discard(in) // the way through the drives says why
		in.Accepted, in.Parts, in.Given, in.Loan = false, whole, given, loan
		return false
	}
	ns.Stored.Add(in.Size)
	// The caller's result is its own; what follows reports elsewhere.
	*in.Result = skep.PutResult{Outcome: skep.Accepted}
	in.Result = &skep.PutResult{}
	s.rows.TellOf(ns, &in.Record, skep.EventAccepted)
	return true
}

// hoard copies a part into the DRAM tier as dirty: it stays until the drives have it.
// It gives the copy as one piece where it is one, so that it can be written from, else
// nothing.
func (s *Store) hoard(id memory.ID, src []byte) (mem []byte, v memory.Version, ok bool) {
	if len(src) == 0 || len(src) > s.arena.MaxBlock() {
		return nil, 0, false
	}
	b, err := s.arena.TryAlloc(len(src), memory.BudgetCache)
	if err != nil {
		return nil, 0, false
	}
	mem = b.Bytes()
	copy(mem, src)
	v, err = s.cache.Put(memory.Item{ID: id, Bufs: []*memory.Buffer{b}, Length: int64(len(src)), Dirty: true, Replace: true})
	if err != nil {
		b.Release()
		return nil, 0, false
	}
	return mem, v, true
}

// unshare lets go of the memory that was kept for writing from.
func (in *incoming) unshare() {
	memory.ReleaseAll(in.shared)
	in.shared = nil
}

// settled is called when an accepted block is committed: its copy may be evicted now.
func (s *Store) settled(in *incoming) {
	s.puts.Records.Remove(in.FP, in.Known)
	for _, h := range in.held {
		s.cache.MarkClean(h.id, h.v)
	}
}

func (s *Store) discard(in *incoming) {
	s.puts.Records.Remove(in.FP, in.Known)
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
