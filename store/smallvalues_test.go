package store

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/compact"
)

// Small values lie in the logs, of which the index counts nothing, and long names lie beside others. Groups that are
// full of them have no holes, whether this process has filled them or found them. What is deleted leaves some, which
// are made use of once.
func TestWhatTheLogsHoldIsNoHole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		size, named, run int
	}{{"in records", 300, 0, 60}, {"beside names", 1024, 900, 10}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s, _, o := openRig(t, func(o *Options) { well(o); o.CapacityBytes, o.taskEvery = 16<<20, hangs })
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			var runs [][]skep.Key
			for len(s.index.Groups()) < 4 { // those that are sealed
				keys := chainKeys(len(runs), c.run)
				put := putRequest(sc, nil, 0, keys, c.size)
				for i := range put.Blocks {
					put.Blocks[i].Name = bytes.Repeat([]byte{byte(i)}, c.named)
				}
				res, err := s.Put(ctx, put)
				require.NoError(t, err)
				requireOutcome(t, skep.Committed, res)
				runs = append(runs, keys)
			}
			costs := s.space.Costs(s.space.Groups())
			require.Empty(t, compact.Asked.Choose(costs), "%+v", costs)
			require.NoError(t, s.Close())
			s, err := Open(ctx, o)
			require.NoError(t, err)
			costs = s.space.Costs(s.space.Groups())
			require.Empty(t, compact.Unasked.Choose(costs), "%+v", costs)

			var left [][]skep.Key
			for i, keys := range runs {
				if i%3 == 0 {
					left = append(left, keys)
					continue
				}
				_, err := s.Delete(ctx, sc, keys)
				require.NoError(t, err)
			}
			r, err := s.Compact(ctx, MoveOptions{})
			require.NoError(t, err)
			require.Positive(t, r.GroupsFreed)
			require.Positive(t, r.LiveShare)
			again, err := s.Compact(ctx, MoveOptions{})
			require.NoError(t, err)
			require.Zero(t, again.Blocks, "there is nothing to do any more")
			for _, keys := range left {
				requireChain(t, s, sc, keys, c.size)
			}
			require.NoError(t, s.Close())
		})
	}
}
