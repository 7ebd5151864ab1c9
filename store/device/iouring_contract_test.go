//go:build iouring && linux

package device_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/device/devicetest"
)

// openRing skips where the kernel or a sandbox has no io_uring for us.
func openRing(t *testing.T, o device.Options) device.Device {
	o.Backend = device.Auto
	d := create(t, devicetest.Size, o)
	if d.Info().Backend != device.IOUring {
		require.NoError(t, d.Close())
		t.Skip("no io_uring here: " + d.Info().Reason)
	}
	return d
}

func TestRing(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]device.Options{
		"default":  {},
		"buffered": {Buffered: true},
		"shallow":  {QueueDepth: 1},
		"odd":      {QueueDepth: 5},
		"deep":     {QueueDepth: 1024},
		"no lock":  {NoLock: true},
	} {
		t.Run(name, func(t *testing.T) {
			devicetest.Test(t, func(t *testing.T) device.Device {
				return openRing(t, o)
			})
		})
	}
}
