package store

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/making"
)

// The making of a store may be cut off anywhere: the next open makes it.
func TestMakingCutOff(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		left func(t *testing.T, o Options)
	}{
		{"the list alone", func(t *testing.T, o Options) {
			require.NoError(t, os.WriteFile(filepath.Join(o.Dir, making.Name), nil, 0o644))
		}},
		{"one device file, half made", func(t *testing.T, o Options) {
			path := filepath.Join(o.Dir, "device-0")
			b, err := json.Marshal([]string{path, filepath.Join(o.Dir, "device-1")})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(o.Dir, making.Name), b, 0o644))
			require.NoError(t, os.WriteFile(path, make([]byte, 12345), 0o644))
		}},
		{"everything but the catalog's root row", func(t *testing.T, o Options) {
			s, err := Open(context.Background(), o)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
		}},
		{"block devices with superblocks", func(t *testing.T, o Options) {
			s, err := Open(context.Background(), o)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, making.Name)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := small(tempRoot(t, "store"))
			require.NoError(t, os.MkdirAll(o.Dir, 0o755))
			c.left(t, o)
			s, err := Open(context.Background(), o)
			require.NoError(t, err)
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			keys := chainKeys(1, 3)
			putRun(t, s, sc, keys, 5000)
			requireChain(t, s, sc, keys, 5000)
			require.NoError(t, s.Close())
			require.NoFileExists(t, filepath.Join(o.Dir, making.Name))
		})
	}
}

// A store that is refused leaves nothing behind, not even its lock.
func TestRefusedStoreLeavesNothing(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	o.CapacityBytes = 8192 // too small for anything
	_, err := Open(context.Background(), o)
	requireKind(t, skep.Invalid, err)
	require.NoDirExists(t, o.Dir)

	o = small(tempRoot(t, "other"))
	require.NoError(t, os.MkdirAll(o.Dir, 0o755))
	mine := filepath.Join(o.Dir, "device-0")
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o644))
	_, err = Open(context.Background(), o)
	requireKind(t, skep.Foreign, err)
	list, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	require.Len(t, list, 1, "what was there, and nothing else")

	o.MustExist = true
	_, err = Open(context.Background(), o)
	requireKind(t, skep.NotFound, err)
	_, err = Rebuild(context.Background(), small(tempRoot(t, "none")), false, nil)
	requireKind(t, skep.NotFound, err)
}

// A making that fails half-way takes its devices along: the next try is not in its way.
func TestAMakingThatFailsIsMadeAgain(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	o.DeviceCount = 2
	made := o
	o.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
		if i == 1 {
			return nil, syscall.ENOSPC
		}
		return made.openFile(i, path, create, size)
	}
	_, err := Open(context.Background(), o)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoDirExists(t, o.Dir)

	s, err := Open(context.Background(), made)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

// A making that fails takes along what it has made, and nothing else: neither a device that was there before, nor what
// somebody has put into the directory meanwhile.
func TestAMakingThatFailsTakesNothingElseAlong(t *testing.T) {
	t.Parallel()
	r := &rig{seed: 1}
	o := small(tempRoot(t, "store"))
	node, theirs := tempRoot(t, "node"), filepath.Join(o.Dir, "theirs")
	// It is no regular file, as the node of a block device is none.
	require.NoError(t, os.Mkdir(node, 0o755))
	o.Devices, o.DeviceCount = []string{node, filepath.Join(o.Dir, "device-1")}, 0
	o.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
		if i == 1 {
			if err := os.WriteFile(theirs, nil, 0o600); err != nil {
				return nil, err
			}
			return nil, syscall.ENOSPC
		}
		require.False(t, create, "it is there")
		return r.open(i, path, true, size)
	}
	_, err := Open(context.Background(), o)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.DirExists(t, node)
	require.FileExists(t, theirs)
	require.NoFileExists(t, filepath.Join(o.Dir, "LOCK"))
	require.NoDirExists(t, o.catalogDir())
}

// A store whose devices are of two stores, or of which one is missing, is not rebuilt.
func TestRebuildRefuses(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openCopies(t, 1)
	require.NoError(t, s.Close())
	o := s.options
	o.customDevices, o.OpenDevice = false, nil
	gone, elsewhere := filepath.Join(o.Dir, "device-1"), filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.Rename(gone, gone+".away"))
	require.NoError(t, os.Rename(gone+".away", elsewhere))
	_, err := Rebuild(ctx, o, false, nil)
	requireKind(t, skep.Missing, err)
	other, _, _ := openCopies(t, 1)
	require.NoError(t, other.Close())
	b, err := os.ReadFile(filepath.Join(other.options.Dir, "device-1"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(gone, b, 0o644))
	_, err = Rebuild(ctx, o, false, nil)
	requireKind(t, skep.Missing, err)
	require.ErrorContains(t, err, "foreign")
	require.NoError(t, os.Rename(elsewhere, gone))
	rep, err := Rebuild(ctx, o, true, nil)
	require.NoError(t, err)
	require.EqualValues(t, 20, rep.Blocks)
}
