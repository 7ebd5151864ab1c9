package wired

import (
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/layout/elastic"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/storetest"
)

// The contract holds with GPU memory, own and lent, in front of the engine on drives.
func TestContractOfGPUMemoryInFrontOfAnEngine(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("the contract of the engine and of the GPU tier are tested by themselves")
	}
	storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store {
		st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), CapacityBytes: c.CapacityBytes, DeviceCount: 2, BlockBytes: 64 << 10, IOBytes: 64 << 20,
			CacheBytes: 32 << 20, LeasedBytes: cmp.Or(c.TenantLeaseBytes, 1<<40), PinnedBytes: cmp.Or(c.TenantPinBytes, 1<<40), TenantNamespaces: c.TenantNamespaces})
		require.NoError(t, err)
		o := sim.H20()
		o.Devices, o.MemoryBytes = 2, 16<<20
		w, err := sim.New(o)
		require.NoError(t, err)
		unit := elastic.Unit{Bytes: 64 << 10, LenderBlock: 48 << 10, BorrowerBlock: 32 << 10, Lender: 1, Borrower: 2}
		front, err := gpu.New(st, gpu.Options{Device: w.Device(0), Local: 3, BlockBytes: 32 << 10, Timeout: time.Minute,
			Lenders: []gpu.Lender{{Device: w.Device(1), Unit: unit, Units: 5, Keep: 1}}})
		require.NoError(t, err)
		return front
	})
}
