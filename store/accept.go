package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// accept copies blocks into the DRAM tier, where they are readable at once, and
// commits them behind the caller's back. What does not fit there is committed in
// front of it.
func (s *Store) accept(ctx context.Context, ns *namespace, blocks []*incoming) error {
	todo, err := s.winners(ctx, ns, blocks)
	if err != nil {
		return err
	}
	var behind, front []*incoming
	for _, in := range todo {
		if ns.info.Chained && s.hold(ns, in) {
			behind = append(behind, in)
		} else {
			front = append(front, in)
		}
	}
	if len(behind) > 0 {
		end := s.accepted.begin()
		go0(&s.background, func() {
			defer end()
			defer s.land(behind)
			if err := s.write(s.ctx, ns, streamUser, behind); err != nil {
				s.log.Error("accepted blocks not committed", "blocks", len(behind), "error", err)
			}
			for _, in := range behind {
				if in.result.Outcome != skep.Committed {
					s.withdraw(ns, in)
				}
			}
		})
	}
	defer s.land(front)
	return s.write(ctx, ns, streamUser, front)
}

// hold puts a copy of a block into the DRAM tier and shows it. False: there is no
// room.
func (s *Store) hold(ns *namespace, in *incoming) bool {
	if s.cache == nil {
		return false
	}
	if clash(in.rec.Parts) {
		return false
	}
	whole := in.parts
	parts := make([]skep.Part, len(in.parts))
	for i, p := range in.parts {
		name := in.rec.Parts[i].Name
		parts[i].Name = name
		id := cacheID(in.fp, name)
		bytes, v, ok := s.hoard(id, p.Bytes)
		if !ok {
			s.discard(in)
			return false
		}
		parts[i].Bytes = bytes
		in.held = append(in.held, held{id, v})
	}
	in.parts, in.accepted = parts, true
	e := in.entry(ns)
	e.Location = 0
	in.rec.Version = uint32(s.nextSeq())
	for i := range in.rec.Parts {
		s.sum(ns, in, i)
	}
	known := in.rec // what is still to be filled in is nobody else's business
	s.pending.add(in.fp, &known)
	if _, _, err := s.index.Insert(e); err != nil {
		s.discard(in) // the way through the drives says why
		in.accepted, in.parts = false, whole
		return false
	}
	s.count.blockBytes.Add(in.size)
	// The caller's result is its own; what follows reports elsewhere.
	*in.result = skep.PutResult{Outcome: skep.Accepted}
	in.result = &skep.PutResult{}
	s.events.emit(s.eventOf(ns, in, skep.EventAccepted))
	return true
}

// withdraw takes an accepted block back that could not be committed.
func (s *Store) withdraw(ns *namespace, in *incoming) {
	if _, ok := s.index.Remove(in.fp, 0); ok {
		s.count.blockBytes.Add(-in.size)
	}
	s.discard(in)
	ev := s.eventOf(ns, in, skep.EventEvicted)
	ev.Reason = in.result.Reason
	s.events.emit(ev)
}

// settled is called when an accepted block is committed: its copy may be evicted now.
func (s *Store) settled(in *incoming) {
	s.pending.remove(in.fp)
	for _, h := range in.held {
		s.cache.MarkClean(h.id, h.v)
	}
}

func (s *Store) discard(in *incoming) {
	s.pending.remove(in.fp)
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
		if r := s.pending.get(fp); r != nil {
			return *r, nil
		}
		// Its commit has just moved it, or it is gone.
		var ok bool
		if e, ok = s.index.Resolve(fp); !ok || e.Location == 0 {
			return rec, errGone
		}
	}
	buf, err := s.catalog.Block(s.ctx, locOf(unpack(e.Location)), nil)
	if err != nil {
		return rec, err
	}
	err = segment.DecodeRecord(buf, &rec)
	return rec, err
}
