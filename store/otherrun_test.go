package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// What a client keeps of a run of a store is nobody's in the next one, and in another store at the same address:
// leases end nothing, cursors tell of a gap, numbers of namespaces name none.
func TestNumbersOfAnotherRunNameNothing(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	one, _, o := openRig(t, nil)
	sc := openSpace(t, one, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 4)
	requireOutcome(t, skep.Committed, putRun(t, one, sc, keys, faultBlock))
	lease := func(s *Store, sc skep.Scope) skep.LeaseID {
		found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys, Lease: time.Minute})
		require.NoError(t, err)
		require.Len(t, keys, found.Blocks)
		return found.Lease.ID
	}
	cursor := func(s *Store) skep.Cursor {
		events, err := s.Events(ctx, skep.Cursor{}, true)
		require.NoError(t, err)
		defer events.Close()
		into := make([]skep.Event, 1)
		n, err := events.Next(ctx, into)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		return into[0].Cursor
	}
	gap := func(s *Store, from skep.Cursor) {
		events, err := s.Events(ctx, from, false)
		require.NoError(t, err)
		defer events.Close()
		into := make([]skep.Event, 1)
		_, err = events.Next(ctx, into)
		require.NoError(t, err)
		require.Equal(t, skep.EventGap, into[0].Kind)
	}
	kept, at := lease(one, sc), cursor(one)
	require.NoError(t, one.Close())

	again, err := Open(ctx, o)
	require.NoError(t, err)
	defer func() { require.NoError(t, again.Close()) }()
	own := lease(again, sc)
	require.NoError(t, again.Release(ctx, kept))
	_, err = again.Renew(ctx, own, time.Minute)
	require.NoError(t, err, "a lease of the last run ended another's")
	gap(again, at)

	other, _, _ := openRig(t, nil) // opened for the first time, as one was
	defer func() { require.NoError(t, other.Close()) }()
	theirs := openSpace(t, other, "n", skep.Durable, 1, true)
	require.NotEqual(t, sc.Namespace, theirs.Namespace)
	requireOutcome(t, skep.Committed, putRun(t, other, theirs, keys, faultBlock))
	_, err = other.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys})
	requireKind(t, skep.NotFound, err)
	gap(other, at)
}
