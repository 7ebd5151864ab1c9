package replication

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// held is how many leases the nodes have, and of how many blocks.
func (r *rig) held() (leases, blocks int) {
	r.Helper()
	for _, x := range r.nodes {
		st, err := x.Store.Stats(r.Context())
		require.NoError(r, err)
		leases += st.Leases
		blocks += int(st.LeasedBytes) / 300
	}
	return leases, blocks
}

// concerned is how many nodes blocks [0, n) of a chain are on.
func (r *rig) concerned(keys []skep.Key, n int) int {
	on := map[int]bool{}
	for i := range n {
		on[r.node(keys, i)] = true
	}
	return len(on)
}

// spread is a chain whose first blocks, and whose others, are on every node.
func (r *rig) spread(n, first int) []skep.Key {
	for c := 0; ; c++ {
		if keys := chainOf(c, n); r.concerned(keys, first) == len(r.nodes) && r.concerned(keys[20:], n-20) == len(r.nodes) {
			return keys
		}
	}
}

// A lookup leases what it found: groups behind one that is not whole are given back, and so is all of it with the
// lease. Nodes that know no lookup of runs are asked group by group.
func TestALookupLeasesWhatItFoundAndNoMore(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{false, true} {
		r := cluster(t, 3, 4)
		for _, x := range r.nodes {
			x.old = old
		}
		keys := r.spread(40, 17)
		r.put(keys, 0, 40)
		_, err := r.Delete(t.Context(), r.scope(), keys[17:18])
		require.NoError(t, err)
		of := r.concerned(keys, 17)
		if old {
			of = 5 // one a group
		}
		found := r.find(keys, time.Minute)
		require.Equal(t, 17, found.Blocks)
		leases, blocks := r.held()
		require.Equal(t, of, leases)
		require.Equal(t, 17, blocks)
		longer, err := r.Renew(t.Context(), found.Lease.ID, skep.MaxLease)
		require.NoError(t, err)
		require.True(t, longer.Until.After(found.Lease.Until))
		for i, err := range r.restore(keys[:17], found.Lease.ID) {
			require.NoError(t, err, "block %d", i)
		}
		require.NoError(t, r.Release(t.Context(), found.Lease.ID))
		leases, _ = r.held()
		require.Zero(t, leases)
		s, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: r.scope(), Keys: keys}}})
		require.NoError(t, err)
		leases, blocks = r.held()
		require.Equal(t, of, leases, "while a session reads them")
		require.Equal(t, 17, blocks)
		require.NoError(t, s.Close(t.Context()))
		leases, _ = r.held()
		require.Zero(t, leases)
	}
}

// Each node is asked once for all groups that it has, and once more only where it had more than was wanted.
func TestALookupIsOneCallANode(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	keys := chainOf(1, 400)
	r.put(keys, 0, 400)
	calls := func(f func()) (n int64) {
		for _, x := range r.nodes {
			x.runs.Store(0)
		}
		f()
		for _, x := range r.nodes {
			n += x.runs.Load()
		}
		return n
	}
	require.EqualValues(t, 3, calls(func() { require.Equal(t, 400, r.find(keys, time.Minute).Blocks) }))
	require.EqualValues(t, 3, calls(func() {
		require.Equal(t, 400, r.find(append(keys[:400:400], chainOf(2, 400)...), time.Minute).Blocks)
	}), "nothing lies beyond")
	_, err := r.Delete(t.Context(), r.scope(), keys[200:201])
	require.NoError(t, err)
	require.EqualValues(t, 3, calls(func() { require.Equal(t, 200, r.find(keys, skep.NoLease).Blocks) }), "nothing is leased")
	require.EqualValues(t, 6, calls(func() { require.Equal(t, 200, r.find(keys, time.Minute).Blocks) }))
}

// A lease of a longer chain serves a shorter one, whose last block is whole whatever the longer one's is.
func TestALeaseOfMoreServesLess(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	keys := chainOf(1, 9)
	r.put(keys, 0, 8)
	q := r.request(keys, 8, 9)
	q.Blocks[0].ValidTokens = 1
	_, err := r.Put(t.Context(), q)
	require.NoError(t, err)
	found := r.find(keys, time.Minute)
	require.Equal(t, 9, found.Blocks)
	s, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: r.scope(), Keys: keys[:8], Lease: found.Lease.ID}}})
	require.NoError(t, err)
	require.Equal(t, shape.BlockTokens, s.(*session).chains[0].valid)
	require.NoError(t, s.Close(t.Context()))
}

// Runs of several chains have one lease, under which each of them is restored as it was found.
func TestOneLeaseOfManyRuns(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	q := &skep.RunsRequest{Scope: r.scope(), Lease: time.Minute}
	for c := range 10 {
		keys := chainOf(c, 30)
		r.put(keys, 0, 2*c)
		q.Runs = append(q.Runs, keys)
	}
	got, err := r.LookupRuns(t.Context(), q)
	require.NoError(t, err)
	leases, blocks := r.held()
	require.Equal(t, 3, leases)
	require.Equal(t, 2*(1+2+3+4+5+6+7+8+9), blocks)
	for _, x := range r.nodes {
		x.runs.Store(0)
	}
	for c, run := range q.Runs {
		require.Equal(t, 2*c, got.Runs[c].Blocks)
		for i, err := range r.restore(run[:2*c], got.Lease.ID) {
			require.NoError(t, err, "block %d of chain %d", i, c)
		}
	}
	for _, x := range r.nodes {
		require.Zero(t, x.runs.Load(), "what is leased is not looked up")
	}
	require.NoError(t, r.Release(t.Context(), got.Lease.ID))
	leases, _ = r.held()
	require.Zero(t, leases)
}

// Where a node cannot lease what it is asked again for, what it has leased stays: the prefix is under a lease.
func TestALeaseThatCannotBeCutStays(t *testing.T) {
	t.Parallel()
	r := cluster(t, 3, 4)
	keys := r.spread(40, 17)
	r.put(keys, 0, 40)
	_, err := r.Delete(t.Context(), r.scope(), keys[17:18])
	require.NoError(t, err)
	for _, x := range r.nodes {
		x.onlyRuns.Store(1)
	}
	found := r.find(keys, time.Minute)
	require.Equal(t, 17, found.Blocks)
	leases, blocks := r.held()
	require.Equal(t, 3, leases)
	require.Greater(t, blocks, 17)
	for i, err := range r.restore(keys[:17], found.Lease.ID) {
		require.NoError(t, err, "block %d", i)
	}
	require.NoError(t, r.Release(t.Context(), found.Lease.ID))
	leases, _ = r.held()
	require.Zero(t, leases)
}
