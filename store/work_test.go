package store

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Every kind of background work is among those that Stats names while it is under way, with
// the bytes it has done, and is not when it has ended.
func TestWorkIsShown(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, o := openRig(t, func(o *Options) {
		well(o)
		o.DeviceCount, o.CapacityBytes, o.taskEvery = 3, 9<<20, hangs
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	for i := range 20 {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(i, 12), faultBlock))
	}
	most := map[string]int64{}
	look := func() {
		st, err := s.Stats(ctx)
		require.NoError(t, err)
		for _, w := range st.Work {
			require.Equal(t, "bytes", w.Unit)
			most[w.Name] = max(most[w.Name], w.Done)
		}
	}
	progress := MoveOptions{All: true, Progress: func(Progress) { look() }}
	_, err := s.Scrub(ctx, ScrubOptions{Rate: 1 << 30, Progress: func(ScrubReport) { look() }})
	require.NoError(t, err)
	_, err = s.Compact(ctx, progress)
	require.NoError(t, err)
	require.NoError(t, s.AddDevice(ctx, NewDevice{Path: filepath.Join(o.Dir, "device-3")}))
	_, err = s.Rebalance(ctx, progress)
	require.NoError(t, err)
	_, err = s.DrainDevice(ctx, "0", progress)
	require.NoError(t, err)
	for _, name := range []string{"scrub", "compact", "rebalance", "drain"} {
		require.Positive(t, most[name], name)
	}
	st, err := s.Stats(ctx)
	require.NoError(t, err)
	require.Empty(t, st.Work)
}
