package store

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// spoilt are devices of which an open can make nothing.
var spoilt = map[string]func(t testing.TB, dir string){
	"absent": func(t testing.TB, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "device-1"))) },
	"64 KiB of noise": func(t testing.TB, dir string) {
		noise := make([]byte, 64<<10)
		rand.Read(noise)
		overwrite(t, filepath.Join(dir, "device-1"), noise)
	},
	"64 KiB of zeros": func(t testing.TB, dir string) {
		overwrite(t, filepath.Join(dir, "device-1"), make([]byte, 64<<10))
	},
	"empty":       func(t testing.TB, dir string) { require.NoError(t, os.Truncate(filepath.Join(dir, "device-1"), 0)) },
	"4 KiB of it": func(t testing.TB, dir string) { require.NoError(t, os.Truncate(filepath.Join(dir, "device-1"), 4096)) },
	"96 KiB of it": func(t testing.TB, dir string) {
		require.NoError(t, os.Truncate(filepath.Join(dir, "device-1"), 96<<10))
	},
	"a fifth of it": func(t testing.TB, dir string) {
		require.NoError(t, os.Truncate(filepath.Join(dir, "device-1"), 3<<18))
	},
	"another store's": func(t testing.TB, dir string) {
		o := threeDrives(tempRoot(t, "other"))
		heldStore(t, o)
		require.NoError(t, os.Rename(filepath.Join(o.Dir, "device-1"), filepath.Join(dir, "device-1")))
	},
	"a directory": func(t testing.TB, dir string) {
		require.NoError(t, os.Remove(filepath.Join(dir, "device-1")))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "device-1"), 0o755))
	},
	"another device of the store": func(t testing.TB, dir string) {
		b, err := os.ReadFile(filepath.Join(dir, "device-0"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "device-1"), b, 0o644))
	},
}

func overwrite(t testing.TB, path string, b []byte) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(b, 0)
	require.NoError(t, errors.Join(err, f.Close()))
}

func threeDrives(dir string) Options {
	o := small(dir)
	o.DeviceCount, o.CapacityBytes, o.CacheBytes = 3, 12<<20, -1
	return o
}

// Whatever became of one device, a store with two copies opens and has all its blocks; it says
// which device it lacks, what that is can be replaced, and then all is whole again.
func TestOpenWithoutAnUnreadableDevice(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, spoil := range spoilt {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := threeDrives(tempRoot(t, "store"))
			keys := heldStore(t, o)
			spoil(t, o.Dir)
			path := filepath.Join(o.Dir, "device-1")

			for _, readOnly := range []bool{true, false} {
				o.ReadOnly = readOnly
				s, err := Open(ctx, o)
				require.NoError(t, err)
				requireChain(t, s, openSpace(t, s, "n", skep.Durable, 2, true), keys, 5000)
				st, err := s.Degraded(ctx)
				require.NoError(t, err)
				require.Equal(t, 1, st.Devices)
				require.Zero(t, st.Unreadable)
				all, err := s.Stats(ctx)
				require.NoError(t, err)
				require.Equal(t, path, all.Devices[1].Path)
				require.Contains(t, all.Devices[1].State, "dead")
				_, err = s.Scrub(ctx, ScrubOptions{DryRun: readOnly})
				require.NoError(t, err)
				require.NoError(t, s.Close())
			}
			rep, err := Rebuild(ctx, o, true, nil)
			require.NoError(t, err)
			require.EqualValues(t, len(keys), rep.Blocks)
			require.Equal(t, 1, rep.Missing)
			require.Zero(t, rep.Unreadable)

			s, err := AddDevices(ctx, o, NewDevice{Path: filepath.Join(o.Dir, "device-9")})
			require.NoError(t, err)
			_, err = s.RemoveDevice(ctx, path, MoveOptions{})
			require.NoError(t, err)
			require.NoError(t, s.Close())
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireChain(t, s, openSpace(t, s, "n", skep.Durable, 2, true), keys, 5000)
			st, err := s.Degraded(ctx)
			require.NoError(t, err)
			require.Zero(t, st)
			require.NoError(t, s.Close())
			v, err := Verify(ctx, o, VerifyOptions{Deep: true})
			require.NoError(t, err)
			require.Empty(t, v.Faults)
			rep, err = Rebuild(ctx, o, false, nil)
			require.NoError(t, err)
			require.EqualValues(t, len(keys), rep.Blocks)
			require.Zero(t, rep.Missing)
		})
	}
}

// A rebuild that finds one of its devices unreadable says so and changes nothing, unless it is told
// to go on without.
func TestRebuildWithoutAnUnreadableDevice(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	o := threeDrives(tempRoot(t, "store"))
	keys := heldStore(t, o)
	spoilt["64 KiB of noise"](t, o.Dir)
	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
	before := contents(t, o.Dir)
	for range 2 {
		_, err := Open(ctx, o)
		requireKind(t, skep.Missing, err)
		require.ErrorContains(t, err, "device-1")
		_, err = Rebuild(ctx, o, false, nil)
		requireKind(t, skep.Missing, err)
	}
	after := contents(t, o.Dir)
	delete(after, filepath.Join(o.Dir, "LOCK"))
	delete(before, filepath.Join(o.Dir, "LOCK"))
	require.Equal(t, before, after)
	o.Degraded = DegradedAlways
	rep, err := Rebuild(ctx, o, false, nil)
	require.NoError(t, err)
	require.EqualValues(t, len(keys), rep.Blocks)
	require.Zero(t, rep.Unreadable)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	requireChain(t, s, openSpace(t, s, "n", skep.Durable, 2, true), keys, 5000)
	require.NoError(t, s.Close())
}
