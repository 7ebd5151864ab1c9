//go:build unix

package serve

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/wire/httpapi"
)

// A directory as long as kubelet makes them has no room for the names of Unix sockets.
func TestADirectoryWithALongPathIsServed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	c, err := Load("", nil, map[string]string{"dir": dir, "file_devices": "1", "store.capacity_bytes": "64MiB", "store.dram_bytes": "16MiB",
		"store.io_bytes": "64MiB", "limits.memory_bytes": "56MiB", "listen": None, "http": None, "resp": "127.0.0.1:0"})
	require.NoError(t, err)
	var log bytes.Buffer
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var served []httpapi.Listener
	require.NoError(t, Run(ctx, c, Options{Version: "test", Log: &log, Ready: func(i httpapi.ServerInfo) { served = i.Listeners; stop() }}))
	require.Len(t, served, 1)
	assert.Equal(t, "resp", served[0].Protocol)
	assert.Contains(t, log.String(), "the binary protocol has no Unix socket")
	assert.Contains(t, log.String(), "the store has no admin socket")

	other := filepath.Join(t.TempDir(), "s")
	long := filepath.Join(dir, "sock")
	for _, flags := range []map[string]string{
		{"dir": other, "unix": long},
		{"dir": filepath.Join(dir, "inside"), "listen": None, "http": None, "resp": None},
	} {
		_, err = Load("", nil, flags)
		require.ErrorIs(t, err, skep.Invalid)
		assert.ErrorContains(t, err, "unix, path")
	}
	_, err = os.Stat(other)
	assert.ErrorIs(t, err, os.ErrNotExist, "nothing was made")
	assert.GreaterOrEqual(t, store.MaxSocketPath, 100)
}
