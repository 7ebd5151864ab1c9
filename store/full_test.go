package store

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// meteredFS is a file system whose free space a test sets.
type meteredFS struct {
	vfs.FS
	avail *atomic.Uint64
}

func (f meteredFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: f.avail.Load(), TotalBytes: 100 << 30}, nil
}

func (f meteredFS) Unwrap() vfs.FS { return f.FS }

// The catalog's file system fills up: puts are declined as Full and the state says why;
// restores and deletes go on; when there is space again puts are taken, without a restart.
func TestCatalogFileSystemFull(t *testing.T) {
	t.Parallel()
	var avail atomic.Uint64
	avail.Store(10 << 30)
	ctx := testContext(t)
	s, _, o := openRig(t, func(o *Options) { o.CatalogFS = meteredFS{vfs.NewMem(), &avail} })
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 10)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))

	avail.Store(1 << 20)
	next := 100
	declined := func() bool {
		next++
		res := putRun(t, s, sc, chainKeys(next, 1), faultBlock)
		if res[0].Outcome == skep.Declined {
			require.Equal(t, skep.Full, res[0].Reason)
		}
		return res[0].Outcome == skep.Declined
	}
	eventually(t, "it is noticed", func() bool {
		st, err := s.Stats(ctx)
		require.NoError(t, err)
		return strings.HasPrefix(st.State, "full: ")
	})
	require.True(t, declined())
	requireChain(t, s, sc, keys, faultBlock)
	n, err := s.Delete(ctx, sc, keys[9:])
	require.NoError(t, err)
	require.Equal(t, 1, n)

	avail.Store(10 << 30)
	eventually(t, "puts are taken again", func() bool { return !declined() })
	st, err := s.Stats(ctx)
	require.NoError(t, err)
	require.Equal(t, "ok", st.State)
	require.NoError(t, s.Close())
	s, err = Open(context.Background(), o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys[:9], faultBlock)
	require.NoError(t, s.Close())
}
