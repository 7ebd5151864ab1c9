package store

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/memory"
)

// Others have all memory for reads. A chunk waits for it as long as a read may take, and those behind it, which were
// issued with it, no longer than that: they do not wait one after the other.
func TestChunksWaitForMemoryTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o := small(dir)
		o.OpTimeout, o.CacheBytes = 8*time.Second, -1
		o.OpenDevice = func(_ int, _ string, _ bool, size int64) (device.Device, error) {
			return device.NewMemory(size), nil
		}
		s, err := Open(t.Context(), o)
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		sc, keys := openSpace(t, s, "n", skep.Cache, 1, true), chainKeys(1, 8)
		requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 4096))
		require.NoError(t, s.Flush(testContext(t)))
		bufs := holdMemory(s.arena)
		defer func() { memory.ReleaseAll(bufs) }()
		began := time.Now()
		list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys})
		require.NoError(t, err)
		for i := range list {
			require.Error(t, list[i].err)
		}
		require.Less(t, time.Since(began), o.OpTimeout*3/2)
	})
}
