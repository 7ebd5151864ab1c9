package index

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// One tenant that takes all the leases it can get leaves some for the next; and it has as many as
// 65,536 when it is alone.
func TestLeasesAreShared(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	c := chain(0, 1)
	insert(t, x, c...)
	_, deepest := lookup(x, 0, 1)
	grant := func(tenant uint16) (skep.LeaseID, error) {
		return x.Grant(LeaseRequest{Deepest: deepest, FP: c[0].FP, Tenant: tenant, Until: second(10)})
	}
	var ids []skep.LeaseID
	var err error
	for id, e := grant(1); err == nil; id, err = grant(1) {
		require.NoError(t, e)
		ids = append(ids, id)
	}
	require.ErrorIs(t, err, skep.Quota)
	require.ErrorContains(t, err, "leases and pins of the tenant is 655")
	require.GreaterOrEqual(t, len(ids), 1<<16)
	for tenant := range uint16(4) { // those who come later
		for range 40 {
			_, err := grant(2 + tenant)
			require.NoError(t, err)
		}
	}
	_, err = grant(1)
	require.ErrorIs(t, err, skep.Quota)
	for range 60 {
		x.Release(ids[len(ids)-1])
		ids = ids[:len(ids)-1]
	}
	_, err = grant(1)
	require.ErrorIs(t, err, skep.Quota, "what others took, it may not have")
	for range 600 {
		x.Release(ids[len(ids)-1])
		ids = ids[:len(ids)-1]
	}
	_, err = grant(1)
	require.NoError(t, err)
}

// So it is with hints, which end with their block.
func TestHintsAreShared(t *testing.T) {
	t.Parallel()
	x := open(t, Config{MaxHints: 16})
	mine, other := chain(0, 20), chain(100, 2)
	for i := range other {
		other[i].Tenant = 1
	}
	insert(t, x, mine...)
	insert(t, x, other...)
	n := 0
	for ; n < len(mine); n++ {
		if err := x.SetHint(second(0), mine[n].FP, Hint{Drop: true}); err != nil {
			require.ErrorIs(t, err, skep.Quota)
			break
		}
	}
	require.Equal(t, 12, n, "three quarters of all")
	require.NoError(t, x.SetHint(second(0), mine[0].FP, Hint{NextUse: second(9)}), "another for a block that has one")
	for _, e := range other {
		require.NoError(t, x.SetHint(second(0), e.FP, Hint{Drop: true}))
	}
	x.Remove(mine[3].FP, AnyLocation)
	require.NoError(t, x.SetHint(second(0), mine[4].FP, Hint{}))
	require.NoError(t, x.SetHint(second(0), mine[15].FP, Hint{Drop: true}))
}

// A block that is removed costs the leases that are on it, however many others there are.
func TestARemovalLooksAtTheLeasesOfItsBlock(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	const n = 200
	c := chain(0, n)
	insert(t, x, c...)
	ids := make([][]skep.LeaseID, n)
	for i := range c {
		_, deepest := lookup(x, 0, i+1)
		for range 1 + i%3 {
			id, err := x.Grant(LeaseRequest{Deepest: deepest, FP: c[i].FP, Until: second(10)})
			require.NoError(t, err)
			ids[i] = append(ids[i], id)
		}
	}
	looked := uint64(0)
	for i := n - 1; i > 0; i-- {
		if i%5 == 0 { // the one in the middle is over before
			x.Release(ids[i][len(ids[i])/2])
			ids[i] = append(ids[i][:len(ids[i])/2], ids[i][len(ids[i])/2+1:]...)
		}
		looked += uint64(len(ids[i]))
		x.Remove(c[i].FP, AnyLocation)
		for _, id := range ids[i] {
			require.ErrorIs(t, x.Renew(id, second(0), second(20)), skep.LeaseExpired)
		}
		for _, id := range ids[i-1] {
			require.NoError(t, x.Renew(id, second(0), second(20)))
		}
	}
	require.Equal(t, looked, x.leases.steps)
	for _, list := range ids {
		for _, id := range list {
			x.Release(id)
		}
	}
	require.Empty(t, x.leases.of)
	require.Empty(t, x.leases.byID)
}
