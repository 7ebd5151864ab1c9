package store

import (
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// exactPolicies have a logical cap beside the room on the drives.
var exactPolicies = []string{"lru", "s3fifo"}

// fillUp puts n blocks of size bytes, one a call, and says how many were declined.
func fillUp(t testing.TB, s *Store, sc skep.Scope, root, n, size int) (declined int) {
	t.Helper()
	for _, k := range chainKeys(root, n) {
		if putRun(t, s, sc, []skep.Key{k}, size)[0].Outcome != skep.Committed {
			declined++
		}
	}
	return declined
}

func blocksOf(t testing.TB, s *Store) int64 {
	t.Helper()
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	return st.Blocks
}

// The logical cap follows the drives: a drive that is added is used, and one that is
// drained is not reckoned with. What was learnt before, that not all of the cap fits, does
// not bring the old cap back.
func TestTheCapFollowsTheDrives(t *testing.T) {
	t.Parallel()
	for _, policy := range exactPolicies {
		t.Run(policy, func(t *testing.T) {
			ctx := testContext(t)
			s, _, o := openRig(t, func(o *Options) { o.Policy, o.NoRebalance, o.SpaceTimeout = policy, true, hangs/4 })
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Cache, 1, false)
			const size = 24 << 10
			require.Zero(t, fillUp(t, s, sc, 1, 400, size))
			before := blocksOf(t, s)

			path := filepath.Join(o.Dir, "device-2")
			require.NoError(t, s.AddDevice(ctx, NewDevice{Path: path, Bytes: 4 << 20}))
			require.Zero(t, fillUp(t, s, sc, 2, 800, size))
			require.Greater(t, float64(blocksOf(t, s)), 1.4*float64(before), "with twice the room")

			_, err := s.DrainDevice(ctx, path, MoveOptions{})
			require.NoError(t, err)
			require.Zero(t, fillUp(t, s, sc, 3, 200, size))
			require.Less(t, float64(blocksOf(t, s)), 1.2*float64(before), "with the room of before")
		})
	}
}

// While a store fills up for the first time, puts wait for cleaning to make room, and none is
// declined: there is always something to drop.
func TestFillingUpDeclinesNothing(t *testing.T) {
	t.Parallel()
	for _, policy := range append([]string{"cost"}, exactPolicies...) {
		t.Run(policy, func(t *testing.T) {
			ctx := testContext(t)
			s, _, _ := openRig(t, func(o *Options) {
				o.Policy, o.SpaceTimeout = policy, hangs/4
				o.BlockBytes = 2 << 10 // what comes is larger than was said
			})
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Cache, 1, false)
			var wg sync.WaitGroup
			results := make([][]skep.PutResult, 4)
			for w := range results {
				wg.Go(func() {
					for _, k := range chainKeys(100+w, 100) {
						r := &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, 1, 60<<10)}}}}}
						res, err := s.Put(ctx, r)
						if err != nil {
							res = []skep.PutResult{{Outcome: skep.Declined, Reason: skep.KindOf(err)}}
						}
						results[w] = append(results[w], res...)
					}
				})
			}
			wg.Wait()
			for _, res := range results {
				requireOutcome(t, skep.Committed, res)
			}
		})
	}
}

// hostDisk is a file system of total bytes that the devices of a rig lie on.
type hostDisk struct {
	r     *rig
	total atomic.Int64
}

func (h *hostDisk) fileSystem(string) (uint64, int64, bool) {
	free := h.total.Load()
	h.r.each(func(_ int, d *device.Fault) { free -= d.Size() })
	return 1, max(0, free), true
}

// File systems that answer now and then are asked once each: what one has is shared out among the devices for which it
// did answer.
func TestAFileSystemThatAnswersNowAndThen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		silent int // which call gets no answer
		want   int64
	}{{0, 1 << 30}, {1, 1 << 30}, {2, 1 << 29}} {
		calls := 0
		o := Options{ReserveBytes: 1 << 30, fileSystem: func(dir string) (uint64, int64, bool) {
			calls++
			return uint64(dir[0]), 2 << 30, calls-1 != tt.silent
		}}
		require.EqualValues(t, tt.want, o.reckonUncapped([]string{"a/0", "a/1", "b/2"}))
	}
}

// openUncapped opens a store without a cap on a file system of total bytes.
func openUncapped(t *testing.T, total int64, change func(o *Options)) (*Store, *hostDisk) {
	h := &hostDisk{}
	h.total.Store(total)
	s, _, _ := openRig(t, func(o *Options) {
		h.r = &rig{seed: 1}
		o.OpenDevice, o.fileSystem = h.r.open, h.fileSystem
		o.CapacityBytes, o.ReserveBytes, o.LeasedBytes, o.PinnedBytes = 0, 1<<20, 0, 0
		o.SpaceTimeout = hangs / 4
		if change != nil {
			change(o)
		}
	})
	return s, h
}

// A device that could not grow, since its file system was full, grows again once there is space, without a restart.
func TestADeviceGrowsAgain(t *testing.T) {
	t.Parallel()
	s, h := openUncapped(t, 40<<20, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	put := func(i int) skep.Outcome { return putRun(t, s, sc, []skep.Key{keyOf(uint32(i), 5)}, 32<<10)[0].Outcome }
	i := 0
	for ; put(i) == skep.Committed; i++ {
		require.Less(t, i, 4000, "40 MiB are full some time")
	}
	size := s.members.Opened[0].Dev.Size()
	h.total.Add(40 << 20)
	s.space.Inside().Lock()
	for _, d := range s.members.Opened {
		d.Stunted = time.Time{} // long ago
	}
	s.space.Inside().Unlock()
	eventually(t, "there is room for puts", func() bool {
		s.space.TryGrowing()
		i++
		return put(i) == skep.Committed && s.members.Opened[0].Dev.Size() > size // another put may find what the last left over
	})
}

// A store without a cap fills its file system with blocks that are all read once, and goes on:
// what is put then stays, though nobody has read it yet, and what was put first goes.
func TestNewBlocksStayInAnUncappedStore(t *testing.T) {
	t.Parallel()
	for _, policy := range append([]string{"cost"}, exactPolicies...) {
		t.Run(policy, func(t *testing.T) {
			s, h := openUncapped(t, 80<<20, func(o *Options) { o.SegmentBytes, o.BlockBytes, o.Policy = 512<<10, 32<<10, policy })
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Cache, 1, false)
			const size = 32 << 10
			for root := range 5 { // more than there is room for
				keys := chainKeys(root, 600)
				for part := range slices.Chunk(keys, 50) {
					requireOutcome(t, skep.Committed, putRun(t, s, sc, part, size))
					_, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: part})
					require.NoError(t, err)
				}
			}
			_, free, _ := h.fileSystem("")
			require.Less(t, free, int64(4<<20), "the file system is full")
			fresh := chainKeys(100, 150)
			for part := range slices.Chunk(fresh, 10) {
				requireOutcome(t, skep.Committed, putRun(t, s, sc, part, size))
			}
			requireChain(t, s, sc, fresh, size)
			st, err := s.Stats(testContext(t))
			require.NoError(t, err)
			require.NotZero(t, st.Evicted)
			require.Zero(t, st.EvictedUnread, "all that went had been read")
		})
	}
}

// What goes without anybody having asked for it is counted by itself.
func TestEvictedUnread(t *testing.T) {
	t.Parallel()
	for _, policy := range append([]string{"cost"}, exactPolicies...) {
		t.Run(policy, func(t *testing.T) {
			s, _, _ := openRig(t, func(o *Options) { o.Policy, o.SpaceTimeout = policy, hangs/4 })
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Cache, 1, false)
			require.Zero(t, fillUp(t, s, sc, 1, 600, faultBlock))
			st, err := s.Stats(testContext(t))
			require.NoError(t, err)
			require.NotZero(t, st.Evicted)
			require.Equal(t, st.Evicted, st.EvictedUnread)
		})
	}
}

// The segments of a new store without a cap fit its file system: there are groups enough for
// cleaning to choose from, and the reserve is left alone.
func TestSegmentsFitTheFileSystem(t *testing.T) {
	t.Parallel()
	const total, reserve = 80 << 20, 8 << 20
	s, h := openUncapped(t, total, func(o *Options) {
		o.SegmentBytes, o.BlockBytes, o.DeviceCount, o.ReserveBytes = 0, 256<<10, 4, reserve
	})
	defer func() { require.NoError(t, s.Close()) }()
	require.GreaterOrEqual(t, (total-reserve)/4/s.space.SegmentBytes, int64(8))
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	require.Zero(t, fillUp(t, s, sc, 1, 400, 256<<10))
	_, free, _ := h.fileSystem("")
	require.GreaterOrEqual(t, free, int64(reserve))
	require.Less(t, free, int64(3*reserve), "the rest is used")
	require.LessOrEqual(t, s.options.LeasedBytes, int64(total/4))
}

// A group has a segment on each drive: of drives of unequal sizes each counts as much as the smallest.
func TestARoomIsOfEvenDrives(t *testing.T) {
	t.Parallel()
	s, _, o := openRig(t, func(o *Options) { o.NoRebalance = true })
	defer func() { require.NoError(t, s.Close()) }()
	before, n := s.space.RoomBytes(), int64(len(s.members.All()))
	require.NoError(t, s.AddDevice(testContext(t), NewDevice{Path: filepath.Join(o.Dir, "large"), Bytes: 64 << 20}))
	require.Equal(t, before/n*(n+1), s.space.RoomBytes())
}

// A drive so small that all together would hold less is refused, and made by whoever says so; nothing of it is left.
func TestASmallDriveDoesNotShrinkTheStore(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, o := openRig(t, func(o *Options) { o.NoRebalance, o.CapacityBytes = true, 16<<20 })
	defer func() { require.NoError(t, s.Close()) }()
	before, n := s.space.RoomBytes(), int64(len(s.members.All()))
	small := NewDevice{Path: filepath.Join(o.Dir, "small"), Bytes: 1 << 20}
	_, err := s.LookAtDevice(ctx, small)
	requireKind(t, skep.Invalid, err)
	err = s.AddDevice(ctx, small)
	requireKind(t, skep.Invalid, err)
	require.ErrorContains(t, err, "--smaller")
	require.Equal(t, before, s.space.RoomBytes())
	require.Len(t, s.members.All(), int(n))

	least := s.members.All()[0].Dev.Size()
	almost := NewDevice{Path: filepath.Join(o.Dir, "almost"), Bytes: least * 9 / 10}
	require.NoError(t, s.AddDevice(ctx, almost), "all hold more with it")
	require.Greater(t, s.space.RoomBytes(), before)

	small.Smaller = true
	_, err = s.LookAtDevice(ctx, small)
	require.NoError(t, err)
	require.NoError(t, s.AddDevice(ctx, small))
	require.Less(t, s.space.RoomBytes(), before)
}
