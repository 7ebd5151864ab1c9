package device_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/device/devicetest"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func create(t *testing.T, size int64, o device.Options) device.Device {
	t.Helper()
	d, err := device.Create(filepath.Join(t.TempDir(), "dev"), size, o)
	require.NoError(t, err)
	return d
}

func TestMemory(t *testing.T) {
	t.Parallel()
	devicetest.Test(t, func(*testing.T) device.Device { return device.NewMemory(devicetest.Size) })
}

func TestPool(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]device.Options{
		"direct":   {Backend: device.Pool},
		"buffered": {Backend: device.Pool, Buffered: true},
		"zeroed":   {Backend: device.Pool, WriteZeros: true},
		"alone":    {Backend: device.Pool, Workers: 1},
	} {
		t.Run(name, func(t *testing.T) {
			devicetest.Test(t, func(t *testing.T) device.Device {
				d := create(t, devicetest.Size, o)
				require.Equal(t, "pool", d.Info().Backend)
				if o.WriteZeros { // the contract counts from zero
					path := d.Info().Path
					require.NoError(t, d.Close())
					var err error
					d, err = device.Open(path, o)
					require.NoError(t, err)
				}
				return d
			})
		})
	}
}

func TestThrottledMemory(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]device.Model{
		"unlimited": {},
		"limited":   {ReadBandwidth: 4 << 30, WriteBandwidth: 4 << 30, IOPS: 1_000_000, Latency: 20 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			devicetest.Test(t, func(t *testing.T) device.Device {
				d, err := device.NewThrottled(device.NewMemory(devicetest.Size), m)
				require.NoError(t, err)
				return d
			})
		})
	}
}

func TestFaultlessFault(t *testing.T) {
	t.Parallel()
	devicetest.Test(t, func(t *testing.T) device.Device {
		f := device.NewFault(device.NewMemory(devicetest.Size), 1)
		require.NoError(t, f.Record(devicetest.Context(t)))
		return f
	})
}

func TestWrappersNest(t *testing.T) {
	t.Parallel()
	devicetest.Test(t, func(t *testing.T) device.Device {
		d, err := device.NewThrottled(device.NewFault(create(t, devicetest.Size, device.Options{}), 1), device.Model{IOPS: 1_000_000})
		require.NoError(t, err)
		return d
	})
}
