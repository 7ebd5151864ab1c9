package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A device is known by whatever leads to it: a symbolic link, as those in /dev/disk/by-id are, or another name of the
// same file. It is added once, and taken out by any of its names.
func TestADeviceHasManyNames(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o, drives, _ := namedStore(t)
	link := filepath.Join(drives, "by-id")
	require.NoError(t, os.Symlink(o.Devices[1], link))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	requireKind(t, skep.Conflict, s.AddDevice(ctx, NewDevice{Path: link}))
	_, err = s.ReplaceDevice(ctx, "0", NewDevice{Path: link}, MoveOptions{})
	requireKind(t, skep.Conflict, err)
	require.Len(t, statsOf(t, s).Devices, 3)

	_, err = s.RemoveDevice(ctx, link, MoveOptions{})
	require.NoError(t, err)
	require.Len(t, statsOf(t, s).Devices, 2)
	require.NoFileExists(t, o.Devices[1])
	requireChain(t, s, openSpace(t, s, "n", skep.Durable, 1, true), chainKeys(1, 20), faultBlock)
	require.NoError(t, s.Close())
}
