package opening

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/room"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// openingOf is an opening of the store in dir: of two devices of 1 MiB in segments of 128 KiB, where it is made.
func openingOf(t *testing.T, dir string, edit func(*Config)) *Opening {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	var p *Opening
	cfg := Config{Context: t.Context(), Dir: dir, CatalogDir: filepath.Join(dir, "catalog"), Count: 2, Capacity: 2 << 20,
		SegmentBytes: 128 << 10, BlockBytes: 8 << 10, Timeout: time.Minute, Wall: time.Now, Log: log,
		OpenDevice: openFile, Options: catalog.Options{FS: vfs.Default, CacheBytes: 1 << 20, Logger: log},
		Settle: func(was catalog.Limits) (catalog.Limits, error) { return was, nil }}
	if edit != nil {
		edit(&cfg)
	}
	cfg.Room = room.New(room.Config{FS: cfg.Options.FS, Dir: cfg.CatalogDir, Clock: time.Now, Log: log})
	cfg.Root = watermark.New(func() catalog.StoreState {
		return catalog.StoreState{StoreID: p.ID, Secret: p.Secret, Limits: p.Limits}
	})
	cfg.Rows = commit.New(log)
	p = New(cfg)
	p.Members = members.New(members.Config{Context: t.Context(), Timeout: time.Minute, Log: log,
		Write: p.WriteSuperblocks})
	p.Space = space.New(space.Config{Log: log, Context: t.Context(), Background: &sync.WaitGroup{}, Root: cfg.Root,
		Changes: cfg.Rows.Changes(), Drives: p.Members.All, Timeout: time.Minute,
		Identity: func() (segment.StoreID, segment.Secret) { return p.ID, p.Secret }})
	return p
}

func openFile(_ int, path string, create bool, size int64) (device.Device, error) {
	if create {
		return device.Create(path, size, device.Options{})
	}
	return device.Open(path, device.Options{})
}

// closeAll closes what an opening has opened, as a store does; of one that failed nothing is left.
func closeAll(t *testing.T, p *Opening) {
	t.Helper()
	p.Abandon()
	for _, d := range p.Members.All() {
		if d != nil {
			require.NoError(t, d.Dev.Close())
		}
	}
	if p.Catalog != nil {
		require.NoError(t, p.Catalog.Close())
	}
	if p.Lock != nil {
		require.NoError(t, p.Lock.Release())
	}
	p.Undo()
}

// find finds the store, or makes it, and closes it again.
func find(t *testing.T, p *Opening) (catalog.StoreState, error) {
	t.Helper()
	root, err := p.Find(t.Context())
	closeAll(t, p)
	return root, err
}

// made makes a store in a directory of its own.
func made(t *testing.T) *Opening {
	t.Helper()
	p := openingOf(t, filepath.Join(t.TempDir(), "store"), nil)
	_, err := find(t, p)
	require.NoError(t, err)
	return p
}

func devicesOf(p *Opening) (ids []segment.DeviceID, paths []string) {
	for _, d := range p.Members.All() {
		ids, paths = append(ids, d.ID), append(paths, d.Path)
	}
	return ids, paths
}

// What an opening makes the next one finds, also where its devices are named in another order, or were moved.
func TestAStoreIsFoundAsItWasMade(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(dir string, c *Config){
		"again": func(string, *Config) {},
		"named": func(dir string, c *Config) {
			c.Devices = []string{filepath.Join(dir, "device-1"), filepath.Join(dir, "device-0")}
		},
		"with another segment": func(_ string, c *Config) { c.SegmentBytes = 256 << 10 },
		"moved": func(dir string, c *Config) {
			at := dir + "-moved"
			_ = os.Rename(filepath.Join(dir, "device-1"), at)
			c.Devices = []string{at, filepath.Join(dir, "device-0")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := made(t)
			require.Len(t, first.Members.Opened, 2)
			require.NotZero(t, first.ID)
			second := openingOf(t, first.Dir, func(c *Config) { edit(first.Dir, c) })
			root, err := find(t, second)
			require.NoError(t, err)
			require.Equal(t, first.ID, second.ID)
			require.EqualValues(t, first.ID, root.StoreID)
			require.Equal(t, first.Secret, second.Secret)
			require.Equal(t, first.Limits, second.Limits)
			require.EqualValues(t, 128<<10, second.Space.SegmentBytes)
			want, _ := devicesOf(first)
			got, _ := devicesOf(second)
			require.Equal(t, want, got)
		})
	}
}

func TestWhereNoStoreIs(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*Config){
		"one must be there": func(c *Config) { c.MustExist = true },
		"it is only read":   func(c *Config) { c.ReadOnly = true },
	} {
		dir := filepath.Join(t.TempDir(), "store")
		_, err := find(t, openingOf(t, dir, edit))
		require.ErrorIs(t, err, skep.NotFound, name)
		require.NoDirExists(t, dir, name)
	}
}

// A making that fails leaves nothing that would be in the way of the next one.
func TestAMakingThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*Config)
		kind skep.Kind
	}{
		"a device": {func(c *Config) {
			c.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
				if i == 1 {
					return nil, syscall.EIO
				}
				return openFile(i, path, create, size)
			}
		}, skep.DeviceFailed},
		"the root row": {func(c *Config) {
			c.Options.Refuse = func() error {
				return &skep.Error{Op: "commit",
					Kind: skep.Full}
			}
		}, skep.Full},
		"the cap": {func(c *Config) { c.Capacity = 8 << 10 }, skep.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "store")
			_, err := find(t, openingOf(t, dir, c.edit))
			require.ErrorIs(t, err, c.kind)
			require.NoDirExists(t, dir)
			_, err = find(t, openingOf(t, dir, nil))
			require.NoError(t, err)
		})
	}
}

// A cap that has no room for a store is refused with the least that has: not a page less would do.
func TestACapThatIsTooSmallNamesTheLeast(t *testing.T) {
	t.Parallel()
	for _, segmentBytes := range []int64{0, 64 << 10, 1 << 20} {
		for _, block := range []int64{512, 8 << 10, 1 << 20} {
			for _, n := range []int{1, 2, 5, 16} {
				p := &Opening{Config: Config{SegmentBytes: segmentBytes, BlockBytes: block, Capacity: 4096}}
				var least int64
				_, err := fmt.Sscanf(p.tooSmall(n, nil).(*skep.Error).Limit.(string), "at least %d", &least)
				require.NoError(t, err)
				fits := func(capacity int64) bool {
					each := capacity / int64(n) &^ (layout.PageSize - 1)
					seg, err := p.segmentFor(each, n)
					return err == nil && layout.Segments(each, seg) >= leastSegments
				}
				require.True(t, fits(least), "segments of %d, blocks of %d, %d devices: %d", segmentBytes, block, n, least)
				require.False(t, fits(least-1), "segments of %d, blocks of %d, %d devices: less than %d", segmentBytes, block, n,
					least)
			}
		}
	}
}

// A store opens without a drive, unless it is to have all; without any it does not.
func TestAStoreThatLacksADrive(t *testing.T) {
	t.Parallel()
	first := made(t)
	require.NoError(t, os.Remove(filepath.Join(first.Dir, "device-1")))

	p := openingOf(t, first.Dir, func(c *Config) { c.Refuse = true })
	_, err := find(t, p)
	require.ErrorIs(t, err, skep.Missing)
	require.ErrorContains(t, err, "device-1")

	p = openingOf(t, first.Dir, nil)
	_, err = p.Find(t.Context())
	require.NoError(t, err)
	require.NoError(t, p.Members.Opened[0].Absent)
	require.ErrorIs(t, p.Members.Opened[1].Absent, skep.Missing)
	require.Len(t, p.Space.AbsentDrives(), 1)
	closeAll(t, p)

	require.NoError(t, os.Remove(filepath.Join(first.Dir, "device-0")))
	_, err = find(t, openingOf(t, first.Dir, nil))
	require.ErrorIs(t, err, skep.Missing)
	require.DirExists(t, first.CatalogDir, "what is left of it stays")
}

// A drive of another store is not taken for one of this.
func TestADriveOfAnotherStoreIsForeign(t *testing.T) {
	t.Parallel()
	ours, theirs := made(t), made(t)
	require.NoError(t, os.Remove(filepath.Join(ours.Dir, "device-1")))
	_, err := find(t, openingOf(t, ours.Dir, func(c *Config) {
		c.Refuse = true
		c.Devices = []string{filepath.Join(ours.Dir, "device-0"), filepath.Join(theirs.Dir, "device-1")}
	}))
	require.ErrorIs(t, err, skep.Foreign)
	require.ErrorContains(t, err, theirs.ID.String())
}

// A catalog that is gone is made anew from the drives, with the store's name, cap and count, unless it must not be.
func TestALostCatalogIsMadeAnew(t *testing.T) {
	t.Parallel()
	first := made(t)
	require.NoError(t, os.RemoveAll(first.CatalogDir))
	_, err := find(t, openingOf(t, first.Dir, func(c *Config) { c.NoRebuild = true }))
	require.ErrorIs(t, err, skep.Missing)
	require.FileExists(t, filepath.Join(first.Dir, "device-0"))

	p := openingOf(t, first.Dir, func(c *Config) { c.Capacity = 64 << 20 })
	root, err := find(t, p)
	require.NoError(t, err)
	require.EqualValues(t, first.ID, root.StoreID)
	require.Equal(t, first.Limits, root.Limits)
	want, _ := devicesOf(first)
	got, _ := devicesOf(p)
	require.Equal(t, want, got)
}

// A device that an add has left, when a process ended in the midst of it, is added with the next try.
func TestADeviceIsAdded(t *testing.T) {
	t.Parallel()
	first := made(t)
	p := openingOf(t, first.Dir, nil)
	root, err := p.Find(t.Context())
	require.NoError(t, err)
	defer closeAll(t, p)
	p.Root.Load(root)
	p.Rows.Open(commit.Parts{Context: t.Context()})
	path := filepath.Join(p.Dir, "device-2")
	_, err = p.Add(t.Context(), path, 4096, false)
	require.ErrorIs(t, err, skep.Invalid)
	require.NoFileExists(t, path)
	left, err := p.CreateDrive(t.Context(), 2, 3, path, 1<<20, 0)
	require.NoError(t, err)
	require.NoError(t, left.Dev.Close())
	require.False(t, p.Has(path), "the catalog does not know it")

	d, err := p.Add(t.Context(), path, 0, false)
	require.NoError(t, err)
	require.NotEqual(t, left.ID, d.ID)
	p.Members.Add(d)
	require.True(t, p.Has(path))
	require.Equal(t, p.Members.Opened[0].Segments, d.Segments)
	rows, err := p.Catalog.Devices(t.Context())
	require.NoError(t, err)
	require.Len(t, rows, 3)
}

// What stands at a path where a device is to be made is not touched.
func TestAFileInTheWayStaysAsItIs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, "device-1")
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o644))
	_, err := find(t, openingOf(t, dir, nil))
	require.ErrorIs(t, err, skep.Foreign)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 1)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "mine", string(text))
}

// The store that most of some devices are of is the one that is meant.
func TestTheStoreOfMostDevices(t *testing.T) {
	t.Parallel()
	ours, theirs := made(t), made(t)
	_, list := devicesOf(ours)
	_, others := devicesOf(theirs)
	require.Equal(t, ours.ID, storeOfMost(slices.Concat(others[:1], list, []string{"none"})))
	require.Zero(t, storeOfMost([]string{"none"}))
}

// What is named and cannot be opened stands for a device that is missing: the one that is expected there, or else any.
func TestWhatIsNamedStandsForWhatIsMissing(t *testing.T) {
	t.Parallel()
	named := []lack{{"/a", skep.Foreign}, {"/b", skep.Damaged}}
	got, rest := takeLack("/b", named)
	require.Equal(t, named[1], got)
	require.Equal(t, named[:1], rest)
	got, rest = takeLack("/moved", named)
	require.Equal(t, named[0], got)
	require.Equal(t, named[1:], rest)
	got, rest = takeLack("/c", nil)
	require.Equal(t, lack{"/c", skep.Missing}, got)
	require.Empty(t, rest)
}

// A store goes on without a device that is gone, fails or is somebody else's, and not without one that is whole.
func TestWithoutWhichDevicesAStoreGoesOn(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		nil: false, skep.Missing: true, skep.DeviceFailed: true, skep.Foreign: true, skep.Damaged: true, skep.Conflict: true,
		skep.Version: false, skep.Locked: false, context.Canceled: false,
	} {
		require.Equal(t, want, goesOn(err), "%v", err)
	}
	for err, want := range map[error]skep.Kind{
		fs.ErrNotExist: skep.Missing, device.ErrLocked: skep.Locked, syscall.EIO: skep.DeviceFailed,
		skep.Version: skep.Version,
	} {
		require.Equal(t, want, KindOfOpen(fmt.Errorf("open: %w", err)), "%v", err)
	}
	require.Equal(t, skep.DeviceFailed, KindOfOpen(errors.New("anything else")))
}
