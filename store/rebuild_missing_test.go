package store

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/space"
)

// A rebuild without one of the drives keeps what the others hold, says what it does not
// keep, brings nothing back that was deleted or put over, and the store goes on.
func TestRebuildWithoutADrive(t *testing.T) {
	t.Parallel()
	const n, size = 60, 9000
	for _, missing := range []int{0, 2} { // the last is known by the others' superblocks only
		t.Run("device "+strconv.Itoa(missing), func(t *testing.T) {
			ctx := testContext(t)
			o := small(tempRoot(t, "store"))
			o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.Logger = 3, 12<<20, -1, testLog(t)
			s, err := Open(ctx, o)
			require.NoError(t, err)
			once, twice := openSpace(t, s, "once", skep.Cache, 1, false), openSpace(t, s, "twice", skep.Durable, 2, false)
			keys := chainKeys(1, n)
			for _, sc := range []skep.Scope{once, twice} {
				if sc == twice { // what is stored once may come back as it was
					putRun(t, s, sc, keys, size/2)
				}
				for run := range slices.Chunk(keys, 6) { // what is put at once has its records on one drive
					requireOutcome(t, skep.Committed, putRun(t, s, sc, run, size)) // over the others
				}
				_, err = s.Delete(ctx, sc, keys[:10])
				require.NoError(t, err)
			}
			require.NoError(t, s.Close())
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
			require.NoError(t, os.Remove(filepath.Join(o.Dir, "device-"+strconv.Itoa(missing))))

			_, err = Rebuild(ctx, o, false, nil)
			requireKind(t, skep.Missing, err)
			o.Degraded = DegradedAlways
			dry, err := Rebuild(ctx, o, true, nil)
			require.NoError(t, err)
			rep, err := Rebuild(ctx, o, false, nil)
			require.NoError(t, err)
			require.Equal(t, []int64{dry.Blocks, dry.Unreadable, 1}, []int64{rep.Blocks, rep.Unreadable, int64(rep.Missing)})
			require.NotZero(t, rep.Unreadable, "some of the blocks stored once lay on the drive")
			require.Zero(t, rep.Durable)
			require.EqualValues(t, rep.Blocks-(n-10), rep.MayBeOld, "what is stored once")
			require.Len(t, rep.Faults, int(rep.Unreadable)+1)
			for _, f := range rep.Faults[:rep.Unreadable] {
				require.NotEmpty(t, f.Key)
			}

			o.Degraded = DegradedAuto
			for range 2 {
				s, err = Open(ctx, o)
				require.NoError(t, err)
				for _, sc := range []skep.Scope{once, twice} {
					got, reasons := requireRight(t, s, sc, keys[10:], size)
					want := n - 10
					if sc == once {
						want = int(rep.Blocks) - (n - 10)
						require.Less(t, got, n-10)
					}
					require.Equal(t, want, got, "%v", reasons)
					got, _ = requireRight(t, s, sc, keys[:10], size)
					require.Zero(t, got, "deleted")
				}
				require.Empty(t, unsound(s))
				putRun(t, s, once, chainKeys(9, 5), size)
				requireChain(t, s, once, chainKeys(9, 5), size)
				require.NoError(t, s.Close())
			}
		})
	}
}

// What a namespace is stands on two drives. A rebuild without one of them has the next open write it again:
// whichever drive is lost then, the namespace is known to the rebuild after that.
func TestRebuildWithoutADriveHasNamesLoggedAgain(t *testing.T) {
	t.Parallel()
	for first := range 3 {
		for second := range 3 {
			if second == first {
				continue
			}
			t.Run(strconv.Itoa(first)+" then "+strconv.Itoa(second), func(t *testing.T) {
				ctx := testContext(t)
				o := small(tempRoot(t, "store"))
				o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.Logger, o.Degraded = 3, 12<<20, -1, testLog(t), DegradedAlways
				s, err := Open(ctx, o)
				require.NoError(t, err)
				sc, keys := openSpace(t, s, "everywhere", skep.Durable, 3, false), chainKeys(1, 5)
				requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 9000))
				require.NoError(t, s.Close())
				for _, missing := range []int{first, second} {
					require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
					require.NoError(t, os.Remove(filepath.Join(o.Dir, "device-"+strconv.Itoa(missing))))
					rep, err := Rebuild(ctx, o, false, nil)
					require.NoError(t, err)
					require.Zero(t, rep.Unnamed)
					require.EqualValues(t, len(keys), rep.Blocks)
					s, err := Open(ctx, o)
					require.NoError(t, err)
					requireChain(t, s, sc, keys, 9000)
					require.NoError(t, s.Close())
				}
			})
		}
	}
}

// A group of which one header never came to its drive, or was damaged there, has it again
// after a rebuild: a crash may have cut off its opening. A dry run writes nothing.
func TestRebuildWritesMissingHeaders(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"blank", "damaged"} {
		t.Run(what, func(t *testing.T) {
			ctx := testContext(t)
			o := small(tempRoot(t, "store"))
			o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.Logger = 3, 12<<20, -1, testLog(t)
			s, err := Open(ctx, o)
			require.NoError(t, err)
			sc := openSpace(t, s, "chat", skep.Durable, 2, false)
			putRun(t, s, sc, chainKeys(1, 6), 9000)
			g := s.space.Inside().Open[space.User]
			require.NotNil(t, g)
			d, at := g.Drives[1], g.Drives[1].SegmentOffset(g.Segments[1])
			require.NoError(t, s.Close())

			file, err := os.OpenFile(d.Path, os.O_RDWR, 0)
			require.NoError(t, err)
			defer file.Close()
			page := make([]byte, layout.PageSize)
			if what == "damaged" {
				_, err = file.ReadAt(page, at)
				require.NoError(t, err)
				flip(page)
			}
			_, err = file.WriteAt(page, at)
			require.NoError(t, err)

			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
			_, err = Rebuild(ctx, o, true, nil)
			require.NoError(t, err)
			still := make([]byte, layout.PageSize)
			_, err = file.ReadAt(still, at)
			require.NoError(t, err)
			require.Equal(t, page, still, "a dry run wrote to a device")

			rep, err := Rebuild(ctx, o, false, nil)
			require.NoError(t, err)
			require.EqualValues(t, 6, rep.Blocks)
			sound, err := Verify(ctx, o, VerifyOptions{Deep: true})
			require.NoError(t, err)
			require.Empty(t, sound.Faults)
		})
	}
}

// Numbers of devices that were removed long ago are not missing: blocks in two copies are no older than they were when
// one device is.
func TestRebuildCountsWhatIsMissing(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(t.TempDir())
	o.DeviceCount = 5
	s := openTest(t, o)
	sc := openSpace(t, s, "n", skep.Cache, 2, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 6), 4<<10))
	_, err := s.RemoveDevice(ctx, "1", MoveOptions{})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, os.Remove(filepath.Join(o.Dir, "device-3")))
	r, err := Rebuild(ctx, o, true, nil)
	require.NoError(t, err)
	require.Equal(t, 1, r.Missing)
	require.Zero(t, r.MayBeOld)
}
