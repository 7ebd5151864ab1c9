package device_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/device/devicetest"
)

func TestOnlyOneOpensADevice(t *testing.T) {
	t.Parallel()
	d := create(t, 1<<20, device.Options{})
	path := d.Info().Path
	for _, o := range []device.Options{{}, {ReadOnly: true, Backend: device.Pool}} {
		_, err := device.Open(path, o)
		require.ErrorIs(t, err, device.ErrLocked)
	}
	second, err := device.Open(path, device.Options{NoLock: true})
	require.NoError(t, err)
	require.NoError(t, second.Close())
	require.NoError(t, d.Close())

	// At once after Close; and readers share.
	a, err := device.Open(path, device.Options{ReadOnly: true})
	require.NoError(t, err)
	b, err := device.Open(path, device.Options{ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// smallTmpfs mounts a file system of the given size.
func smallTmpfs(t *testing.T, size string) string {
	if os.Getuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("no tmpfs here: " + err.Error())
	}
	t.Cleanup(func() { // a closed ring lets go of its file a moment later
		require.Eventually(t, func() bool { return unix.Unmount(dir, 0) == nil }, time.Minute, time.Millisecond)
	})
	return dir
}

func TestAFullFileSystem(t *testing.T) {
	t.Parallel()
	dir := smallTmpfs(t, "4m")
	path := filepath.Join(dir, "dev")
	_, err := device.Create(path, 8<<20, device.Options{})
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoFileExists(t, path)

	d, err := device.Create(path, 1<<20, device.Options{})
	require.NoError(t, err)
	err = d.Grow(8 << 20)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.EqualValues(t, 1<<20, d.Size())
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, st.Size(), "the file is as long as it was")

	ctx := devicetest.Context(t)
	want, got := devicetest.Random(devicetest.RNG(t), 1<<20), device.AlignedBuffer(1<<20)
	require.NoError(t, device.WriteAt(ctx, d, want, 0))
	require.NoError(t, device.ReadAt(ctx, d, got, 0))
	require.True(t, bytes.Equal(want, got))
	require.NoError(t, d.Grow(2<<20), "what fits is granted")
	require.NoError(t, d.Close())
}

func TestABlockDevice(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("a loop device needs root")
	}
	image := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(image, make([]byte, devicetest.Size), 0o600))
	out, err := exec.Command("losetup", "--find", "--show", image).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device here: %v: %s", err, out)
	}
	loop := strings.TrimSpace(string(out))
	t.Cleanup(func() { require.NoError(t, exec.Command("losetup", "--detach", loop).Run()) })

	_, err = device.Create(loop, 1<<20, device.Options{})
	require.Error(t, err, "a block device is opened, not created")
	for _, backend := range []string{device.Auto, device.Pool} {
		t.Run(backend, func(t *testing.T) {
			devicetest.Test(t, func(t *testing.T) device.Device {
				d, err := device.Open(loop, device.Options{Backend: backend})
				require.NoError(t, err)
				require.True(t, d.Info().Raw)
				require.NoError(t, device.WriteAt(devicetest.Context(t), d, device.AlignedBuffer(devicetest.Size), 0))
				require.NoError(t, d.Close()) // the contract counts from zero
				d, err = device.Open(loop, device.Options{Backend: backend})
				require.NoError(t, err)
				require.ErrorIs(t, d.Grow(2*devicetest.Size), errors.ErrUnsupported)
				return d
			})
		})
	}
}

// Alone: descriptors of the whole process are counted.
func TestADeviceGivesBackItsDescriptors(t *testing.T) {
	open := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(e)
	}
	use := func() {
		d := create(t, 1<<20, device.Options{})
		require.NoError(t, device.WriteAt(devicetest.Context(t), d, device.AlignedBuffer(4096), 0))
		require.NoError(t, d.Close())
	}
	use() // what the runtime opens once
	before := open()
	for range 20 {
		use()
	}
	require.Equal(t, before, open())
}
