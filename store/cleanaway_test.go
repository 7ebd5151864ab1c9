package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/clean"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// putAway puts blocks of one copy into groups of two drives, seals these groups and gives the first.
func putAway(t *testing.T, s *Store, class skep.Class) (skep.Scope, []skep.Key, *space.Group) {
	ctx := testContext(t)
	sc, keys := openSpace(t, s, "n", class, 1, true), chainKeys(1, 8)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	require.NoError(t, s.Flush(ctx))
	s.space.SealOpen(space.User)
	g := s.space.Groups()[0]
	eventually(t, "nobody writes to it", func() bool { return s.space.IsIdle(g) })
	return sc, keys, g
}

// A group of which a drive is away, or gives no reads, is to be cleaned without dropping anything. It stays, and so
// does what only that drive has: it is there again when the drive is.
func TestNothingIsDroppedForADriveThatIsAway(t *testing.T) {
	t.Parallel()
	for _, class := range []skep.Class{skep.Cache, skep.Durable} {
		for name, away := range map[string]func(s *Store, r *rig) (back func()){
			"dead": func(s *Store, _ *rig) func() {
				d := s.members.Opened[1]
				s.space.Exclude(d, health.Dead, segio.ErrNoDrive)
				return func() { s.space.Include(d, health.Healthy) }
			},
			"reads fail": func(_ *Store, r *rig) func() {
				r.faults[1].MustInject(device.Rule{Action: device.Fail, Kinds: device.Reads})
				return r.faults[1].Clear
			},
		} {
			t.Run(class.String()+", "+name, func(t *testing.T) {
				t.Parallel()
				s, r, _ := openRig(t, func(o *Options) { well(o); o.taskEvery = hangs })
				sc, keys, g := putAway(t, s, class)
				back := away(s, r)
				n, _ := requireRight(t, s, sc, keys, faultBlock)
				require.Less(t, n, len(keys), "only that drive has some")
				err := s.cleaner.Clean(testContext(t), g, true)
				requireKind(t, skep.DeviceFailed, err)
				require.True(t, s.space.Has(g))
				if name == "dead" { // it is known before room is taken elsewhere, for nothing
					require.ErrorContains(t, err, clean.Unread)
				}
				back()
				requireChain(t, s, sc, keys, faultBlock)
				require.NoError(t, s.cleaner.Clean(testContext(t), g, true))
				requireChain(t, s, sc, keys, faultBlock)
				require.Empty(t, unsound(s))
				require.NoError(t, s.Close())
			})
		}
	}
}

// Groups whose drives are all away give no room when they are cleaned, so they are none of the cleaner's victims, however
// short of room the other drives are: what they hold is there again when a drive is. It stays then, too, as long as
// that drive has room to spare and the others have not: what only it holds is the oldest, and opens no group.
func TestADriveThatComesBackIsNotEmptiedForNothing(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) { well(o); o.CapacityBytes, o.taskEvery, o.NoRebalance = 3<<20, hangs, true })
	a, b := s.members.Opened[0], s.members.Opened[1]
	s.space.Exclude(b, health.Fenced, segio.ErrNoDrive)
	sc, keys, g := putAway(t, s, skep.Cache)
	require.False(t, g.Has(b))
	s.space.Include(b, health.Healthy)
	s.space.Exclude(a, health.Dead, segio.ErrNoDrive)
	n := uint32(0)
	put := func() {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{keyOf(n, 9)}, faultBlock))
		n++
	}
	for n < 400 { // several times what the other drive has room for
		put()
	}
	evicted := s.count.Evicted.Load()
	require.Positive(t, evicted)
	s.space.Include(a, health.Healthy)
	requireChain(t, s, sc, keys, faultBlock)
	for s.count.Evicted.Load() < evicted+30 {
		put()
	}
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.Close())
}

// A full store has lost a drive, and each of its groups has Cache blocks of one copy there. Durable blocks have two
// copies again all the same: what the drive may bring back is dropped for them.
func TestCopiesOfDurableBlocksComeBeforeCacheBlocks(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, func(o *Options) {
		quick(o)
		o.DeviceCount, o.CapacityBytes, o.NoRebalance = 3, 6<<20, true
		o.rules.LostAfter, o.taskEvery, o.taskRetry = 20*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	})
	defer func() { require.NoError(t, s.Close()) }()
	durable, cache := openSpace(t, s, "d", skep.Durable, 2, true), openSpace(t, s, "c", skep.Cache, 1, true)
	s.cleaner.Loan.Store(1) // what is cleaned for room, before the mover comes to it, is not what this is about
	var keys []skep.Key
	for i := 0; s.space.Free() > s.space.KeptFree; i++ {
		keys = append(keys, keyOf(uint32(i), 1))
		requireOutcome(t, skep.Committed, putRun(t, s, durable, keys[i:], faultBlock))
		requireOutcome(t, skep.Committed, putRun(t, s, cache, chainKeys(i, 3), faultBlock))
	}
	lost := s.members.Opened[2]
	r.faults[2].MustInject(device.GoneRule())
	groups := len(s.space.GroupsOf(lost))
	require.Greater(t, groups, 5)
	eventually(t, "all copies are there again, or each group was tried many times", func() bool {
		_ = device.ReadAt(testContext(t), lost.Dev, device.AlignedBuffer(layout.PageSize), 0)
		list := s.Tasks()
		return wholeWithout(t, s, lost) || len(list) > 0 && list[0].GroupsDone > 20*groups
	})
	require.True(t, wholeWithout(t, s, lost))
	requireChain(t, s, durable, keys, faultBlock)
	require.Empty(t, unsound(s))
}
