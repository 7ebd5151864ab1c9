package bucket

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skepkv/skep"
)

const (
	// mergeAt is how many objects say what is deleted of a space when they are made one, or up to twice as many, so that
	// not all nodes do it at once.
	mergeAt = 16
	// mergeKeys is how many keys one of them may name to be merged, and half of what they name together.
	mergeKeys = 1 << 15
)

// merge makes one object of many that say what is deleted of a space's objects. Others list them meanwhile: the new
// one comes later in the order of names and is there before the old ones go, so a listing shows one or the other. Where
// an old one cannot be read any more, who lists has to list again (errMoved).
func (s *Store) merge(ctx context.Context, sp *space, l *listed) error {
	var from []string
	d, keys, last := deletion{Of: map[string][][]byte{}}, 0, time.Now()
	sp.mu.RLock()
	for _, of := range l.deleted {
		h := sp.heard[of]
		if !strings.HasPrefix(of, deletedDir) || h.deletion == nil || !h.at.Before(l.begun) {
			continue
		}
		n := 0
		for id, gone := range h.Of {
			if _, there := l.objects[id]; there {
				n += len(gone)
			}
		}
		if n > mergeKeys || keys+n > maxSaid {
			continue
		}
		keys += n
		from = append(from, of)
		for id, gone := range h.Of {
			if _, there := l.objects[id]; there {
				d.Of[id] = append(d.Of[id], gone...)
			}
		}
		if at := timeOf(strings.TrimPrefix(of, deletedDir)); at.After(last) {
			last = at
		}
	}
	sp.mu.RUnlock()
	if len(from) < mergeAt+rand.N(mergeAt) {
		return nil
	}
	into, err := s.say(ctx, sp, deletedDir, last.Add(time.Millisecond), &d)
	if err != nil {
		return err
	}
	sp.mu.Lock()
	sp.heard[into] = hearing{&d, time.Now()}
	var names []string
	for _, of := range from {
		names = append(names, sp.name+of)
		delete(sp.heard, of)
	}
	sp.mu.Unlock()
	return s.remove(ctx, names)
}

// timeOf is when an id was drawn; zero: it does not say.
func timeOf(id string) time.Time {
	ms, err := strconv.ParseInt(id[:min(len(id), idTime)], 16, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// errMoved says that what a listing shows is there no more: something else may say it now.
var errMoved = &skep.Error{Op: op, Kind: skep.Conflict, Field: "deletion", Value: "gone", Limit: "one that is listed"}

// idle says whether a space's memory says nothing.
func (s *space) idle(now time.Time) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.objects)+len(s.forgotten)+len(s.owed)+len(s.heard)+len(s.doubts)+len(s.unread)+len(s.condemned) == 0 &&
		!s.owedAll && s.sent == nil && now.After(s.quiet) && now.After(s.paused)
}

// forgetSpaces takes spaces out of memory of which there is nothing, here or in the bucket.
func (s *Store) forgetSpaces(of map[string]*listed, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := map[*space]bool{}
	s.ids.Range(func(_, sp any) bool { used[sp.(*space)] = true; return true })
	nothing := func(sp *space) bool {
		l := of[sp.name]
		return l != nil && l.empty() && sp.idle(now)
	}
	for name, sp := range s.spaces {
		if sp.first && !used[sp] && nothing(sp) && (sp.other == nil || nothing(sp.other)) {
			delete(s.spaces, name)
			if sp.other != nil {
				delete(s.spaces, sp.other.name)
			}
		}
	}
}

func (l *listed) empty() bool { return len(l.objects)+len(l.deleted)+len(l.announced) == 0 }

// holds says whether there is more than what was deleted of objects that may come yet, which goes by itself.
func (l *listed) holds() bool {
	said := func(of string) bool { return strings.HasPrefix(of, deletedDir) }
	return len(l.objects)+len(l.announced) > 0 || slices.ContainsFunc(l.deleted, said)
}
