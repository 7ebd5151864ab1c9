package aside

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A directory with a device of the store in it is not moved: the device would be moved, too.
func TestADeviceIsNotMovedAside(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	dir := filepath.Join(home, "catalog")
	device := filepath.Join(dir, "device-0")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(device, []byte("blocks"), 0o644))
	p := &Place{Op: "rebuild", FS: vfs.Default, Dir: dir, Home: home, Devices: []string{device}, Timeout: time.Minute,
		Log: slog.New(slog.DiscardHandler)}
	_, err := p.SetAside(time.Unix(0, 0), func() { require.Fail(t, "nothing is to be moved") })
	require.ErrorIs(t, err, skep.Invalid)
	require.FileExists(t, device)

	p.Devices = nil // it is somebody's file in the store's own directory
	to, err := p.SetAside(time.Unix(0, 0), func() {})
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(to, "device-0"))
}
