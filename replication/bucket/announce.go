package bucket

import (
	"context"
	"errors"
	"time"

	"github.com/skepkv/skep"
)

const (
	// saidFor is how long an object of another process may be on its way after it was announced, and how long what is said
	// of it stays: its call may take mostTimeout, and end as one that failed.
	saidFor = mostTimeout + doubtFor
	// maxAnnounced is how many keys an announcement may name, and knownAnnounced how many of them of a space a node
	// remembers with their keys. Of what is beyond all is deleted when anything is.
	maxAnnounced   = 1 << 14
	knownAnnounced = 64
)

// whole stands for all keys of an object where it says what is deleted. So the key of zeros is no good one: who deletes
// it deletes all of each object that has it, or may have.
var whole skep.Key

// announcement says in the bucket, before the call begins that puts an object, which blocks it may have. It goes once
// the object is there. Its name comes before the object's in a listing: what shows neither was begun later.
type announcement struct {
	Keys [][]byte `json:"keys"` // nil: too many
}

// announce says which of blocks are about to be put, where any are.
func (s *Store) announce(ctx context.Context, sp *space, id string, blocks []skep.StoredBlock) (
	[]skep.StoredBlock, error) {
	if blocks = sp.announcing(id, blocks, time.Now()); len(blocks) == 0 {
		return nil, nil
	}
	var a announcement
	if len(blocks) <= maxAnnounced {
		for i := range blocks {
			a.Keys = append(a.Keys, blocks[i].Key[:])
		}
	}
	name := sp.name + announcedDir + id
	b, err := sealText(sp.key, name, &a)
	if err != nil {
		return nil, err
	}
	return blocks, s.asked(ctx, &s.why.writes, func(ctx context.Context) error {
		s.budget.owe(1, 0, 0)
		return s.o.Bucket.Put(ctx, name, b)
	})
}

// announced notes, of one listing, what another process has announced, and may come yet: it is in doubt here, too, and
// owed what was deleted lately. Where it can no longer be read the object may be there, and is listed again if that
// matters (errMoved).
func (s *Store) announced(ctx context.Context, sp *space, l *listed, gone goneKeys) error {
	for id := range l.announced {
		if _, there := l.objects[id]; there || !sp.news(id) {
			continue
		}
		var a announcement
		err := s.text(ctx, sp.name+announcedDir+id, &a)
		switch skep.KindOf(err) {
		case skep.NotFound:
			if sp.mourns() {
				return errMoved
			}
			continue
		case skep.Damaged, skep.Version, skep.Denied: // all of it goes where anything does
			s.o.Logger.Warn("an announcement of an object is not read", "name", sp.name+announcedDir+id, "error", err)
			a.Keys = nil
		default:
			if err != nil {
				return err
			}
		}
		d := newDoubt(0, l.begun.Add(saidFor))
		d.others = true
		for _, k := range a.Keys {
			if key, err := skep.ParseKey(k); err == nil {
				d.add(key)
			}
		}
		sp.doubtful(id, d, gone[id])
	}
	return nil
}

// withdraw takes away what announced objects that are there, or do not come.
func (s *Store) withdraw(ctx context.Context, sp *space, ids ...string) {
	var names []string
	for _, id := range ids {
		names = append(names, sp.name+announcedDir+id)
	}
	if err := s.remove(ctx, names); err != nil && !errors.Is(err, skep.Deadline) { // another look tries again
		s.o.Logger.Warn("announcements of objects stay", "objects", len(names), "error", err)
	}
}

// announcing notes the object that this node is about to put, and gives what of these blocks may be in it.
func (s *space) announcing(id string, blocks []skep.StoredBlock, now time.Time) []skep.StoredBlock {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming = id
	return s.sendable(blocks, now)
}

// news says whether an announced object is unknown here.
func (s *space) news(id string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.coming != id && s.doubts[id] == nil && s.objects[id] == nil && !s.condemned[id]
}

// mourns says whether something was deleted lately.
func (s *space) mourns() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.forgotten) > 0 || s.owedAll || time.Now().Before(s.quiet)
}

// doubtful notes an object of another process's that may come yet, of which gone is said to be deleted. What was
// deleted here lately, and is not said, is owed.
func (s *space) doubtful(id string, d *doubt, gone map[skep.Key]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubts[id] != nil || s.objects[id] != nil || s.condemned[id] {
		return
	}
	known := 0
	for _, x := range s.doubts {
		if x.others && x.has != nil {
			known++
		}
	}
	if known >= knownAnnounced {
		d.keys, d.has = nil, nil
	}
	s.doubts[id] = d
	if d.said = gone[whole]; d.said {
		return
	}
	if s.owedAll || time.Now().Before(s.quiet) {
		s.owed[id] = append(s.owed[id], d.all()...)
		return
	}
	for k := range s.forgotten {
		if !gone[k] {
			s.owe(id, d, k)
		}
	}
}

// owe owes what a deleted key means for an object that may come yet; mu is held.
func (s *space) owe(id string, d *doubt, k skep.Key) {
	switch {
	case d.has[k]:
		s.owed[id] = append(s.owed[id], k)
	case d.has == nil && !d.said:
		s.owed[id] = append(s.owed[id], d.all()...)
	}
}
