package moving

import (
	"maps"
	"time"

	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/space"
)

// stuck is the groups that could not be moved, and until when they are left alone.
type stuck struct {
	mu    locks.Mutex[locks.Tasks]
	until map[space.ID]time.Time
}

// add leaves a group alone until then.
func (s *stuck) add(id space.ID, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until[id] = until
}

// has says whether a group is left alone now.
func (s *stuck) has(id space.ID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Before(s.until[id])
}

// forget drops those whose time is over: groups that are gone are asked about no more.
func (s *stuck) forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.until, func(_ space.ID, until time.Time) bool { return !now.Before(until) })
}
