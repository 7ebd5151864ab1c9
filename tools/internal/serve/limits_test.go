package serve

import (
	"context"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/wire/httpapi"
)

// A server goes on with the cap and the devices of a store that is there, and with no others, unless the cap is to be
// changed.
func TestAServerKeepsWhatItsStoreWasMadeWith(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	st, err := store.Open(t.Context(), store.Options{Dir: dir, DeviceCount: 2, CapacityBytes: 64 << 20, BlockBytes: 64 << 10, IOBytes: 64 << 20, CacheBytes: -1})
	require.NoError(t, err)
	require.NoError(t, st.Close())
	run := func(flags map[string]string) error {
		all := map[string]string{"dir": dir, "listen": None, "unix": None, "resp": None, "http": "127.0.0.1:0", "store.io_bytes": "64MiB", "limits.memory_bytes": "60MiB", "store.dram_bytes": "0"}
		for name, v := range flags {
			all[name] = v
		}
		c, err := Load("", nil, all)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		return Run(ctx, c, Options{Log: io.Discard, Ready: func(httpapi.ServerInfo) { stop() }})
	}
	has := func() int64 {
		s, err := store.Open(t.Context(), store.Options{Dir: dir, ReadOnly: true})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		st, err := s.Stats(t.Context())
		require.NoError(t, err)
		require.Len(t, st.Devices, 2)
		return st.CapacityBytes
	}
	require.NoError(t, run(nil))
	require.EqualValues(t, 64<<20, has(), "nobody said a cap: it is the store's")
	require.NoError(t, run(map[string]string{"store.capacity_bytes": "64MiB", "file_devices": "2"}))
	err = run(map[string]string{"store.capacity_bytes": "96MiB"})
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "is 100663296, must be 67108864")
	require.ErrorContains(t, err, "--change-capacity")
	err = run(map[string]string{"file_devices": "8"})
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "is 8, must be 2")
	require.EqualValues(t, 64<<20, has())
	require.NoError(t, run(map[string]string{"store.capacity_bytes": "96MiB", "store.change_capacity": "true"}))
	require.EqualValues(t, 96<<20, has())
}
