package store

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/storetest"
)

// share is how much of a drive's segments are in use.
func share(s *Store, d *space.Drive) float64 {
	s.space.Inside().Lock()
	defer s.space.Inside().Unlock()
	return 1 - float64(len(d.Free))/float64(max(1, d.Segments))
}

// A device is added while blocks are put, read and deleted: nobody is disturbed, groups opened
// from then on use it, what was there is spread over it, and the next open knows it. Another is
// removed, in the same way, and a second added after it.
func TestAddDeviceUnderLoad(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, o := openRig(t, func(o *Options) {
		quick(o)
		o.CapacityBytes = 8 << 20
	})
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	var runs [][]skep.Key
	for i := range 12 {
		runs = append(runs, chainKeys(i, 12))
		requireOutcome(t, skep.Committed, putRun(t, s, sc, runs[i], faultBlock))
	}
	all := func() {
		t.Helper()
		for _, keys := range runs {
			requireChain(t, s, sc, keys, faultBlock)
		}
	}
	var stop atomic.Bool
	load := storetest.NewCrew(t)
	for w := range 3 {
		load.Go(func(t testing.TB) {
			for i := 0; !stop.Load(); i++ {
				switch keys := chainKeys(1000*(w+1)+i, 4); w {
				case 0:
					requireChain(t, s, sc, runs[i%len(runs)], faultBlock)
				default:
					requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
					requireChain(t, s, sc, keys, faultBlock)
					_, err := s.Delete(ctx, sc, keys)
					require.NoError(t, err)
				}
				_, err := s.Stats(ctx)
				require.NoError(t, err)
			}
		})
	}
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: filepath.Join(o.Dir, "device-2")}))
	require.Len(t, s.members.All(), 3)
	eventually(t, "the new device has its share", func() bool { return share(s, s.members.All()[2]) > 0.1 })
	_, err := s.RemoveDevice(ctx, "0", MoveOptions{})
	require.NoError(t, err)
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: filepath.Join(o.Dir, "device-3")}))
	eventually(t, "so has the next", func() bool { return share(s, s.members.All()[3]) > 0.1 })
	stop.Store(true)
	load.Wait()
	all()
	require.NoError(t, s.Close())
	s, err = Open(ctx, o)
	require.NoError(t, err)
	require.Len(t, s.members.Opened, 4)
	all()
	require.NoError(t, s.Close())
}

// A store full of what must be kept has room again once a device is added: what is there is
// spread over it, and nothing is dropped.
func TestAddDeviceToAFullStore(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, o := openRig(t, func(o *Options) {
		quick(o)
		o.CapacityBytes, o.taskRetry = 3<<20, o.rules.ProbeEvery
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	var keys []skep.Key
	put := func() bool {
		k := keyOf(uint32(len(keys)), 5)
		if putRun(t, s, sc, []skep.Key{k}, faultBlock)[0].Outcome != skep.Committed {
			return false
		}
		keys = append(keys, k)
		return true
	}
	for put() {
	}
	full := len(keys)
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: filepath.Join(o.Dir, "device-2")}))
	eventually(t, "there is room for a fifth more", func() bool {
		put()
		return len(keys) > full+full/5
	})
	requireChain(t, s, sc, keys, faultBlock)
}

// What cannot be added changes nothing, and may be tried again.
func TestAddDeviceRefused(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, o := openRig(t, quick)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	path := filepath.Join(o.Dir, "device-2")
	requireKind(t, skep.Invalid, s.AddDevice(ctx, NewDevice{Path: path, Bytes: 1 << 10}))
	over, cancel := context.WithCancel(ctx)
	cancel()
	requireKind(t, skep.Deadline, s.AddDevice(over, NewDevice{Path: path}))
	inner := s.opening.OpenDevice
	s.opening.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
		d, err := inner(i, path, create, size)
		if err == nil {
			r.faults[i].MustInject(device.Rule{Action: device.Fail, Kinds: device.Writes})
		}
		return d, err
	}
	requireKind(t, skep.DeviceFailed, s.AddDevice(ctx, NewDevice{Path: path}))
	s.opening.OpenDevice = inner
	require.Len(t, s.members.All(), 2)
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: path}))
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.Close())
	requireKind(t, skep.Closed, s.AddDevice(ctx, NewDevice{Path: path}))
}

// Another process adds and removes devices of a store in use, through its socket; what it gets
// wrong is told with its kind, and who hangs up ends what was asked for.
func TestAskDevice(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, o := openRig(t, func(o *Options) {
		quick(o)
		o.Admin, o.CapacityBytes, o.taskEvery = true, 4<<20, hangs
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 60)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	ask := func(r DeviceRequest) (Progress, error) { return AskDevice(ctx, o.Dir, r) }
	_, err := ask(DeviceRequest{Action: "add", Path: filepath.Join(o.Dir, "device-2")})
	require.NoError(t, err)
	require.Len(t, s.members.All(), 3)
	_, err = ask(DeviceRequest{Action: "remove", Device: "99"})
	requireKind(t, skep.NotFound, err)
	require.Equal(t, 1, strings.Count(err.Error(), "remove device"), "it says once what failed: %v", err)
	p, err := ask(DeviceRequest{Action: "remove", Device: "0", DryRun: true})
	require.NoError(t, err)
	require.Positive(t, p.Blocks)
	over, cancel := context.WithCancel(ctx)
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) {
		defer cancel()
		eventually(t, "it is being drained", s.members.Opened[1].Retired.Load)
	})
	_, err = AskDevice(over, o.Dir, DeviceRequest{Action: "drain", Device: "1", Rate: 1})
	requireKind(t, skep.Deadline, err)
	crew.Wait()
	p, err = ask(DeviceRequest{Action: "remove", Device: "0"})
	require.NoError(t, err)
	require.Positive(t, p.Blocks)
	require.True(t, s.members.Opened[0].Removed.Load())
	requireChain(t, s, sc, keys, faultBlock)
	for _, tt := range []struct {
		r    DeviceRequest
		kind skep.Kind
	}{
		{DeviceRequest{Action: "paint"}, skep.Invalid},
		{DeviceRequest{Action: "drain", Device: "9"}, skep.NotFound},
		{DeviceRequest{Action: "remove", Device: "2"}, skep.Invalid}, // the last
	} {
		_, err := ask(tt.r)
		requireKind(t, tt.kind, err)
	}
}
