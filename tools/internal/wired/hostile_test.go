package wired

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/wire/hostile"
)

// Clients that do their worst to an engine on drives harm nobody else, and leave nothing. make hostile runs it for long.
//
// Alone: its oracles count what the whole process has.
func TestHostileClients(t *testing.T) {
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), DeviceCount: 2, CapacityBytes: 256 << 20, SegmentBytes: 4 << 20, BlockBytes: 2 << 20, IOBytes: 64 << 20, CacheBytes: 32 << 20})
	require.NoError(t, err)
	hostile.Run(t, st, hostile.Options{})
	require.NoError(t, st.Close())
}
