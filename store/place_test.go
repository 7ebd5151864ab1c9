package store

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// copyStore copies a directory as cp -a does: links stay links.
func copyStore(t testing.TB, from, to string) {
	require.NoError(t, filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		switch {
		case e.IsDir():
			return os.MkdirAll(at, 0o755)
		case e.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, at)
		case !e.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(at, b, 0o644)
	}))
}

// heldStore is a closed store of two devices with a block in two copies, wherever its devices are.
func heldStore(t testing.TB, o Options) []skep.Key {
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	keys := chainKeys(1, 10)
	putRun(t, s, openSpace(t, s, "n", skep.Durable, 2, true), keys, 5000)
	require.NoError(t, s.Close())
	return keys
}

// used opens a store, finds what is in it and puts more.
func used(t testing.TB, o Options, keys []skep.Key, root int) (devices []skep.DeviceStats) {
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 2, true)
	requireChain(t, s, sc, keys, 5000)
	putRun(t, s, openSpace(t, s, "more", skep.Cache, 1, true), chainKeys(root, 10), 5000)
	st, err := s.Stats(context.Background())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return st.Devices
}

// A copy of a store's directory never opens what lies in another: the original stays as it is,
// byte by byte, whatever the copy lacks.
func TestCopyLeavesTheOriginalAlone(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(t *testing.T, o, c string){
		"whole": func(*testing.T, string, string) {},
		"without a device": func(t *testing.T, o, c string) {
			require.NoError(t, os.Remove(filepath.Join(c, "device-1")))
		},
		"with a link to the original's device": func(t *testing.T, o, c string) {
			require.NoError(t, os.Remove(filepath.Join(c, "device-1")))
			require.NoError(t, os.Symlink(filepath.Join(o, "device-1"), filepath.Join(c, "device-1")))
		},
		"with a hard link to the original's device": func(t *testing.T, o, c string) {
			require.NoError(t, os.Remove(filepath.Join(c, "device-1")))
			require.NoError(t, os.Link(filepath.Join(o, "device-1"), filepath.Join(c, "device-1")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := small(tempRoot(t, "store"))
			keys := heldStore(t, o)
			c := o
			c.Dir = tempRoot(t, "copy")
			copyStore(t, o.Dir, c.Dir)
			harm(t, o.Dir, c.Dir)
			before := contents(t, o.Dir)
			for _, d := range used(t, c, keys, 2) {
				require.Equal(t, c.Dir, filepath.Dir(d.Path), "it says where its own devices are")
			}
			used(t, c, keys, 3)
			require.Equal(t, before, contents(t, o.Dir))
			used(t, o, keys, 4)
		})
	}
}

// The making of a store was cut off before its catalog said whose the devices are, and the directory was copied
// then: what lies in another store's directory is not opened by who was not told to.
func TestCopyOfADirectoryThatSaysNotWhoseItIs(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	heldStore(t, o)
	dir := o.Dir
	db, err := pebble.Open(filepath.Join(dir, "catalog"), &pebble.Options{Logger: quiet{}})
	require.NoError(t, err)
	_, owner, err := db.Get([]byte("o"))
	require.NoError(t, err)
	require.NoError(t, owner.Close())
	require.NoError(t, db.Delete([]byte("o"), pebble.Sync))
	require.NoError(t, db.Close())
	c := o
	c.Dir = tempRoot(t, "copy")
	c.Degraded = DegradedAlways
	copyStore(t, dir, c.Dir)
	require.NoError(t, os.Remove(filepath.Join(c.Dir, "device-1")))
	before := contents(t, dir)
	s, err := Open(context.Background(), c)
	require.NoError(t, err)
	require.Len(t, s.space.AbsentDrives(), 1)
	require.NoError(t, s.Close())
	require.Equal(t, before, contents(t, dir))
}

// A store that is moved opens, and so does one put back from a backup.
func TestMovedStoreOpens(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	keys := heldStore(t, o)
	moved := o
	moved.Dir = o.Dir + "-moved"
	require.NoError(t, os.Rename(o.Dir, moved.Dir))
	used(t, moved, keys, 2)
	copyStore(t, moved.Dir, o.Dir)
	require.NoError(t, os.RemoveAll(moved.Dir))
	used(t, o, keys, 3)
}

// Devices that were named outside the directory are found there again, also after a move. A copy is
// refused them unless it names them; then they are the copy's, and the original is refused them.
func TestDevicesOutsideHaveOneOwner(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	drives := t.TempDir()
	o.Devices = []string{filepath.Join(drives, "a"), filepath.Join(drives, "b")}
	keys := heldStore(t, o)
	named := o.Devices
	o.Devices = nil
	used(t, o, keys, 2)
	moved := o
	moved.Dir = o.Dir + "-moved"
	require.NoError(t, os.Rename(o.Dir, moved.Dir))
	used(t, moved, keys, 3)
	require.NoError(t, os.Rename(moved.Dir, o.Dir))

	c := o
	c.Dir = tempRoot(t, "copy")
	copyStore(t, o.Dir, c.Dir)
	before := contents(t, drives)
	_, err := Open(context.Background(), c)
	requireKind(t, skep.Missing, err)
	require.ErrorContains(t, err, "--device")
	require.Equal(t, before, contents(t, drives))
	used(t, o, keys, 4)

	c.Dir = tempRoot(t, "second")
	copyStore(t, o.Dir, c.Dir)
	c.Devices = named
	used(t, c, keys, 5)
	before = contents(t, drives)
	for _, paths := range [][]string{nil, named} {
		o.Devices = paths
		_, err = Open(context.Background(), o)
		require.Error(t, err)
		require.ErrorContains(t, err, c.Dir)
		require.ErrorContains(t, err, "rebuild")
	}
	require.Equal(t, before, contents(t, drives))
	c.Devices = nil
	used(t, c, keys, 6)

	o.Devices = named // the way out
	_, err = Rebuild(context.Background(), o, false, nil)
	require.NoError(t, err)
	o.Devices = nil
	used(t, o, keys, 7)
	_, err = Open(context.Background(), c)
	require.ErrorContains(t, err, o.Dir)
}

// Whose a device is may be half written when a crash comes: both names count until it is written.
func TestOwnerHalfWritten(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	drives := t.TempDir()
	o.Devices = []string{filepath.Join(drives, "a"), filepath.Join(drives, "b")}
	keys := heldStore(t, o)
	c := o
	c.Dir = tempRoot(t, "copy")
	copyStore(t, o.Dir, c.Dir)
	pages, err := os.ReadFile(o.Devices[1])
	require.NoError(t, err)
	c.noStamp = true
	used(t, c, keys, 2)
	now, err := os.ReadFile(o.Devices[1])
	require.NoError(t, err)
	require.Equal(t, pages[2*4096:3*4096], now[2*4096:3*4096])
	c.noStamp = false
	used(t, c, keys, 3)
	_, err = Open(context.Background(), o)
	require.ErrorContains(t, err, c.Dir)
}
