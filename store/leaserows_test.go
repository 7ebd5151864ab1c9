package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/restore"
)

// What is kept of leases and pins does not grow with blocks that were leased, or pinned, and deleted: their promises end
// with them, and so does what they count. Those of blocks that are there stay.
func TestRowsOfDeletedBlocksAreBounded(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	ctx := testContext(t)
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	kept := chainKeys(0, 1)
	lease := func(keys []skep.Key) (last skep.Lease) {
		for i := range keys {
			r, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys[i : i+1], Lease: time.Minute})
			require.NoError(t, err)
			require.NotZero(t, r.Lease.ID)
			last = r.Lease
		}
		n, err := s.Hint(ctx, sc, keys, skep.Hint{Pin: time.Minute})
		require.NoError(t, err)
		require.Equal(t, len(keys), n)
		return last
	}
	putRun(t, s, sc, kept, 100)
	first := lease(kept)
	const rounds, each = 6, leastSifted / 2
	for i := range rounds {
		keys := chainKeys(1+i, each)
		putRun(t, s, sc, keys, 100)
		lease(keys)
		_, err := s.Delete(ctx, sc, keys)
		require.NoError(t, err)
	}
	leases, pins := rowsKept(s)
	require.LessOrEqual(t, leases, leastSifted+each)
	require.LessOrEqual(t, pins, leastSifted+each)
	_, err := s.Renew(ctx, first.ID, time.Minute)
	require.NoError(t, err)
	require.NoError(t, s.Release(ctx, first.ID))
	require.NoError(t, s.Release(ctx, first.ID))
	ns, tag, err := s.names.Resolve("test", sc)
	require.NoError(t, err)
	s.pins.mu.Lock()
	pin := s.pins.m[s.names.Fingerprint(ns.Instance, tag, kept[0])]
	s.pins.mu.Unlock()
	require.True(t, s.index.Leased(pin.id), "the pin holds")
}

// rowsKept counts what is kept of leases and of pins.
func rowsKept(s *Store) (leases, pins int) {
	s.leases.mu.Lock()
	for _, row := range s.leases.m {
		leases += len(row.ids)
		if row.runs != nil {
			leases += len(row.runs.at)
		}
	}
	s.leases.mu.Unlock()
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	return leases, len(s.pins.m)
}

// Of a lease of many runs it keeps what is left: the lease covers the run that is there, and no other.
func TestALeaseOfRunsKeepsWhatIsLeft(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	ctx := testContext(t)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	ns, tag, err := s.names.Resolve("test", sc)
	require.NoError(t, err)
	const rounds, each = 12, leastSifted / 4
	var first skep.Lease
	for round := range rounds {
		r := &skep.RunsRequest{Scope: sc, Lease: time.Minute}
		var roots []skep.Key
		for i := range each {
			keys := chainKeys(round*each+i, 1)
			putRun(t, s, sc, keys, 100)
			r.Runs, roots = append(r.Runs, keys), append(roots, keys...)
		}
		out, err := s.LookupRuns(ctx, r)
		require.NoError(t, err)
		require.NotZero(t, out.Lease.ID)
		if round == 0 {
			first = out.Lease
		}
		_, err = s.Delete(ctx, sc, roots[1:])
		require.NoError(t, err)
	}
	leases, _ := rowsKept(s)
	require.LessOrEqual(t, leases, 2*(leastSifted+each), "leases, and what they cover")
	covers := func(root int) int {
		a := &restore.Asked{NS: ns, Tag: tag, ChainPlan: &layout.ChainPlan{Chain: skep.Chain{Keys: chainKeys(root, 1)}}}
		return s.leases.covered(first.ID, a, s, s.now())
	}
	require.Equal(t, 1, covers(0))
	require.Zero(t, covers(1))
	require.NoError(t, s.Release(ctx, first.ID))
	require.Zero(t, covers(0))
}
