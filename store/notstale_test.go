package store

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
)

// A block is deleted and put again with other bytes. Its first record lies in a group that pins keep; what says that it
// is gone, and the second one, lie elsewhere. However these end, by eviction or with a drive, and whether the catalog
// was lost before or not, a rebuild does not bring the first one back.
func TestWhatWasPutBeforeADeletionIsNotRebuilt(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} {
		for _, drives := range [][]string{nil, {"1"}, {"1", "3"}} {
			t.Run(sprintf("rebuilt before: %t, lost: %v", before, drives), func(t *testing.T) {
				t.Parallel()
				testWhatIsNotRebuilt(t, before, drives)
			})
		}
	}
}

func testWhatIsNotRebuilt(t *testing.T, before bool, drives []string) {
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.NoRebalance, o.Policy = 4, 24<<20, -1, true, "lru"
	o.PinnedBytes, o.Logger = 4<<20, testLog(t)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	only := func(list ...int) { // these take new groups
		for i, d := range s.members.All() {
			s.space.Exclude(d, health.Fenced, segio.ErrNoDrive)
			for _, n := range list {
				if n == i {
					s.space.Include(d, health.Healthy)
				}
			}
		}
	}
	rebuild := func() {
		t.Helper()
		require.NoError(t, s.Close())
		require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
		for _, d := range drives {
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "device-"+d)))
		}
		_, err := Rebuild(ctx, o, false, nil)
		require.NoError(t, err)
		s, err = Open(ctx, o)
		require.NoError(t, err)
	}
	lost := drives
	drives = nil
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	key, pinned := chainKeys(1, 1), chainKeys(2, 2000)
	pin := func() {
		n, err := s.Hint(ctx, sc, pinned, skep.Hint{Pin: skep.MaxPin})
		require.NoError(t, err)
		require.Equal(t, len(pinned), n)
	}
	groupOf := func(key skep.Key) uint32 { // 0: it is not there
		ns, tag, err := s.names.Resolve("test", sc)
		require.NoError(t, err)
		e, _ := s.index.Resolve(s.names.Fingerprint(ns.Instance, tag, key))
		return layout.Unpack(e.Location).Group
	}
	group := func() uint32 { return groupOf(key[0]) }
	only(0, 2)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, pinned[:10], 3000))
	requireOutcome(t, skep.Committed, putRun(t, s, sc, key, 3000))
	first := group()
	some := 10
	for ; groupOf(pinned[some-1]) == first; some++ { // its group is full of what is pinned: to clean it gains nothing
		requireOutcome(t, skep.Committed, putRun(t, s, sc, pinned[some:some+1], 3000))
	}
	pinned = pinned[:some]
	pin()
	only(1, 3)
	n, err := s.Delete(ctx, sc, key)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, key, 4000))
	second := group()
	require.NotEqual(t, first, second)
	only(0, 1, 2, 3)
	if before {
		rebuild()
		pin()
	}
	for _, name := range lost {
		i, err := strconv.Atoi(name)
		require.NoError(t, err)
		s.space.Exclude(s.members.All()[i], health.Dead, segio.ErrNoDrive)
	}
	for i, name := range lost {
		to := NewDevice{Path: filepath.Join(o.Dir, "device-"+strconv.Itoa(4+i))}
		_, err := s.ReplaceDevice(ctx, name, to, MoveOptions{})
		require.NoError(t, err)
	}
	for i := 0; group() != 0 || s.space.Find(second) != nil; i++ { // until the second is evicted, and its group gone
		second = cmp.Or(group(), second) // a replacement moves it
		require.Less(t, i, 500, "its group is not cleaned")
		putRun(t, s, sc, chainKeys(100+i, 20), 9000)
	}
	eventually(t, "the store is at rest", func() bool { return !s.space.Sparing() })
	require.NotNil(t, s.space.Find(first), "what was put first is on a drive")
	require.Equal(t, first, groupOf(pinned[some-2]))
	drives = lost
	rebuild()
	got, reasons := requireRight(t, s, sc, pinned, 3000)
	require.Equal(t, len(pinned), got, "%v", reasons)
	for _, bytes := range storedAll(t, s, []skep.Scope{sc}, key) {
		require.Failf(t, "it is back", "%d bytes; the first one had 3000", len(bytes))
	}
	require.NoError(t, s.Close())
}
