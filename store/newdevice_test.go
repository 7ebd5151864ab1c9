package store

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// Among the system's devices nothing is made: what is to be used there is a block device that is there.
func TestAPathAmongTheSystemsDevicesIsABlockDevice(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the system shows no devices there")
	}
	absent := "/dev/skep-test-no-such-drive"
	t.Cleanup(func() { os.Remove(absent) })
	link := filepath.Join(t.TempDir(), "drive")
	require.NoError(t, os.Symlink(absent, link))
	within := filepath.Join("/dev", "skep-test-no-such-directory", "drive")
	for path, kind := range map[string]skep.Kind{absent: skep.Missing, link: skep.Missing, within: skep.Missing, "/dev/null": skep.Invalid, "/dev": skep.Foreign} {
		o := small(t.TempDir())
		o.Devices = []string{filepath.Join(o.Dir, "d0"), path}
		if path == "/dev" {
			o.Dir, o.Devices = filepath.Join("/dev", "skep-test-no-such-store"), nil
			kind = skep.Missing
			t.Cleanup(func() { os.RemoveAll(o.Dir) })
			if os.Geteuid() != 0 {
				continue
			}
		}
		_, err := Open(testContext(t), o)
		requireKind(t, kind, err)
		require.ErrorContains(t, err, "block device")
		require.NoFileExists(t, absent)
		require.NoFileExists(t, filepath.Join(o.Dir, "d0"), "nothing was made")
	}

	s, err := Open(testContext(t), small(t.TempDir()))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	requireKind(t, skep.Missing, s.AddDevice(testContext(t), NewDevice{Path: absent, Bytes: 8 << 20}))
	_, err = s.LookAtDevice(testContext(t), NewDevice{Path: absent})
	requireKind(t, skep.Missing, err)
	require.NoFileExists(t, absent)
}

// serialDrive is a block device with a serial number, for a store.
type serialDrive struct{ device.Device }

func (d serialDrive) Info() device.Info {
	i := d.Device.Info()
	i.Raw, i.Serial = true, "S9"
	return i
}

// What a new device would be is told before it is added, and what would be refused is.
func TestLookAtDevice(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	var there *device.Memory
	s, _, _ := openRig(t, func(o *Options) {
		open := o.OpenDevice
		o.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
			if path == os.DevNull {
				return serialDrive{there.Clone()}, nil
			}
			return open(i, path, create, size)
		}
	})
	defer func() { require.NoError(t, s.Close()) }()
	path := filepath.Join(t.TempDir(), "new")
	c, err := s.LookAtDevice(ctx, NewDevice{Path: path})
	require.NoError(t, err)
	require.Equal(t, Candidate{Kind: CandidateFile, Bytes: s.members.Opened[0].Dev.Size()}, c)
	_, err = s.LookAtDevice(ctx, NewDevice{Path: path, Bytes: 1})
	requireKind(t, skep.Invalid, err)
	taken := filepath.Join(t.TempDir(), "taken")
	require.NoError(t, os.WriteFile(taken, []byte("mine"), 0o600))
	_, err = s.LookAtDevice(ctx, NewDevice{Path: taken})
	requireKind(t, skep.Foreign, err)

	there = device.NewMemory(16 << 20)
	c, err = s.LookAtDevice(ctx, NewDevice{Path: os.DevNull}) // it is there, and no file
	require.NoError(t, err)
	require.Equal(t, Candidate{Kind: CandidateBlock, Bytes: 16 << 20, Serial: "S9"}, c)
	require.NoError(t, device.WriteAt(ctx, there, bytes.Repeat([]byte{7}, device.Align), 0))
	_, err = s.LookAtDevice(ctx, NewDevice{Path: os.DevNull})
	requireKind(t, skep.Foreign, err)
	require.Len(t, s.members.All(), len(s.members.Opened), "nothing was added")
}
