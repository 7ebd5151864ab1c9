package store

import (
	"cmp"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
)

func openTest(t *testing.T, o Options) *Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestStore(t *testing.T) {
	storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store {
		return openTest(t, Options{CapacityBytes: c.CapacityBytes, BlockBytes: 64 << 10, IOBytes: 64 << 20, CacheBytes: 32 << 20,
			LeasedBytes: cmp.Or(c.TenantLeaseBytes, 1<<40), PinnedBytes: cmp.Or(c.TenantPinBytes, 1<<40)})
	})
}
