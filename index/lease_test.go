package index

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func grant(t testing.TB, x *Index, base uint64, depth int, bytes int64, until time.Time) skep.LeaseID {
	t.Helper()
	d, deepest := lookup(x, base, depth)
	require.Equal(t, depth, d)
	id, err := x.Grant(LeaseRequest{Deepest: deepest, FP: fpOf(base + uint64(depth) - 1), Bytes: bytes, Tenant: 1, Until: until})
	require.NoError(t, err)
	return id
}

func TestALeaseProtectsTheBlockAndAllBeforeIt(t *testing.T) {
	t.Parallel()
	x := open(t, Config{CapacityPages: 100})
	c := chain(0, 20)
	insert(t, x, c...)
	id := grant(t, x, 0, 12, 4096, second(10))

	_, err := x.Evict(c[11].FP, c[11].Location)
	require.ErrorIs(t, err, ErrProtected)
	_, err = x.Evict(c[0].FP, c[0].Location)
	require.ErrorIs(t, err, ErrProtected)
	require.True(t, x.Protected(c[5].FP))
	require.False(t, x.Protected(c[12].FP))
	_, err = x.Evict(c[19].FP, c[19].Location)
	require.NoError(t, err)

	x.Tick(second(9))
	require.True(t, x.Protected(c[5].FP))
	require.NoError(t, x.Renew(id, second(9), second(20)))
	x.Tick(second(19))
	require.True(t, x.Protected(c[5].FP))
	x.Tick(second(20))
	require.False(t, x.Protected(c[5].FP))
	require.ErrorIs(t, x.Renew(id, second(20), second(30)), skep.LeaseExpired)
	_, err = x.Evict(c[0].FP, c[0].Location)
	require.NoError(t, err)
	require.Zero(t, x.Stats().Leases)
}

func TestSharedChainsStayProtectedUntilTheLastLeaseEnds(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	c := chain(0, 30)
	insert(t, x, c...)
	short := grant(t, x, 0, 10, 0, second(100))
	long := grant(t, x, 0, 20, 0, second(100))
	require.True(t, x.Protected(c[0].FP))
	x.Release(long)
	x.Release(long) // again is nothing
	x.Tick(second(1))
	require.True(t, x.Protected(c[9].FP))
	require.False(t, x.Protected(c[10].FP))
	x.Release(short)
	x.Tick(second(1))
	require.False(t, x.Protected(c[0].FP))
}

func TestLeasedBytesAreCapped(t *testing.T) {
	t.Parallel()
	x := open(t, Config{LeaseCapBytes: 100, PinCapBytes: 50, MaxLeases: 3})
	c := chain(0, 4)
	insert(t, x, c...)
	ask := func(depth int, bytes int64, pin bool) (skep.LeaseID, error) {
		_, deepest := lookup(x, 0, depth)
		return x.Grant(LeaseRequest{Deepest: deepest, FP: c[depth-1].FP, Bytes: bytes, Tenant: 1, Until: second(10),
			Pin: pin})
	}
	first, err := ask(4, 80, false)
	require.NoError(t, err)
	_, err = ask(3, 30, false)
	require.ErrorIs(t, err, skep.Quota)
	_, err = ask(4, 51, true)
	require.ErrorIs(t, err, skep.Quota)
	_, err = ask(4, -1, true)
	require.ErrorIs(t, err, skep.Invalid)
	_, err = ask(4, 50, true)
	require.NoError(t, err)
	leased, pinned := x.Held(1)
	require.Equal(t, [2]int64{80, 50}, [2]int64{leased, pinned})

	require.NoError(t, x.SetLimits(1, 200, 50))
	require.ErrorIs(t, x.SetLimits(1, -1, 0), skep.Invalid)
	_, err = ask(3, 120, false)
	require.NoError(t, err)
	_, err = ask(2, 0, false)
	require.ErrorIs(t, err, skep.Full, "a fixed number of leases")
	x.Release(first)
	leased, _ = x.Held(1)
	require.EqualValues(t, 120, leased)
}

// A tenant that looks the same chain up again and again has its bytes leased once, until the last of its leases ends.
func TestLeasesOfOneBlockCountOnce(t *testing.T) {
	t.Parallel()
	x := open(t, Config{LeaseCapBytes: 100, PinCapBytes: 100})
	c := chain(0, 4)
	insert(t, x, c...)
	_, deepest := lookup(x, 0, 4)
	ask := func(tenant uint16, bytes int64, pin bool) skep.LeaseID {
		id, err := x.Grant(LeaseRequest{Deepest: deepest, FP: c[3].FP, Bytes: bytes, Tenant: tenant, Until: second(10),
			Pin: pin})
		require.NoError(t, err)
		return id
	}
	held := func(tenant uint16, leased, pinned int64) {
		l, p := x.Held(tenant)
		require.Equal(t, []int64{leased, pinned}, []int64{l, p})
	}
	a, b := ask(1, 60, false), ask(1, 60, false)
	held(1, 60, 0)
	longer := ask(1, 90, false) // more of them counts for more
	held(1, 90, 0)
	pin, other := ask(1, 60, true), ask(2, 60, false) // neither pins nor another tenant's are the same
	held(1, 90, 60)
	held(2, 60, 0)
	x.Release(longer)
	x.Release(a)
	held(1, 90, 60)
	x.Release(b)
	held(1, 0, 60)
	x.Release(pin)
	x.Release(other)
	held(1, 0, 0)
	require.Empty(t, x.leases.shares)
	require.Empty(t, x.leases.held)
}

func TestGrantNoticesThatTheSlotIsSomebodyElses(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	insert(t, x, chain(0, 1)...)
	_, deepest := lookup(x, 0, 1)
	x.Remove(fpOf(0), AnyLocation)
	ask := LeaseRequest{Deepest: deepest, FP: fpOf(0), Until: second(1)}
	_, err := x.Grant(ask)
	require.ErrorIs(t, err, skep.NotFound)
	insert(t, x, chain(100, 1)...)
	_, now := lookup(x, 100, 1)
	require.Equal(t, deepest, now, "the slot is used again")
	_, err = x.Grant(ask)
	require.ErrorIs(t, err, skep.NotFound)
	_, err = x.Grant(LeaseRequest{Deepest: 12345, FP: fpOf(0)})
	require.ErrorIs(t, err, skep.NotFound)
}

func TestDeletingALeasedBlockEndsThePromise(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	c := chain(0, 5)
	insert(t, x, c...)
	id := grant(t, x, 0, 5, 10, second(100))
	x.Remove(c[4].FP, AnyLocation)
	require.ErrorIs(t, x.Renew(id, second(1), second(200)), skep.LeaseExpired)
	// The slot's next block is nobody's.
	insert(t, x, chain(50, 1)...)
	require.False(t, x.Protected(fpOf(50)))
	x.Tick(second(101))
	require.Zero(t, x.Stats().Leases)
}

func TestALeaseOutlastsDamageToItsAncestors(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	c := chain(0, 6)
	insert(t, x, c...)
	grant(t, x, 0, 6, 0, second(100))
	other := grant(t, x, 0, 2, 0, second(100))
	x.Remove(c[3].FP, AnyLocation)
	insert(t, x, c[3])
	x.Release(other)
	x.Tick(second(1)) // rebuilds
	for i := range c {
		require.True(t, x.Protected(c[i].FP), "block %d", i)
	}
}

func TestGrantsDuringARebuildCount(t *testing.T) {
	t.Parallel()
	x := open(t, Config{})
	c, d := chain(0, 5), chain(100, 5)
	insert(t, x, c...)
	insert(t, x, d...)
	x.Release(grant(t, x, 0, 5, 0, second(10)))
	roots, ok := x.leases.beginRebuild(second(1).UnixNano())
	require.True(t, ok)
	require.Empty(t, roots)
	_, again := x.leases.beginRebuild(second(1).UnixNano())
	require.False(t, again, "one at a time")
	grant(t, x, 100, 3, 0, second(10))
	require.True(t, x.Protected(d[0].FP), "by the old marks")
	x.finishRebuild(nil)
	require.True(t, x.Protected(d[0].FP), "and by the new")
	require.False(t, x.Protected(d[3].FP))
	require.False(t, x.Protected(c[0].FP))
}

// A lease of another run, or of another store, is nobody's here: numbers that a client kept end nothing.
func TestLeasesOfOtherRunsAreNobodys(t *testing.T) {
	t.Parallel()
	given := map[skep.LeaseID]bool{}
	for range 3 {
		x := open(t, Config{})
		insert(t, x, chain(0, 1)...)
		var own []skep.LeaseID
		for range 1000 {
			own = append(own, grant(t, x, 0, 1, 0, second(10)))
		}
		for id := range given {
			x.Release(id)
			require.ErrorIs(t, x.Renew(id, second(1), second(20)), skep.LeaseExpired)
		}
		require.Equal(t, len(own), x.Stats().Leases)
		for _, id := range own {
			require.NotZero(t, id)
			require.False(t, given[id])
			given[id] = true
		}
	}
}
