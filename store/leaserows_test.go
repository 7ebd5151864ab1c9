package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/leases"
	"github.com/skepkv/skep/store/internal/restore"
)

// What is kept of leases and pins does not grow with blocks that were leased, or pinned, and deleted: their promises
// end with them, and so does what they count. Those of blocks that are there stay.
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
	const rounds, each = 6, leases.LeastSifted / 2
	for i := range rounds {
		keys := chainKeys(1+i, each)
		putRun(t, s, sc, keys, 100)
		lease(keys)
		_, err := s.Delete(ctx, sc, keys)
		require.NoError(t, err)
	}
	require.LessOrEqual(t, s.lookups.Leases.Len(), leases.LeastSifted+each)
	require.LessOrEqual(t, s.lookups.Pins.Len(), leases.LeastSifted+each)
	_, err := s.Renew(ctx, first.ID, time.Minute)
	require.NoError(t, err)
	require.NoError(t, s.Release(ctx, first.ID))
	require.NoError(t, s.Release(ctx, first.ID))
	ns, tag, err := s.names.Resolve("test", sc)
	require.NoError(t, err)
	fp := s.names.Fingerprint(ns.Instance, tag, kept[0])
	e, ok := s.index.Resolve(fp)
	require.True(t, ok)
	_, err = s.index.Evict(fp, e.Location)
	require.ErrorIs(t, err, index.ErrProtected, "the pin holds")
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
	const rounds, each = 12, leases.LeastSifted / 4
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
	require.LessOrEqual(t, s.lookups.Leases.Len(), 2*(leases.LeastSifted+each), "leases, and what they cover")
	covers := func(root int) int {
		a := &restore.Asked{NS: ns, Tag: tag, ChainPlan: &layout.ChainPlan{Chain: skep.Chain{Keys: chainKeys(root, 1), Lease: first.ID}}}
		return s.lookups.Covered(a)
	}
	require.Equal(t, 1, covers(0))
	require.Zero(t, covers(1))
	require.NoError(t, s.Release(ctx, first.ID))
	require.Zero(t, covers(0))
}
