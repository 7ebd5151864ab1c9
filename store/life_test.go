package store

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
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

// A group at rest is had by one worker at a time, whoever asks at once: the cleaner takes none that a mover has, and
// nobody one that is filled. Who gives it back lets the next have it.
func TestAGroupIsClaimedByOne(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 4), 8<<10))
	s.space.mu.Lock()
	g := s.space.mu.open[streamUser]
	s.space.mu.Unlock()
	require.False(t, s.space.claim(g, space.Claim{By: space.Mover}), "it is filled")
	require.Equal(t, space.Open, g.life.State())
	s.sealOpen(streamUser)
	c := &cleaner{s: s} // the store's own is its goroutine's
	for range 100 {
		eventually(t, "it is at rest", func() bool { return s.space.isIdle(g) })
		var wg sync.WaitGroup
		var have atomic.Int64
		for range 4 {
			wg.Go(func() {
				if s.space.claim(g, space.Claim{By: space.Mover}) {
					have.Add(1)
				}
			})
			wg.Go(func() {
				if c := (&cleaner{s: s}); c.victim() != nil {
					have.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, have.Load())
		require.Nil(t, c.victim())
		require.Equal(t, errGroupBusy, c.cleanAsked(testContext(t), g, true))
		s.space.release(g)
	}
}
