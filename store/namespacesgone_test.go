package store

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/storetest"
)

// dropSpares has no group ready to be opened: what is opened from now on is opened now.
func (s *Store) dropSpares() {
	for {
		s.space.Inside().Lock()
		n := len(s.space.Inside().Spares) + s.space.Inside().Sparing
		spares := s.space.Inside().Spares
		s.space.Inside().Spares = nil
		s.space.Inside().Unlock()
		s.unwant(spares)
		if n == 0 {
			return
		}
	}
}

// cleanUp cleans all groups but some, until their segments are free.
func cleanUp(t *testing.T, s *Store, but ...*space.Group) {
	t.Helper()
	for _, g := range s.space.Groups() {
		if len(but) > 0 && g == but[0] {
			continue
		}
		s.space.Seal(g) // it may be the one that survivors of another went to
		eventually(t, "a group is cleaned", func() bool { return s.space.Find(g.Num) == nil || s.cleaner.Clean(t.Context(), g, false) == nil })
		eventually(t, "its segments are free", func() bool { s.space.Kick(); return isFreed(g) })
	}
}

// deleteAnother makes a namespace and deletes it. The number of one deleted before is not the last any more, which is
// said for ever.
func deleteAnother(t *testing.T, s *Store) {
	require.NoError(t, s.DeleteNamespace(testContext(t), openSpace(t, s, "last", skep.Durable, 1, true).Namespace))
}

// While a namespace is deleted, cleaning, which has found it before, writes the namespace's own entry again, to a
// group opened since. Then the group goes that says that it is deleted: a rebuild does not bring the namespace back.
func TestANamespaceDeletedWhileItsGroupIsCleanedStaysDeleted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.CacheBytes = -1
	s, err := Open(ctx, o)
	require.NoError(t, err)
	gone := openSpace(t, s, "gone", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, gone, chainKeys(1, 5), 3000))
	s.space.SealOpen(space.User)
	eventually(t, "the store is at rest", func() bool { return !s.space.Sparing() })
	s.dropSpares()

	cleaned := s.logs.Entering.Begin()
	found := entriesOf(t, *s.names.Get(gone.Namespace).Entry(s.root.Next()))
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) { require.NoError(t, s.DeleteNamespace(ctx, gone.Namespace)) })
	eventually(t, "it is gone", func() bool { return s.names.Get(gone.Namespace) == nil })
	require.NoError(t, s.appends.Entries(ctx, space.Kept, 0, found))
	second := openedBy(s, space.Kept)
	s.space.SealOpen(space.Kept)
	cleaned()
	crew.Wait()
	deleteAnother(t, s)
	eventually(t, "its blocks are swept", func() bool { return s.index.Stats().Blocks == 0 && !s.naming.Sweeping() })
	s.space.SealOpen(space.User)
	cleanUp(t, s, second)
	requireNothingAfterARebuild(t, s, o)
}

// A store that is full has not told its devices what a namespace is when it is deleted: it is not told later.
func TestANamespaceDeletedBeforeItsDevicesKnewIt(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	s.space.Opening <- struct{}{} // no group can be opened
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	info, err := s.OpenNamespace(short, skep.NamespaceSpec{Tenant: "t", Name: "gone", Shape: anySize, Class: skep.Durable, Chained: true})
	require.NoError(t, err)
	s.space.Opening.Give()
	require.False(t, s.logs.Intents.None())
	require.NoError(t, s.DeleteNamespace(ctx, info.ID))
	deleteAnother(t, s)
	s.space.SealOpen(space.User)
	eventually(t, "the store is at rest", func() bool { return !s.space.Sparing() })
	s.dropSpares()
	s.logs.Retry()
	second := openedBy(s, space.User)
	s.space.SealOpen(space.User)
	cleanUp(t, s, second)
	requireNothingAfterARebuild(t, s, o)
}

// The last number that was given is not given again by a rebuild, however long ago its namespace was deleted.
func TestTheNumberOfADeletedNamespaceIsNotGivenAgain(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	gone := openSpace(t, s, "gone", skep.Durable, 1, true)
	require.NoError(t, s.DeleteNamespace(ctx, gone.Namespace))
	for range 3 {
		s.space.SealOpen(space.User)
		s.space.SealOpen(space.Kept)
		eventually(t, "the store is at rest", func() bool { return !s.space.Sparing() })
		s.dropSpares()
		cleanUp(t, s)
	}
	s = requireNothingAfterARebuild(t, s, o)
	require.NotEqual(t, gone.Namespace, openSpace(t, s, "next", skep.Durable, 1, true).Namespace)
}

// requireNothingAfterARebuild closes a store, has it opened without its catalog, and gives it: it has no namespace.
func requireNothingAfterARebuild(t *testing.T, s *Store, o Options) *Store {
	t.Helper()
	require.NoError(t, s.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	list, err := s.Namespaces(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	return s
}

// What purges leave in the catalog, and in memory, goes when nothing is left of what they purged.
func TestPurgesLeaveNothingForEver(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	salted := sc
	salted.Salt = "salt"
	const purges = 20
	for i := range purges {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(i, 2), faultBlock))
		requireOutcome(t, skep.Committed, putRun(t, s, salted, chainKeys(i, 2), faultBlock))
		require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &salted}))
	}
	rows := func() int {
		list, err := s.catalog.Purges(ctx)
		require.NoError(t, err)
		return len(list)
	}
	require.Equal(t, purges, rows(), "one for the salt, and one for each tag that it had but the first")
	for i := 0; rows() > 1; i++ {
		require.Less(t, i, 100)
		s.space.SealOpen(space.User)
		s.space.SealOpen(space.Kept)
		eventually(t, "the store is at rest", func() bool { return !s.space.Sparing() })
		s.dropSpares()
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1000+i, 1), faultBlock))
		cleanUp(t, s)
	}
	require.Len(t, maps.Collect(s.names.DeadSalts()), 1)
	for range purges {
		require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}))
	}
	require.Zero(t, rows())
	require.NoError(t, s.Close())
}
