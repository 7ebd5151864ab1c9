package store

import (
	"testing"

	"github.com/skepkv/skep/store/internal/space"
)

// isFreed says that a drive knows that g is free.
func (g *group) isFreed() bool { return g.life.State() >= space.Freed }

// claimed has a group be somebody's for good, so that it is not cleaned.
func (s *Store) claimed(t *testing.T, num uint32) {
	t.Helper()
	c := space.Claim{By: space.Mover}
	eventually(t, "the group is at rest", func() bool { return s.space.claim(s.space.find(num), c) })
}

// unwant gives spares that a test took to the cleaner.
func (s *Store) unwant(spares []*group) {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	for _, g := range spares {
		s.space.unwantLocked(g)
	}
}
