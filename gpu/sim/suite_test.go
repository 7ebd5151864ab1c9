package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/gputest"
	"github.com/skepkv/skep/store/memstore"
)

func TestSuite(t *testing.T) {
	t.Parallel()
	gputest.Test(t, func(t testing.TB, c gputest.Config) gputest.Machine {
		o := H20()
		o.Devices, o.MemoryBytes, o.Seed = 2, 64<<20, c.Seed
		o.Peer.BytesPerSecond = []float64{1e9, 2e8}[c.Seed%2] // transfers shorter and longer than kernels
		w, err := New(o)
		require.NoError(t, err)
		return gputest.Machine{Devices: [2]gpu.Device{w.Device(0), w.Device(1)}, Apart: true, Deferred: true, Faults: faults{w}, Pinned: w.Device(0).Pinned, Left: w.Left}
	}, func() skep.Store { return memstore.New(memstore.Options{}) })
}

type faults struct{ w *World }

func (f faults) FailAlloc(device, nth int) { f.w.Device(device).FailAlloc(nth) }

func (f faults) FailPin(device, nth int) { f.w.Device(device).FailPin(nth) }

func (f faults) Fail(device int) {
	f.w.Device(device).Fail(&skep.Error{Op: "GPU", Kind: skep.DeviceFailed, Field: "device", Value: "gone"})
}

func (f faults) Hang(device int) { f.w.Device(device).Hang() }

func (f faults) Revoke(m gpu.Memory, pieces int) { m.(*memory).device.Revoke(m, pieces) }

func (f faults) Flip(device int) { f.w.Device(device).FlipBit() }
