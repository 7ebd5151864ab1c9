package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// freeGroups is how many groups could be opened now.
func freeGroups(s *Store) int {
	return s.space.Free()
}

// withoutSpares has the cleaner take the spares back, and gives how many groups are free then.
func withoutSpares(t *testing.T, s *Store) (free int) {
	t.Helper()
	eventually(t, "the spares are made", func() bool { return !s.space.Sparing() })
	free = freeGroups(s)
	unwantSpares(s)
	s.space.Kick()
	eventually(t, "their segments are back", func() bool { return freeGroups(s) == free })
	return free
}

// unwantSpares gives the spares to the cleaner.
func unwantSpares(s *Store) {
	s.space.Inside().Lock()
	spares := s.space.Inside().Spares
	s.space.Inside().Spares = nil
	s.space.Inside().Unlock()
	s.unwant(spares)
}

// A group whose row the catalog refuses is not opened, and takes no segments with it, however often it is tried:
// puts are committed as soon as the catalog takes rows again.
func TestSecondTimeOpenGroup(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, again := refusingRig(t, nil)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	s.space.SealOpen(space.User)
	free := withoutSpares(t, s)
	var w segment.LogWriter
	require.NoError(t, w.Tombstone(&segment.Tombstone{Seq: 1, Covers: 1}))

	for range free {
		r.during(t, func() error { return s.appends.Entries(ctx, space.User, 0, w.Bytes()) })
	}
	require.Equal(t, free, freeGroups(s))

	more := chainKeys(2, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, more, faultBlock))
	s = again()
	requireChain(t, s, sc, keys, faultBlock)
	requireChain(t, s, sc, more, faultBlock)
	require.NoError(t, s.Close())
}

// Spares that nobody wants have rows. The catalog refuses to forget them: asked again it does, and their segments are
// free.
func TestSecondTimeUnopen(t *testing.T) {
	t.Parallel()
	s, r, again := refusingRig(t, nil)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	eventually(t, "there are spares", func() bool {
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		return s.space.Inside().Sparing == 0 && len(s.space.Inside().Spares) > 0
	})
	free := freeGroups(s)

	r.on.Store(true)
	unwantSpares(s)
	s.space.Unopen()
	require.Less(t, freeGroups(s), free, "an open would find two groups that own a segment")
	r.on.Store(false)

	s.space.Kick()
	eventually(t, "their segments are back", func() bool { return freeGroups(s) == free })
	require.Empty(t, unsound(s))
	s = again()
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.Close())
}

// The cleaner waits for segments that are about to come free, and not for a catalog that refuses rows: what it is to
// keep finds no place, and it says so after one try.
func TestTheCleanerDoesNotWaitForTheCatalog(t *testing.T) {
	t.Parallel()
	s, r, again := refusingRig(t, nil)
	withoutSpares(t, s)
	s.space.Inside().Lock()
	s.space.Inside().Sparing++ // one is being made
	opened := s.space.Inside().Next
	s.space.Inside().Unlock()

	r.during(t, func() error {
		_, _, err := s.cleaner.Place(testContext(t), &namespaces.Namespace{}, nil)
		return err
	})
	s.space.Inside().Lock()
	s.space.Inside().Sparing--
	require.Equal(t, opened+1, s.space.Inside().Next, "groups that were tried")
	s.space.Inside().Unlock()
	require.NoError(t, again().Close())
}
