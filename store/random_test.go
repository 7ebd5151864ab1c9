package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
)

// TestRandom does random operations with stores under random options and with the
// in-memory model, restarts included. SKEP_RANDOM_RUNS makes it longer.
func TestRandom(t *testing.T) {
	seed := testSeed(t)
	runs := testNumber(t, "SKEP_RANDOM_RUNS", 10)
	for run := range runs {
		rng := rand.New(rand.NewPCG(seed, uint64(run)))
		lossy := run%2 == 1
		t.Run(fmt.Sprintf("run=%d", run), func(t *testing.T) {
			t.Parallel()
			o, copies := randomOptions(rng, t.TempDir(), lossy)
			b := &rig{seed: rng.Uint64()}
			onFiles := rng.IntN(3) == 0
			if onFiles {
				o.Device.Backend = []string{device.Auto, device.Pool}[rng.IntN(2)]
			} else {
				o.OpenDevice = b.open
				o.CatalogFS = vfs.NewMem()
			}
			t.Logf("lossy %v, files %v, copies %d, devices %d, segment %d, block %d, capacity %d, cache %d, policy %s, flush every %v", lossy, onFiles, copies,
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
	o.SpaceTimeout = 100 * time.Millisecond
	return o, copies
}
