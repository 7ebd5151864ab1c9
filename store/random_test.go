package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
)

// TestRandom does random operations with stores under random options and with the
// in-memory model, restarts included. SKEP_RANDOM_RUNS makes it longer.
func TestRandom(t *testing.T) {
	t.Parallel()
	seed := testSeed(t)
	runs := testNumber(t, "SKEP_RANDOM_RUNS", 10)
	for run := range runs {
		rng := rand.New(rand.NewPCG(seed, uint64(run)))
		lossy := run%2 == 1
		t.Run(fmt.Sprintf("run=%d", run), func(t *testing.T) {
			t.Parallel()
			o, copies := randomOptions(rng, t.TempDir(), lossy)
			unjudged(&o) // a file on a busy machine may stand still for a second, and its blocks be misses
			b := &rig{seed: rng.Uint64()}
			onFiles := rng.IntN(3) == 0
			if onFiles {
				o.Device.Backend = []string{device.Auto, device.Pool}[rng.IntN(2)]
			} else {
				o.OpenDevice = b.open
				o.CatalogFS = vfs.NewMem()
			}
			t.Logf("encrypted %v, lossy %v, files %v, copies %d, devices %d, segment %d, block %d, capacity %d, cache %d, policy %s, flush every %v", o.EncryptionKeys != nil, lossy, onFiles, copies,
				o.DeviceCount, o.SegmentBytes, o.BlockBytes, o.CapacityBytes, o.CacheBytes, o.Policy, o.FlushInterval)
			open := func(t *testing.T) skep.Store {
				o.FlushInterval = time.Duration(1+rng.IntN(200)) * time.Millisecond
				s, err := Open(context.Background(), o)
				require.NoError(t, err)
				return withCopies{s, copies}
			}
			storetest.Random(t, func(t *testing.T, _ storetest.Config) skep.Store { return open(t) },
				storetest.RandomOptions{Seed: rng.Uint64(), Ops: 300, Lossy: lossy, Reopen: open})
		})
	}
}

// TestRandomFaults is TestRandom on drives and a file system that fail now and then: the
// store may decline, miss and fail, but nothing is found that was not put or was deleted,
// no bytes are wrong, and once all is healthy every operation succeeds, after a restart
// at the latest.
//
// A failed catalog leaves goroutines behind on purpose, so this runs in a process of its
// own.
//
// Alone: it has the machine for as long as it runs.
func TestRandomFaults(t *testing.T) {
	if !aloneFor(t, time.Hour) {
		return
	}
	seed := testSeed(t)
	for run := range testNumber(t, "SKEP_RANDOM_RUNS", 8) {
		rng := rand.New(rand.NewPCG(seed, uint64(run)))
		t.Run(fmt.Sprintf("run=%d", run), func(t *testing.T) {
			t.Parallel()
			o, copies := randomOptions(rng, t.TempDir(), true)
			o.OpTimeout = time.Second         // what is held costs as much; what is healthy must never take as long
			o.catalogScarce = 2 * time.Second // what lacks space costs as much
			b := &rig{seed: rng.Uint64()}
			disk := &failingDisk{}
			o.OpenDevice, o.CatalogFS = b.open, errorfs.Wrap(vfs.NewMem(), disk)
			t.Logf("copies %d, devices %d, segment %d, capacity %d, cache %d, policy %s", copies, o.DeviceCount, o.SegmentBytes, o.CapacityBytes, o.CacheBytes, o.Policy)
			open := func(t *testing.T) skep.Store {
				o.FlushInterval = time.Duration(1+rng.IntN(200)) * time.Millisecond
				s, err := Open(context.Background(), o)
				require.NoError(t, err)
				return withCopies{s, copies}
			}
			storetest.Random(t, func(t *testing.T, _ storetest.Config) skep.Store { return open(t) }, storetest.RandomOptions{
				Seed: rng.Uint64(), Ops: 250, Lossy: true, Reopen: open,
				Faults: &storetest.Faults{
					Break: func(rnd *rand.Rand) string { return breakSomething(rnd, b, disk) },
					Heal: func() {
						disk.err.Store(nil)
						b.each(func(_ int, d *device.Fault) { d.Clear(); d.Release() })
					},
				},
			})
		})
	}
}

// failingDisk is what errorfs asks: while err is set, writes fail with it.
type failingDisk struct{ err atomic.Pointer[error] }

func (f *failingDisk) String() string { return "failing disk" }

func (f *failingDisk) MaybeError(op errorfs.Op) error {
	if err := f.err.Load(); err != nil && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		return *err
	}
	return nil
}

// breakSomething makes a drive, or the catalog's file system, fail from now on.
func breakSomething(rnd *rand.Rand, b *rig, disk *failingDisk) string {
	rules := []device.Rule{
		{Action: device.Fail, Kinds: device.Reads, Probability: 0.3},
		{Action: device.FlipBit, Kinds: device.Reads, Probability: 0.1},
		{Action: device.Misdirect, Kinds: device.Reads, Shift: 64 << 10, Probability: 0.1},
		{Action: device.Fail, Kinds: device.Writes, Times: 1 + rnd.IntN(5)},
		{Action: device.Fail, Kinds: device.Writes, Err: syscall.ENOSPC},
		{Action: device.Drop, Kinds: device.Writes, From: 8 << 10, Times: 1 + rnd.IntN(3)},
		{Action: device.Tear, Kinds: device.Writes, From: 8 << 10, Keep: 512 * rnd.IntN(16), Times: 1},
		{Action: device.Fail, Kinds: device.Flushes},
		{Action: device.Delay, Delay: 3 * time.Millisecond, Probability: 0.2},
		{Action: device.Hold, Kinds: device.Reads | device.Writes, Times: 1},
		{Action: device.Withhold, Kinds: device.Reads, Times: 1},
		device.ReadOnlyRule(), device.GoneRule(), device.LyingFlushRule(),
	}
	k := rnd.IntN(len(rules) + 2)
	if k >= len(rules) {
		err := []error{syscall.EIO, syscall.ENOSPC}[k-len(rules)]
		disk.err.Store(&err)
		return "the catalog's file system: " + err.Error()
	}
	which, n := rnd.IntN(64), 0
	b.each(func(int, *device.Fault) { n++ })
	b.each(func(i int, d *device.Fault) {
		if i == which%n {
			d.MustInject(rules[k])
		}
	})
	return fmt.Sprintf("drive %d: %s, kinds %b, error %v", which%n, rules[k].Action, rules[k].Kinds, rules[k].Err)
}

// withCopies opens every namespace with a number of copies.
type withCopies struct {
	*Store
	copies int
}

func (s withCopies) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	spec.Copies = s.copies
	return s.Store.OpenNamespace(ctx, spec)
}

// randomOptions are options for a store of the model's blocks; a lossy one has too
// little room for all of them.
func randomOptions(rng *rand.Rand, dir string, lossy bool) (o Options, copies int) {
	o = small(dir)
	o.DeviceCount = 1 + rng.IntN(6)
	copies = 1 + rng.IntN(min(3, o.DeviceCount))
	o.SegmentBytes = []int64{64 << 10, 128 << 10, 256 << 10, 1 << 20}[rng.IntN(4)]
	o.BlockBytes = []int64{4 << 10, 16 << 10, 64 << 10}[rng.IntN(3)]
	o.CapacityBytes = 64 << 20
	segments := int64(20)
	if lossy {
		o.SegmentBytes = 64 << 10
		segments = 4 + rng.Int64N(8)
	}
	o.CapacityBytes = int64(o.DeviceCount) * (segments*o.SegmentBytes + 16<<10)
	if !lossy {
		o.CapacityBytes = max(o.CapacityBytes, 64<<20)
	}
	o.Policy = []string{"cost", "cost", "lru", "s3fifo"}[rng.IntN(4)]
	o.CacheBytes = []int64{-1, 256 << 10, 8 << 20}[rng.IntN(3)]
	o.Workers = rng.IntN(3)
	if rng.IntN(3) == 0 {
		o.EncryptionKeys = oneKey("", 1)
	}
	o.SpaceTimeout = 100 * time.Millisecond
	return o, copies
}
