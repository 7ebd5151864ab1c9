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
func isFreed(g *space.Group) bool { return g.Life.State() >= space.Freed }

// claimed has a group be somebody's for good, so that it is not cleaned.
func (s *Store) claimed(t *testing.T, num uint32) {
	t.Helper()
	c := space.Claim{By: space.Mover}
	eventually(t, "the group is at rest", func() bool { return s.space.Claim(s.space.Find(num), c) })
}

// unwant gives spares that a test took to the cleaner.
func (s *Store) unwant(spares []*space.Group) {
	s.space.Inside().Lock()
	defer s.space.Inside().Unlock()
	for _, g := range spares {
		g.Life.Become(space.Failed)
		s.space.Inside().Unopened = append(s.space.Inside().Unopened, g)
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
	g := openedBy(s, space.User)
	require.False(t, s.space.Claim(g, space.Claim{By: space.Mover}), "it is filled")
	require.Equal(t, space.Open, g.Life.State())
	s.space.SealOpen(space.User)
	for range 100 {
		eventually(t, "it is at rest", func() bool { return s.space.IsIdle(g) })
		var wg sync.WaitGroup
		var have atomic.Int64
		for range 4 {
			wg.Go(func() {
				if s.space.Claim(g, space.Claim{By: space.Mover}) {
					have.Add(1)
				}
			})
			wg.Go(func() {
				if s.space.Claim(g, space.Claim{By: space.Cleaner}) {
					have.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, have.Load())
		require.False(t, s.space.CanClaim(g.Num), "no victim of the cleaner's")
		require.Equal(t, space.ErrBusy, s.cleaner.Clean(testContext(t), g, true))
		s.space.Release(g)
	}
}
