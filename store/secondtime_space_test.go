package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/segment"
)

// freeGroups is how many groups could be opened now.
func freeGroups(s *Store) int {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	return s.freeGroupsLocked()
}

// withoutSpares has the cleaner take the spares back, and gives how many groups are free then.
func withoutSpares(t *testing.T, s *Store) (free int) {
	t.Helper()
	eventually(t, "the spares are made", func() bool { return !s.sparing() })
	free = freeGroups(s)
	unwantSpares(s)
	s.cleaner.kick()
	eventually(t, "their segments are back", func() bool { return freeGroups(s) == free })
	return free
}

// unwantSpares gives the spares to the cleaner.
func unwantSpares(s *Store) {
	s.space.mu.Lock()
	spares := s.space.mu.spares
	s.space.mu.spares = nil
	s.space.mu.Unlock()
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
	s.sealOpen(streamUser)
	free := withoutSpares(t, s)
	var w segment.LogWriter
	require.NoError(t, w.Tombstone(&segment.Tombstone{Seq: 1, Covers: 1}))

	for range free {
		r.during(t, func() error { return s.logEntries(ctx, streamUser, 0, w.Bytes()) })
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
		s.space.mu.Lock()
		defer s.space.mu.Unlock()
		return s.space.mu.sparing == 0 && len(s.space.mu.spares) > 0
	})
	free := freeGroups(s)

	r.on.Store(true)
	unwantSpares(s)
	s.cleaner.unopen()
	require.Less(t, freeGroups(s), free, "an open would find two groups that own a segment")
	r.on.Store(false)

	s.cleaner.kick()
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
	s.space.mu.Lock()
	s.space.mu.sparing++ // one is being made
	opened := s.space.mu.next
	s.space.mu.Unlock()

	r.during(t, func() error {
		_, _, err := s.cleaner.place(testContext(t), nil, nil)
		return err
	})
	s.space.mu.Lock()
	s.space.mu.sparing--
	require.Equal(t, opened+1, s.space.mu.next, "groups that were tried")
	s.space.mu.Unlock()
	require.NoError(t, again().Close())
}
