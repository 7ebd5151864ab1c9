package paths

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Other file systems below the system's devices are as any other.
func TestAFileSystemOfItsOwnAmongDevices(t *testing.T) {
	t.Parallel()
	own, _, ok := FileSystem("/dev/shm")
	top, _, known := FileSystem(DeviceDir)
	if !ok || !known || own == top {
		t.Skip("nothing is mounted at /dev/shm")
	}
	require.False(t, AmongDevices("/dev/shm/skep-test/not/there"))
	require.True(t, AmongDevices("/dev/skep-test/not/there"))
	require.False(t, AmongDevices("/devices/sda"))
	require.False(t, AmongDevices(filepath.Join(t.TempDir(), "dev", "sda")))
}
