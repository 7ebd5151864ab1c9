package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/rebuild"
	"github.com/skepkv/skep/store/internal/space"
)

// A rebuild with next to no memory for rows makes the same catalog as one with enough: it
// writes what it has before all logs of a group are read.
func TestRebuildInLittleMemory(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	o.DeviceCount, o.SegmentBytes, o.CapacityBytes, o.CacheBytes, o.Logger = 3, 1<<20, 24<<20, -1, testLog(t)
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	for i, copies := range []int{1, 2} {
		sc := openSpace(t, s, "copies"+itoa(copies), skep.Cache, copies, true)
		for chain := range 20 {
			putRun(t, s, sc, chainKeys(100*i+chain, 40), 300+chain%5*1200)
		}
	}
	require.NoError(t, s.Close())

	o.ensureDefaults()
	rows := func(memory int) (map[layout.Location]string, RebuildReport) {
		s := newStore(o)
		defer func() { require.NoError(t, s.abandon()) }()
		require.NoError(t, s.opening.Drives(testContext(t)))
		s.catalog, err = catalog.Open(t.TempDir(), catalog.Options{Logger: o.Logger})
		require.NoError(t, err)
		s.opening.Catalog = s.catalog
		in := s.opening.Input(nil)
		in.RowBytes = memory
		rep, err := rebuild.Run(testContext(t), in)
		require.NoError(t, err)
		out := map[layout.Location]string{}
		require.NoError(t, s.catalog.ScanBlocks(testContext(t), 1, func(_ int, l layout.Location, rec []byte) error {
			if l.Device == space.InlineDevice {
				l.Page = uint32(len(out)) // which gets which place is chance
			}
			out[l] = string(rec)
			return nil
		}))
		return out, rep
	}
	want, rep := rows(0)
	require.EqualValues(t, 1600, rep.Blocks)
	require.Equal(t, 1, rep.Levels)
	got, rep := rows(256 << 10)
	require.EqualValues(t, 1600, rep.Blocks)
	require.Greater(t, rep.Levels, 2, "rows were written early")
	require.Len(t, got, len(want))
	for l, rec := range want {
		if l.Device != space.InlineDevice {
			require.True(t, rec == got[l], "row %v", l)
		}
	}
}
