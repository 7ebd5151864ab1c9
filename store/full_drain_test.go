package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// A device is taken out of a store that is full. Cache blocks make room: some are dropped.
// Durable ones do not: the removal says so, whatever deadline its caller has, loses nothing,
// and works once something is deleted. Nor does the cleaner of such a store spin.
func TestRemoveFromAFullStore(t *testing.T) {
	t.Parallel()
	for _, class := range []skep.Class{skep.Cache, skep.Durable} {
		t.Run(class.String(), func(t *testing.T) {
			ctx := testContext(t)
			s, _, _ := openRig(t, func(o *Options) {
				quick(o)
				o.CapacityBytes, o.taskEvery = 3<<20, hangs
			})
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", class, 1, false)
			var keys []skep.Key
			for i := range 300 {
				k := keyOf(uint32(i), 5)
				if putRun(t, s, sc, []skep.Key{k}, faultBlock)[0].Outcome != skep.Committed {
					break
				}
				keys = append(keys, k)
			}
			if class == skep.Cache {
				_, err := s.RemoveDevice(ctx, "0", MoveOptions{})
				require.NoError(t, err)
				n, _ := requireRight(t, s, sc, keys, faultBlock)
				require.Greater(t, n, 30)
				require.Empty(t, s.space.GroupsOf(s.members.Opened[0]))
				return
			}
			require.Less(t, len(keys), 300, "it is full")
			_, err := s.RemoveDevice(ctx, "0", MoveOptions{})
			requireKind(t, skep.Full, err)
			require.ErrorContains(t, err, "groups left is")
			require.ErrorContains(t, err, "delete something")
			requireChain(t, s, sc, keys, faultBlock)
			eventually(t, "the cleaner rests", func() bool {
				was := s.space.Inside().Fruitless.Load()
				time.Sleep(50 * time.Millisecond)
				return s.space.Inside().Fruitless.Load() == was
			})
			left := keys[:len(keys)/4]
			_, err = s.Delete(ctx, sc, keys[len(left):])
			require.NoError(t, err)
			_, err = s.RemoveDevice(ctx, "0", MoveOptions{})
			require.NoError(t, err)
			requireChain(t, s, sc, left, faultBlock)
		})
	}
}

// A dead drive is taken out of a full store by force: what only it has is given up, however many other blocks come
// before that in a group, and nothing else goes.
func TestRemoveByForceFromAFullStore(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, func(o *Options) {
		well(o)
		o.DeviceCount, o.CapacityBytes, o.taskEvery = 3, 6<<20, hangs
	})
	defer func() { require.NoError(t, s.Close()) }()
	var first []skep.Scope // a batch of what is moved is of one namespace
	for i := range 6 {
		first = append(first, openSpace(t, s, sprintf("first %d", i), skep.Durable, 2, true))
	}
	last := openSpace(t, s, "last", skep.Durable, 1, false)
	s.cleaner.Loan.Store(1) // each group has what the cleaner must not drop, but that needs a drive that is dead first
	n := 0
	for ; s.space.Free() > s.space.KeptFree; n++ {
		sc, k := first[n%len(first)], keyOf(uint32(n), 1)
		requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{k}, faultBlock))
		requireOutcome(t, skep.Committed, putRun(t, s, last, chainKeys(n, 2), faultBlock))
		if n%3 == 2 { // so that what is in it fits into a group without the drive
			s.space.SealOpen(space.User)
		}
	}
	s.space.Exclude(s.members.Opened[1], health.Dead, segio.ErrNoDrive)
	_, err := s.RemoveDevice(ctx, "1", MoveOptions{})
	requireKind(t, skep.DeviceFailed, err)
	p, err := s.RemoveDevice(ctx, "1", MoveOptions{Force: true})
	require.NoError(t, err)
	require.Positive(t, p.GivenUp)
	left := 0
	for i := range n {
		requireChain(t, s, first[i%len(first)], []skep.Key{keyOf(uint32(i), 1)}, faultBlock)
		some, _ := requireRight(t, s, last, chainKeys(i, 2), faultBlock)
		left += some
	}
	require.EqualValues(t, 2*n, int64(left)+p.GivenUp)
	require.Empty(t, unsound(s))
}
