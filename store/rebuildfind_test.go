package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// copyCatalog keeps a catalog as it is, to be put back when it is behind.
func copyCatalog(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(to))
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
}

// The devices a store was made with were replaced by others, one by one; then its catalog is lost, or an older one is
// put back. The open finds the store in the devices there are, or says what it lacks: it never makes an empty one.
func TestRebuildOfAStoreWhoseDevicesWereReplaced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name             string
		outside, catalog bool // the devices lie elsewhere; there is a catalog, which is behind
		damaged          bool // with that: it cannot even be read, so nobody knows of devices elsewhere
	}{
		{name: "catalog lost, devices in the directory"},
		{name: "catalog behind, devices in the directory", catalog: true},
		{name: "catalog behind, devices elsewhere", catalog: true, outside: true},
		{name: "catalog damaged, devices elsewhere", catalog: true, outside: true, damaged: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			dir := tempRoot(t, "store")
			o := small(dir)
			s, err := Open(ctx, o)
			require.NoError(t, err)
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			more := filepath.Join(dir, "more")
			if tt.outside {
				more = dir + "-more"
			}
			require.NoError(t, s.AddDevice(ctx, NewDevice{Path: more}))
			require.NoError(t, s.AddDevice(ctx, NewDevice{Path: more + "2"}))
			first, second := chainKeys(1, 20), chainKeys(2, 20)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, first, 8<<10))
			for _, n := range []string{"0", "1"} {
				_, err = s.RemoveDevice(ctx, n, MoveOptions{})
				require.NoError(t, err)
			}
			require.NoError(t, s.Close())
			older := filepath.Join(t.TempDir(), "older")
			copyCatalog(t, o.catalogDir(), older)
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, second, 8<<10))
			require.NoError(t, s.Close())
			require.NoError(t, os.RemoveAll(o.catalogDir()))
			if tt.catalog {
				copyCatalog(t, older, o.catalogDir())
			}
			if tt.damaged {
				list, err := filepath.Glob(filepath.Join(o.catalogDir(), "MANIFEST-*"))
				require.NoError(t, err)
				for _, f := range list {
					require.NoError(t, os.WriteFile(f, []byte("no manifest"), 0o600))
				}
				for range 2 { // it is set aside at the first
					_, err = Open(ctx, o)
					requireKind(t, skep.Missing, err)
					require.ErrorContains(t, err, "--device")
				}
				o.Devices = []string{more, more + "2"}
			}
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireChain(t, s, sc, first, 8<<10)
			requireChain(t, s, sc, second, 8<<10)
			require.NoError(t, s.Close())
		})
	}
}

// An open sets a catalog that is behind aside and is ended before it has made another: the next finds the devices all
// the same, also those that lie elsewhere.
func TestRebuildThatWasCutOffFindsDevicesElsewhere(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := tempRoot(t, "store")
	o := small(dir)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: dir + "-more"}))
	keys := chainKeys(1, 20)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
	require.NoError(t, s.Close())
	require.NoError(t, os.Rename(o.catalogDir(), o.catalogDir()+".old-20260101T000000.000"))
	s, err = Open(ctx, o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, 8<<10)
	require.NoError(t, s.Close())

	// A copy of the directory does not take the original's device.
	copied := tempRoot(t, "copy")
	require.NoError(t, os.CopyFS(copied, os.DirFS(dir)))
	require.NoError(t, os.RemoveAll(filepath.Join(copied, "catalog")))
	o.Dir = copied
	_, err = Open(ctx, o)
	requireKind(t, skep.Missing, err)
}

// A copy of a directory has a link to a device elsewhere, which is the original's: a rebuild of the copy does not
// touch it unless it is named.
func TestRebuildOfACopyLeavesTheOriginalsDeviceAlone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := tempRoot(t, "store")
	o := small(dir)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: dir + "-more"}))
	require.NoError(t, os.Symlink(dir+"-more", filepath.Join(dir, "device-2")))
	keys := chainKeys(1, 20)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
	require.NoError(t, s.Close())
	s, err = Open(ctx, o) // which says whose the device is
	require.NoError(t, err)
	require.NoError(t, s.Close())
	before, err := os.ReadFile(dir + "-more")
	require.NoError(t, err)

	copied := o
	copied.Dir = tempRoot(t, "copy")
	require.NoError(t, os.MkdirAll(copied.Dir, 0o755))
	for _, name := range []string{"device-0", "device-1"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(copied.Dir, name), b, 0o600))
	}
	require.NoError(t, os.Symlink(dir+"-more", filepath.Join(copied.Dir, "device-2")))
	_, err = Open(ctx, copied)
	requireKind(t, skep.Missing, err)
	copied.Degraded = DegradedAlways
	_, err = Rebuild(ctx, copied, false, nil)
	require.NoError(t, err)
	after, err := os.ReadFile(dir + "-more")
	require.NoError(t, err)
	require.True(t, string(before) == string(after), "the original's device is as it was")

	// The directory itself finds it by the same link.
	require.NoError(t, os.RemoveAll(o.catalogDir()))
	s, err = Open(ctx, o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, 8<<10)
	require.NoError(t, s.Close())
}

// A device has two names: a rebuild meets it once.
func TestRebuildMeetsADeviceOnce(t *testing.T) {
	t.Parallel()
	for name, link := range map[string]func(string, string) error{"symbolic link": os.Symlink, "hard link": os.Link} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			dir := tempRoot(t, "store")
			o := small(dir)
			s, err := Open(ctx, o)
			require.NoError(t, err)
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			require.NoError(t, s.AddDevice(ctx, NewDevice{Path: dir + "-more"}))
			require.NoError(t, link(dir+"-more", filepath.Join(dir, "more")))
			first, second := chainKeys(1, 20), chainKeys(2, 20)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, first, 8<<10))
			require.NoError(t, s.Close())
			older := filepath.Join(t.TempDir(), "older")
			copyCatalog(t, o.catalogDir(), older)
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, second, 8<<10))
			require.NoError(t, s.Close())
			copyCatalog(t, older, o.catalogDir())
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireChain(t, s, sc, first, 8<<10)
			requireChain(t, s, sc, second, 8<<10)
			require.NoError(t, s.Close())
		})
	}
}

// A device that fails was removed, and its file still lies in the directory: a rebuild leaves it alone.
func TestRebuildLeavesRemovedDevicesAlone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := tempRoot(t, "store")
	o := small(dir)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	more := filepath.Join(dir, "more")
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: more}))
	keys := chainKeys(1, 20)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
	d, err := s.members.Find("test", more)
	require.NoError(t, err)
	s.space.Fence(d, errors.New("it fails"))
	_, err = s.RemoveDevice(ctx, more, MoveOptions{Force: true})
	require.NoError(t, err)
	require.FileExists(t, more, "it could not be wiped")
	later := chainKeys(2, 20)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, later, 8<<10))
	require.NoError(t, s.Close())
	require.NoError(t, os.RemoveAll(o.catalogDir()))
	s, err = Open(ctx, o)
	require.NoError(t, err)
	for _, d := range s.members.All() {
		require.Equal(t, d.Index == 2, d.Removed.Load(), "device %d", d.Index)
	}
	requireChain(t, s, sc, later, 8<<10)
	require.NoError(t, s.Close())
}
