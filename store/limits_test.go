package store

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// capOf is the cap of a store, and of what may be leased of it.
func capOf(t *testing.T, s *Store) (capacity, leased int64) {
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	return st.CapacityBytes, s.options.LeasedBytes
}

// A store keeps the cap it was made with, whoever opens it without; another one is refused and both are named, unless
// it is to be changed.
func TestAStoreRemembersItsCap(t *testing.T) {
	t.Parallel()
	o := small(t.TempDir())
	o.CapacityBytes, o.LeasedBytes, o.PinnedBytes = 32<<20, 0, 0
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	open := func(capacity int64, change bool) *Store {
		t.Helper()
		p := o
		p.CapacityBytes, p.ChangeCapacity = capacity, change
		s, err := Open(testContext(t), p)
		require.NoError(t, err)
		return s
	}
	refused := func(capacity int64, has string) {
		t.Helper()
		p := o
		p.CapacityBytes = capacity
		_, err := Open(testContext(t), p)
		requireKind(t, skep.Invalid, err)
		require.ErrorContains(t, err, itoa(int(capacity)))
		require.ErrorContains(t, err, has)
		require.ErrorContains(t, err, "ChangeCapacity")
	}
	is := func(s *Store, want int64) {
		t.Helper()
		capacity, leased := capOf(t, s)
		require.Equal(t, want, capacity)
		if want > 0 {
			require.LessOrEqual(t, leased, want/4)
			for _, d := range s.members.Opened {
				require.NotEqual(t, space.Unlimited, d.Limit, "its devices keep to it")
			}
		}
		require.NoError(t, s.Close())
	}
	is(open(0, false), 32<<20)
	is(open(32<<20, false), 32<<20)
	refused(48<<20, "must be 33554432")
	is(open(0, false), 32<<20)
	is(open(48<<20, true), 48<<20)
	is(open(0, false), 48<<20)
	refused(32<<20, "must be 50331648")
	s = open(0, true)
	require.Equal(t, space.Unlimited, s.members.Opened[0].Limit)
	is(s, 0)
	is(open(0, false), 0)
	refused(32<<20, "must be no cap")
	is(open(32<<20, true), 32<<20)

	p := o
	p.CapacityBytes, p.ReadOnly = 0, true
	s, err = Open(testContext(t), p)
	require.NoError(t, err)
	is(s, 32<<20)
}

// A catalog that is made anew has the cap from the devices; one that does not say, and one of a store from before it
// was noted, take what is given from then on.
func TestACapOutlivesTheCatalog(t *testing.T) {
	t.Parallel()
	o := small(t.TempDir())
	o.CapacityBytes = 32 << 20
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	for _, change := range []int64{0, 48 << 20} {
		if change > 0 {
			o.CapacityBytes, o.ChangeCapacity = change, true
			s, err = Open(testContext(t), o)
			require.NoError(t, err)
			require.NoError(t, s.Close())
		}
		for _, d := range s.members.Opened {
			sb, err := segio.PeekSuperblock(d.Path)
			require.NoError(t, err)
			require.Equal(t, o.CapacityBytes, sb.Capacity)
		}
		p := o
		p.CapacityBytes, p.ChangeCapacity = 0, false
		_, err = Rebuild(testContext(t), p, false, nil)
		require.NoError(t, err)
		again, err := Open(testContext(t), p)
		require.NoError(t, err)
		capacity, _ := capOf(t, again)
		require.Equal(t, o.CapacityBytes, capacity)
		require.NoError(t, again.Close())
		p.CapacityBytes = 64 << 20
		_, err = Open(testContext(t), p)
		requireKind(t, skep.Invalid, err)
	}
}

// How many file devices a store has is not what the next open says: it is refused, and both are named. What it was
// made with may be said for ever.
func TestAnotherNumberOfDevicesIsRefused(t *testing.T) {
	t.Parallel()
	o := small(t.TempDir())
	o.DeviceCount, o.CapacityBytes = 2, 32<<20
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	count := func(n int) error {
		p := o
		p.DeviceCount = n
		s, err := Open(testContext(t), p)
		if err == nil {
			require.NoError(t, s.Close())
		}
		return err
	}
	require.NoError(t, s.Close())
	require.NoError(t, count(0))
	require.NoError(t, count(2))
	err = count(8)
	requireKind(t, skep.Invalid, err)
	require.ErrorContains(t, err, "device count is 8, must be 2, as the store has")
	require.NoFileExists(t, filepath.Join(o.Dir, "device-2"))
	requireKind(t, skep.Invalid, count(1))

	o.DeviceCount = 0
	s, err = Open(testContext(t), o)
	require.NoError(t, err)
	require.NoError(t, s.AddDevice(testContext(t), NewDevice{Path: filepath.Join(o.Dir, "device-2")}))
	require.NoError(t, s.Close())
	require.NoError(t, count(2), "it was made with so many")
	require.NoError(t, count(3))
	requireKind(t, skep.Invalid, count(4))

	_, err = Rebuild(testContext(t), o, false, nil)
	require.NoError(t, err)
	require.NoError(t, count(2), "the devices know it, too")
	requireKind(t, skep.Invalid, count(4))
}
