package store

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/making"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// loopDevice is a block device of size bytes with these at an offset of it; image is the file behind it.
func loopDevice(t *testing.T, size, off int64, bytes string) (path, image string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a loop device needs root")
	}
	image = filepath.Join(t.TempDir(), "image")
	f, err := os.Create(image)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(size))
	_, err = f.WriteAt([]byte(bytes), off)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	out, err := exec.Command("losetup", "--find", "--show", image).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device here: %v: %s", err, out)
	}
	path = strings.TrimSpace(string(out))
	t.Cleanup(func() { require.NoError(t, exec.Command("losetup", "--detach", path).Run()) })
	return path, image
}

// A cap gives a store a part of a block device, at the first open and at each that follows; a larger one gives it more,
// and a rebuild of the catalog changes nothing of it.
func TestACapCountsOnABlockDeviceAtEveryOpen(t *testing.T) {
	t.Parallel()
	const size, most = 16 << 20, 4 << 20
	loop, _ := loopDevice(t, size, 0, "")
	o := small(t.TempDir())
	o.DeviceCount, o.Devices, o.CapacityBytes = 0, []string{loop}, most
	has := func(limit int64) {
		s := openTest(t, o)
		st, err := s.Stats(testContext(t))
		require.NoError(t, err)
		require.Greater(t, st.DeviceBytes, limit-o.SegmentBytes-1<<20)
		require.LessOrEqual(t, st.DeviceBytes, limit)
		require.EqualValues(t, size, st.Devices[0].Size, "of the drive itself")
		sc := openSpace(t, s, "n", skep.Cache, 1, true)
		for root := range 3 * 16 { // more than the device has room for
			putRun(t, s, sc, chainKeys(root, 16), 8<<10)
		}
		used, err := s.Stats(testContext(t))
		require.NoError(t, err)
		require.LessOrEqual(t, used.BlockBytes, limit)
		require.LessOrEqual(t, used.DeviceBytes, limit)
		require.NoError(t, s.Close())
	}
	has(most)
	has(most)
	_, err := Rebuild(testContext(t), o, false, nil)
	require.NoError(t, err)
	has(most)
	o.CapacityBytes, o.ChangeCapacity = 2*most, true
	has(2 * most)
	o.CapacityBytes, o.ChangeCapacity = 0, false
	has(2 * most)
}

// What an earlier program wrote beyond the cap is found, and the drive has not been cut short.
func TestBlocksBeyondTheCapOfABlockDevice(t *testing.T) {
	t.Parallel()
	loop, _ := loopDevice(t, 16<<20, 0, "")
	o := small(t.TempDir())
	o.DeviceCount, o.Devices, o.CapacityBytes = 0, []string{loop}, 8<<20
	s := openTest(t, o)
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	for root := range 24 {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(root, 16), 8<<10))
	}
	require.NoError(t, s.Close())

	d, err := device.Open(loop, device.Options{})
	require.NoError(t, err)
	sb, err := segio.ReadSuperblock(testContext(t), d, loop)
	require.NoError(t, err)
	sb.DeviceBytes = layout.SegmentOffset(16, o.SegmentBytes)
	require.NoError(t, segio.WriteSuperblocks(testContext(t), func(ctx context.Context, buf []byte, off int64) error {
		return device.WriteAt(ctx, d, buf, off)
	}, &sb))
	require.NoError(t, d.Close())

	o.CapacityBytes, o.ChangeCapacity = 2<<20, true
	s = openTest(t, o)
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	require.Equal(t, "ok", st.State)
	for root := range 24 {
		n, _ := requireRight(t, s, sc, chainKeys(root, 16), 8<<10)
		require.Equal(t, 16, n)
	}
}

// A device with somebody's file system on it is not taken, and not a byte of it changes.
func TestABlockDeviceWithAFileSystemIsRefused(t *testing.T) {
	t.Parallel()
	loop, image := loopDevice(t, 16<<20, 64<<10+64, "_BHRfS_M")
	before, err := os.ReadFile(image)
	require.NoError(t, err)
	o := small(t.TempDir())
	o.DeviceCount, o.Devices = 0, []string{loop}
	_, err = Open(testContext(t), o)
	requireKind(t, skep.Foreign, err)
	require.ErrorContains(t, err, "btrfs")

	s := openTest(t, small(t.TempDir()))
	requireKind(t, skep.Foreign, s.AddDevice(testContext(t), NewDevice{Path: loop}))
	after, err := os.ReadFile(image)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// A store that could not be made has taken no drive: one that was blank is blank, and the next try makes it.
func TestAFailedCreateLeavesBlockDevicesBlank(t *testing.T) {
	t.Parallel()
	good, image := loopDevice(t, 8<<20, 0, "")
	bad, other := loopDevice(t, 8<<20, 1024+56, "\x53\xef") // ext4
	o := small(t.TempDir())
	o.DeviceCount, o.CapacityBytes, o.Devices = 0, 0, []string{good, bad}
	_, err := Open(testContext(t), o)
	requireKind(t, skep.Foreign, err)
	require.ErrorContains(t, err, bad)
	left, err := os.ReadFile(image)
	require.NoError(t, err)
	require.True(t, segment.Blank(left), "not a byte of it was written")

	require.NoError(t, os.WriteFile(other, make([]byte, 8<<20), 0o600))
	out, err := exec.Command("blockdev", "--flushbufs", bad).CombinedOutput()
	require.NoError(t, err, "%s", out)
	s := openTest(t, o)
	require.Len(t, s.members.Opened, 2)
}

// One device is not taken twice, whatever it is called, and nothing is written to it.
func TestOneBlockDeviceUnderTwoNames(t *testing.T) {
	t.Parallel()
	loop, image := loopDevice(t, 8<<20, 0, "")
	dir := t.TempDir()
	link, node := filepath.Join(dir, "link"), filepath.Join(dir, "node")
	require.NoError(t, os.Symlink(loop, link))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(loop, &st))
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(st.Rdev)))
	for _, name := range []string{link, node} {
		o := small(t.TempDir())
		o.DeviceCount, o.CapacityBytes, o.Devices = 0, 0, []string{loop, name}
		_, err := Open(testContext(t), o)
		requireKind(t, skep.Invalid, err)
		require.ErrorContains(t, err, name+", the same as "+loop)
	}
	left, err := os.ReadFile(image)
	require.NoError(t, err)
	require.True(t, segment.Blank(left), "not a byte of it was written")
}

// A kill may leave some of a new store's block devices with a superblock and others without: the next open makes it.
func TestACreateCutOffBetweenBlockDevices(t *testing.T) {
	t.Parallel()
	for _, blank := range []int{0, 1} {
		var images [2]string
		o := small(t.TempDir())
		o.DeviceCount, o.CapacityBytes, o.Devices = 0, 0, make([]string, 2)
		for i := range images {
			o.Devices[i], images[i] = loopDevice(t, 8<<20, 0, "")
		}
		begun := func() {
			require.NoError(t, os.RemoveAll(o.catalogDir()))
			require.NoError(t, os.WriteFile(filepath.Join(o.Dir, making.Name), []byte("null"), 0o600))
			require.NoError(t, os.WriteFile(images[blank], make([]byte, 8<<20), 0o600))
			out, err := exec.Command("blockdev", "--flushbufs", o.Devices[blank]).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		require.NoError(t, openTest(t, o).Close())
		begun()
		s := openTest(t, o)
		sc := openSpace(t, s, "n", skep.Durable, 1, false)
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 16), 8<<10))
		require.NoError(t, s.Close())

		begun() // and one that holds something stays as it is
		left, err := os.ReadFile(images[1-blank])
		require.NoError(t, err)
		_, err = Open(testContext(t), o)
		requireKind(t, skep.Foreign, err)
		after, err := os.ReadFile(images[1-blank])
		require.NoError(t, err)
		require.True(t, string(left) == string(after), "not a byte of it was written")
	}
}

// Every drive counts as much as the smallest: however large the others are, leases that nobody capped leave three
// quarters of the room that there is.
func TestLeasesOnBlockDevicesOfDifferentSizes(t *testing.T) {
	t.Parallel()
	a, _ := loopDevice(t, 4<<20, 0, "")
	b, _ := loopDevice(t, 32<<20, 0, "")
	o := small(t.TempDir())
	o.DeviceCount, o.CapacityBytes, o.Devices, o.LeasedBytes, o.PinnedBytes = 0, 0, []string{a, b}, 0, 0
	s := openTest(t, o)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	var leased int64
	for root := range 80 { // more than there is room for
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(root, 16), 8<<10))
		_, err := s.Lookup(testContext(t), &skep.LookupRequest{Scope: sc, Keys: chainKeys(root, 16), Lease: skep.MaxLease})
		require.NoError(t, err)
		st, err := s.Stats(testContext(t))
		require.NoError(t, err)
		leased = max(leased, st.LeasedBytes)
	}
	require.Greater(t, leased, int64(1<<20))
	require.LessOrEqual(t, leased, int64(2<<20), "a quarter of twice the smaller drive")
}

// A block device that may not be written to is refused at the open, as a file is, and not found out by its first put.
func TestAReadOnlyBlockDeviceIsRefused(t *testing.T) {
	t.Parallel()
	loop, _ := loopDevice(t, 16<<20, 0, "")
	o := small(t.TempDir())
	o.DeviceCount, o.Devices = 0, []string{loop}
	require.NoError(t, openTest(t, o).Close())
	writable := func() { require.NoError(t, exec.Command("blockdev", "--setrw", loop).Run()) }
	t.Cleanup(writable) // or it stays so for whoever has it next
	require.NoError(t, exec.Command("blockdev", "--setro", loop).Run())
	_, err := Open(t.Context(), o)
	require.ErrorIs(t, err, syscall.EROFS)
	require.ErrorContains(t, err, loop)
	read := o
	read.ReadOnly = true
	require.NoError(t, openTest(t, read).Close(), "who looks needs no more")
	writable()
	require.NoError(t, openTest(t, o).Close())
}
