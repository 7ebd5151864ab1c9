package store

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/scrub"
	"github.com/skepkv/skep/store/segment"
)

// A device that is in use is added, whatever the other drives make of it: that one of them
// does not take its new superblock is no error, and is done when it does.
func TestAddDeviceThoughAnotherDriveFails(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, o := openRig(t, func(o *Options) { quick(o); o.taskEvery = 10 * time.Millisecond })
	defer func() { require.NoError(t, s.Close()) }()
	r.each(func(i int, d *device.Fault) {
		if i == 0 {
			d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Writes, To: 2 * layout.PageSize})
		}
	})
	path := filepath.Join(o.Dir, "device-2")
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: path}))
	require.Len(t, s.members.All(), 3)
	count := func(i int) int {
		buf := device.AlignedBuffer(2 * layout.PageSize)
		require.NoError(t, device.ReadAt(ctx, r.mems[i], buf, 0))
		sb, _, err := segment.ChooseSuperblock(buf[:layout.PageSize], buf[layout.PageSize:])
		require.NoError(t, err)
		return sb.DeviceCount
	}
	require.Equal(t, []int{2, 3, 3}, []int{count(0), count(1), count(2)})
	r.each(func(_ int, d *device.Fault) { d.Clear() })
	eventually(t, "the first drive knows of the third", func() bool { return count(0) == 3 })
}

// A device that could not be added leaves nothing that would keep the next try from it: every
// call that failed is made again.
func TestAddDeviceASecondTime(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	for nth := 1; nth <= 4; nth++ { // superblock, flush, superblock, flush
		s, sc, keys := openCopies(t, 1)
		inner := s.opening.OpenDevice
		s.opening.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
			d, err := inner(i, path, create, size)
			if err != nil {
				return nil, err
			}
			f := device.NewFault(d, 1)
			f.MustInject(device.Rule{Action: device.Fail, Kinds: device.Writes | device.Flushes, Nth: nth})
			return f, nil
		}
		path := filepath.Join(s.options.Dir, "device-3")
		requireKind(t, skep.DeviceFailed, s.AddDevice(ctx, NewDevice{Path: path}))
		require.Len(t, s.members.All(), 3)
		s.opening.OpenDevice = inner
		require.NoError(t, s.AddDevice(ctx, NewDevice{Path: path}), "after the failure of operation %d", nth)
		require.Len(t, s.members.All(), 4)
		requireChain(t, s, sc, keys, 9000)
		require.NoError(t, s.Close())
	}
}

// Of several devices the first is added and the second is not: the same call again adds the
// second.
func TestAddDevicesASecondTime(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, sc, keys := openCopies(t, 1)
	require.NoError(t, s.Close())
	list := []NewDevice{{Path: filepath.Join(s.options.Dir, "device-3")}, {Path: filepath.Join(s.options.Dir, "none", "device-4")}}
	_, err := AddDevices(ctx, s.options, list...)
	require.Error(t, err)
	list[1].Path = filepath.Join(s.options.Dir, "device-4")
	s, err = AddDevices(ctx, s.options, list...)
	require.NoError(t, err)
	require.Len(t, s.members.All(), 5)
	requireChain(t, s, sc, keys, 9000)
	require.NoError(t, s.Close())
	_, err = AddDevices(ctx, s.options, list...)
	requireKind(t, skep.Conflict, err)
}

// A block that is deleted while it is being written again is not repaired, and not counted so.
func TestWhatIsGoneIsNotRepaired(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, sc, keys := openCopies(t, 2)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.moving.Take(ctx)) // repairs leave holes: what compacts would move blocks that are not looked at yet
	defer s.moving.Give()
	v := s.mends.Verifier()
	deleted := 0
	for l, rec := range recordsOf(t, s) {
		damageCopy(t, s, &rec, 0)
		g := s.space.Pin(l.Group)
		require.NotNil(t, g)
		fp := s.names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
		want := scrub.Repaired
		if rec.Key == keys[len(keys)-1] {
			n, err := s.Delete(ctx, sc, []skep.Key{rec.Key})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			want, deleted = scrub.Moved, deleted+1
		}
		require.Equal(t, want, v.Block(ctx, g, &scrub.Block{FP: fp, At: l, Record: rec}, true))
		s.space.Unpin(g)
	}
	require.Equal(t, 1, deleted)
	require.EqualValues(t, len(keys)-1, s.count.Repaired.Load())
}
