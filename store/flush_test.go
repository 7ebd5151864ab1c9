package store

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
)

// A flush that fails may have dropped what it was to make durable, and the next one, which succeeds,
// says nothing of it: the drive is fenced at once, and what waited for either flush is written
// again elsewhere before it is acknowledged.
func TestOneFailedFlush(t *testing.T) {
	t.Parallel()
	for _, on := range []string{"memory", "a full file system", device.Pool, device.Auto} {
		t.Run("on "+on, func(t *testing.T) {
			ctx := testContext(t)
			var why error // EIO
			if on == "a full file system" {
				on, why = "memory", syscall.ENOSPC
			}
			var inner, outer []*device.Fault
			dir := t.TempDir()
			o := small(tempRoot(t, "store"))
			o.CatalogFS, o.CacheBytes = vfs.NewMem(), -1
			unjudged(&o)
			o.rules.ProbeEvery = hangs // what is fenced stays so
			o.OpenDevice = func(i int, _ string, create bool, size int64) (device.Device, error) {
				var d device.Device = device.NewMemory(size)
				if on != "memory" {
					path := filepath.Join(dir, itoa(i))
					if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
						return nil, err
					}
					var err error
					if d, err = device.Open(path, device.Options{Backend: on}); err != nil {
						return nil, err
					}
				}
				inner = append(inner, device.NewFault(d, 1))
				outer = append(outer, device.NewFault(inner[i], 1))
				return outer[i], nil
			}
			s, err := Open(ctx, o)
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Durable, 1, false)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 1), 8<<10))
			first := groupHolding(t, s, sc, chainKeys(1, 1)[0])

			inner[0].MustInject(device.Rule{Action: device.Fail, Kinds: device.Flushes, Times: 1, Err: why})
			outer[0].Hold(device.Flush)
			done := make(chan []skep.PutResult, 2)
			put := func(root int) {
				res, err := heapPut(ctx, s, putRequest(sc, nil, 0, chainKeys(root, 1), 8<<10))
				if err != nil {
					t.Error(err)
				}
				done <- res
			}
			go put(2)
			require.NoError(t, outer[0].WaitHeld(ctx, 1)) // the flush that is to fail
			go put(3)
			d := s.members.Opened[0]
			eventually(t, "another waits for the next", d.Flush.Queued)
			outer[0].Release()
			for range 2 {
				requireOutcome(t, skep.Committed, <-done)
			}
			require.Equal(t, health.Fenced, d.Condition(), "one is enough")
			for root := 2; root <= 3; root++ {
				require.NotEqual(t, first, groupHolding(t, s, sc, chainKeys(root, 1)[0]), "put %d was acknowledged where it may have been dropped", root)
				requireChain(t, s, sc, chainKeys(root, 1), 8<<10)
			}
		})
	}
}

// A put has written all that it has to a drive, and waits for another drive. The one flush of the first
// that fails meanwhile is not the put's: it is of the superblocks when a device is added, or of a probe
// of the drive, which was fenced. The put's own flush succeeds and says nothing of that: the put is
// acknowledged only when it was written again elsewhere.
func TestAFlushThatFailedForSomebodyElse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		flush func(t *testing.T, s *Store, fails *device.Injected)
	}{
		{"superblocks", func(t *testing.T, s *Store, fails *device.Injected) {
			require.NoError(t, s.AddDevice(testContext(t), NewDevice{Path: filepath.Join(s.options.Dir, "device-2")}))
			require.Equal(t, 1, fails.Fired())
		}},
		{"a probe", func(t *testing.T, s *Store, fails *device.Injected) {
			s.space.Fence(s.members.Opened[0], errors.New("it failed three writes"))
			eventually(t, "the drive is probed", func() bool { return fails.Fired() == 1 })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			s, r, _ := openRig(t, func(o *Options) {
				unjudged(o)
				o.rules.Tick, o.rules.ProbeEvery, o.FlushInterval = 5*time.Millisecond, 10*time.Millisecond, hangs
			})
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Durable, 1, false)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 1), 8<<10))
			first := groupHolding(t, s, sc, chainKeys(1, 1)[0])
			pages := device.Rule{Action: device.Hold, Kinds: device.Writes, From: layout.SegmentOffset(0, s.space.SegmentBytes)}
			r.faults[1].MustInject(pages)
			written := s.members.Opened[0].Dev.Stats().Writes.Ops
			done := make(chan error, 1)
			var res []skep.PutResult
			go func() {
				var err error
				res, err = heapPut(ctx, s, putRequest(sc, nil, 0, chainKeys(2, 4), 8<<10))
				done <- err
			}()
			require.NoError(t, r.faults[1].WaitHeld(ctx, 1))
			eventually(t, "the other drive has its part", func() bool { return s.members.Opened[0].Dev.Stats().Writes.Ops > written })

			tt.flush(t, s, r.faults[0].MustInject(device.Rule{Action: device.Fail, Kinds: device.Flushes, Times: 1}))
			r.faults[1].Release()
			require.NoError(t, <-done)
			requireOutcome(t, skep.Committed, res)
			for _, key := range chainKeys(2, 4) {
				require.NotEqual(t, first, groupHolding(t, s, sc, key), "acknowledged where it may have been dropped")
				requireChain(t, s, sc, []skep.Key{key}, 8<<10)
			}
		})
	}
}

// groupHolding is the number of the group a block lies in.
func groupHolding(t *testing.T, s *Store, sc skep.Scope, key skep.Key) uint32 {
	t.Helper()
	ns, tg, err := s.names.Resolve("test", sc)
	require.NoError(t, err)
	e, ok := s.index.Resolve(s.names.Fingerprint(ns.Instance, tg, key))
	require.True(t, ok)
	return layout.Unpack(e.Location).Group
}

// A drive's device takes no flush but its flusher's, in whichever way the store came by it: another
// could take the error of what the flusher is to confirm.
func TestADriveIsFlushedByItsFlusherAlone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, o := openRig(t, nil)
	refuses := func(s *Store) {
		for _, d := range s.members.All() {
			require.ErrorIs(t, device.Sync(ctx, d.Dev), device.ErrInvalid)
			r := d.Flush.Start()
			<-r.Done()
			require.NoError(t, r.Err())
		}
	}
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: filepath.Join(o.Dir, "device-2")}))
	refuses(s)
	require.NoError(t, s.Close())
	s, err := Open(ctx, o)
	require.NoError(t, err)
	refuses(s)
	require.NoError(t, s.Close())
}

// The length of a file that grew is made durable by a flush of the drive as any other: when it fails
// the drive is fenced, and what it has grown by is not used.
func TestAFlushThatFailsWhereADriveGrows(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.CapacityBytes, o.ReserveBytes, o.FlushInterval = 0, 1, hangs
		o.rules.ProbeEvery = hangs // what is fenced stays so
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	d := s.members.Opened[0]
	had := func() int {
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		return d.Segments
	}
	before, size := had(), d.Dev.Size()
	// The first once it has grown, not that of a group that is made ready meanwhile: a fenced drive does not grow.
	r.faults[0].MustInject(device.Rule{Action: device.Fail, Kinds: device.Flushes, Times: 1,
		Match: func(*device.Op) bool { return d.Dev.Size() != size }})
	for i := 0; d.Dev.Size() == size; i++ {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{keyOf(uint32(i), 77)}, 64<<10))
	}
	eventually(t, "the drive is fenced", func() bool { return d.Condition() == health.Fenced })
	require.Equal(t, before, had())
}

// The last flush fails as a store is closed, which says so. It was not closed in order: the next open verifies what
// was written since the flush before, and finds nothing that is not on the drives.
func TestAStoreThatCannotFlushIsNotClosedInOrder(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, crash := crashRig(t, func(*Options) {})
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	// Their rows are safe, and their bytes are not.
	require.NoError(t, s.catalog.Commit(ctx, s.catalog.NewBatch(), true))
	r.each(func(_ int, d *device.Fault) { d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Flushes}) })
	require.Error(t, s.Close())

	s, err := Open(ctx, crash("closed"))
	require.NoError(t, err)
	found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys, Lease: skep.NoLease})
	require.NoError(t, err)
	require.Zero(t, found.Blocks, "they were never flushed")
	require.NoError(t, s.Close())
}
