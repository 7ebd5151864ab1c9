package bucket

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/skepkv/skep"
)

const (
	// doubtFor is how long an object may be on its way when the call that put it has failed: what is deleted meanwhile is
	// deleted of it, too. Servers take no call that was signed more than a quarter of an hour ago.
	doubtFor = time.Hour
	// maxDoubts is how many objects of a node may be in doubt; with so many nothing is sent.
	maxDoubts = 16
	// maxNamed is how many keys are said to be deleted of all objects that were not read, each counted for each object;
	// beyond, deletions fail.
	maxNamed = 1 << 20
)

// doubt is an object that may be there or come yet, for its call failed. Nothing of it is found before a look at the
// bucket shows it.
type doubt struct {
	keys   []skep.Key
	has    map[skep.Key]bool // nil: nobody knows what is in it
	size   int64
	until  time.Time
	others bool // another process has announced it
	said   bool // that all of it is deleted, or that is owed
}

func newDoubt(size int64, until time.Time) *doubt { return &doubt{size: size, until: until} }

func (d *doubt) add(k skep.Key) {
	if d.has == nil {
		d.has = map[skep.Key]bool{}
	}
	d.keys = append(d.keys, k)
	d.has[k] = true
}

// all is what says that all of it is deleted, for who owes it.
func (d *doubt) all() []skep.Key {
	d.said = true
	if d.has == nil {
		return []skep.Key{whole}
	}
	return slices.Clone(d.keys)
}

// arrived ends what send began. failed: the object may be there, or come yet. Blocks of it that were deleted meanwhile
// are owed.
func (s *space) arrived(o *object, records []record, failed bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case o == nil || s.objects[o.id] != nil || s.condemned[o.id]: // a look at the bucket has found it
	case failed:
		d := newDoubt(o.size, now.Add(doubtFor))
		for i := range records {
			d.add(records[i].key)
		}
		s.doubts[o.id] = d
		if !s.stale.Before(s.since) {
			s.owed[o.id] = d.all()
		}
	case !s.stale.Before(s.since): // blocks of it may have been deleted without this node
		s.condemned[o.id] = true
	default:
		o.made = now
		s.objects[o.id] = o
		delete(s.unread, o.id)
		s.held.Add(memoryOf(len(records)))
		s.take(o, records, func(k skep.Key) bool {
			_, dead := s.forgotten[k]
			if dead {
				s.owed[o.id] = append(s.owed[o.id], k)
			}
			return !dead
		})
	}
	close(s.sent)
	s.sending, s.sent, s.coming = nil, nil, ""
}

// inDoubt says how many of this node's objects of the space are, and their bytes.
func (s *space) inDoubt() (n int, bytes int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, d := range s.doubts {
		if !d.others {
			n, bytes = n+1, bytes+d.size
		}
	}
	return n, bytes
}

// again says when an object that was not taken into the index is to be read again.
type again uint8

const (
	nextLook again = iota // at the next look
	withRoom              // when the index has room
	never                 // it is of another version
	inVain                // at the next look, after those that were tried in vain less often
)

func (a again) String() string {
	switch a {
	case withRoom:
		return "the index has no room: see bucket.index_bytes"
	case never:
		return "of another version"
	}
	return "not read yet, or refused"
}

// leftOut is an object that is there and not in the index.
type leftOut struct {
	again
	said  int       // keys that were said to be deleted of it, for they may be in it
	since time.Time // it was there
	tries int       // in vain
}

// tooMuch says that more would have to be said of objects that are not in the index than may be, and names one.
func (s *space) tooMuch(named int, id string, why again) error {
	return &skep.Error{Op: op, Kind: skep.Unavailable, Value: named, Limit: fmt.Sprintf("at most %d", maxNamed),
		Field: fmt.Sprintf("deleted keys, of each object that is not in the index as %v (%v),", s.name+blocksDir+id, why)}
}

// leave notes that an object is there and not in the index. What was deleted lately may be in it. Where that is more
// than may be said, the object stays unknown, and who deletes cannot say that it is done.
func (s *space) leave(id string, when again) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaveLocked(id, when)
}

func (s *space) leaveLocked(id string, when again) error {
	if s.objects[id] != nil || s.condemned[id] {
		return nil
	}
	x, before := s.unread[id]
	if x.again = when; when == inVain {
		x.tries++
	}
	if before {
		s.unread[id] = x
		return nil
	}
	if time.Now().Before(s.quiet) {
		s.condemned[id] = true
		return nil
	}
	if named := (len(s.unread) + 1) * len(s.forgotten); named > maxNamed {
		s.complete = false
		return s.tooMuch(named, id, when)
	}
	x.said, x.since = len(s.forgotten), time.Now()
	s.unread[id] = x
	delete(s.doubts, id) // it has arrived, and is owed what was deleted meanwhile
	for k := range s.forgotten {
		s.owed[id] = append(s.owed[id], k)
	}
	return nil
}

// takeOut has an object of the index be one that was not read.
func (s *space) takeOut(o *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[o.id] == o {
		s.unindex(o)
	}
}

// unindex has an object of the index be one that was not read. What was deleted of it until now is owed, or was said:
// no key is found in the index that is forgotten.
func (s *space) unindex(o *object) {
	s.remove(o)
	s.unread[o.id] = leftOut{again: nextLook, since: time.Now()}
}

// unlearn has all objects be ones that were not read.
func (s *space) unlearn() {
	s.puts.Lock()
	defer s.puts.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlearnLocked()
}

func (s *space) unlearnLocked() {
	for _, o := range s.objects {
		s.unindex(o)
	}
}

// relearn is unlearn where others have deleted without this node: only looks that begin later are taken. What it has
// put a while ago, or is putting, others may not have seen when they did: it goes.
func (s *space) relearn(now time.Time) {
	s.puts.Lock()
	defer s.puts.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = now
	for id, o := range s.objects {
		if now.Sub(o.made) < forgetFor {
			s.remove(o)
			s.condemned[id] = true
		}
	}
	for id, d := range s.doubts {
		if !d.others { // of what was announced others have said it
			s.owed[id] = d.all()
		}
	}
	s.unlearnLocked()
}

// lacks says whether an object is there and not in the index.
func (s *space) lacks(id string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, left := s.unread[id]
	return left || s.condemned[id]
}

// toRead says whether an object that the bucket shows is to be read, given whether the index is full.
func (s *space) toRead(id string, full bool) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	x, left := s.unread[id]
	return s.objects[id] == nil && !s.condemned[id] && !(left && (x.again == never || x.again == withRoom && full))
}

// forgetUnsure owes keys of what may have them; mu is held. fresh are those that were not forgotten before: the others
// are owed of objects that were not read, or said. Where that would be too much nothing more is owed of these.
func (s *space) forgetUnsure(keys, fresh []skep.Key) error {
	for id, d := range s.doubts {
		for _, k := range keys {
			s.owe(id, d, k)
		}
	}
	if len(s.unread) == 0 || len(fresh) == 0 {
		return nil
	}
	named, most := len(s.unread)*len(fresh), ""
	for id, x := range s.unread {
		named += x.said
		if most == "" || cmp.Or(cmp.Compare(x.said, s.unread[most].said), cmp.Compare(most, id)) > 0 {
			most = id
		}
	}
	if named > maxNamed {
		return s.tooMuch(named, most, s.unread[most].again)
	}
	for id, x := range s.unread {
		s.owed[id] = append(s.owed[id], fresh...)
		x.said += len(fresh)
		s.unread[id] = x
	}
	return nil
}

// tries says how often each object was tried in vain.
func (s *space) tries() map[string]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	of := map[string]int{}
	for id, x := range s.unread {
		of[id] = x.tries
	}
	return of
}

// settleUnsure ends doubts: of objects that the bucket shows, and of those that do not come any more. Their
// announcements are useless.
func (s *space) settleUnsure(l *listed) (useless []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := func(id string) bool { _, is := l.objects[id]; return is }
	over := func(id string, d *doubt) bool { return there(id) || l.begun.After(d.until) }
	for id := range l.announced {
		if d := s.doubts[id]; there(id) || d != nil && over(id, d) {
			useless = append(useless, id)
		}
	}
	maps.DeleteFunc(s.doubts, over)
	return useless
}

// toRemove names the objects that are to be removed before a deletion is answered.
func (s *space) toRemove() (ids []string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id := range s.condemned {
		ids = append(ids, id)
	}
	return ids
}

// removed notes that they were.
func (s *space) removed(ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.condemned, id)
		delete(s.owed, id)
	}
}
