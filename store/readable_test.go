package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
)

// A lookup ends before what lies on a drive that cannot be read, from the open on or since it
// went, so that everything it promises comes; with another copy, or one in memory, nothing is
// hidden. When the drive is back all is found again.
func TestNothingUnreadableIsPromised(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		chained bool
		copies  int
		cached  bool
		atOpen  bool
	}{
		{name: "gone while open", chained: true, copies: 1},
		{name: "gone while open, keys", copies: 1},
		{name: "gone while open, in memory", chained: true, copies: 1, cached: true},
		{name: "gone while open, two copies", chained: true, copies: 2},
		{name: "missing at the open", chained: true, copies: 1, atOpen: true},
		{name: "missing at the open, keys", copies: 1, atOpen: true},
		{name: "missing at the open, two copies", chained: true, copies: 2, atOpen: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			s, r, o := openRig(t, func(o *Options) {
				quick(o)
				o.DeviceCount, o.taskEvery = 3, hangs
				if tt.cached {
					o.CacheBytes = 16 << 20
				}
			})
			sc := openSpace(t, s, "n", skep.Cache, tt.copies, tt.chained)
			keys := chainKeys(1, 30)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
			lookup := func() (int, skep.LeaseID) {
				res, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys, Tiers: true})
				require.NoError(t, err)
				for _, tier := range res.Tiers {
					require.Equal(t, tt.cached, tier == skep.TierDRAM)
				}
				return res.Blocks, res.Lease.ID
			}
			if tt.cached {
				requireChain(t, s, sc, keys, faultBlock) // and is in memory from then on
			}
			if tt.atOpen {
				require.NoError(t, s.Close())
				away := r.mems[1]
				r.mems[1] = nil
				var err error
				s, err = Open(ctx, o)
				require.NoError(t, err)
				defer func() {
					require.NoError(t, s.Close())
					r.mems[1] = away
					s, err = Open(ctx, o)
					require.NoError(t, err)
					n, _ := lookup()
					require.Equal(t, len(keys), n, "the drive is back")
					requireChain(t, s, sc, keys, faultBlock)
					require.NoError(t, s.Close())
				}()
			} else {
				r.faults[1].MustInject(device.GoneRule())
				page := device.AlignedBuffer(layout.PageSize)
				eventually(t, "the drive is noticed", func() bool {
					_ = device.ReadAt(ctx, s.members.Opened[1].Dev, page, 0)
					return s.members.Opened[1].Standing.Unreadable()
				})
				defer func() {
					r.faults[1].Clear()
					eventually(t, "the drive is back", func() bool {
						n, _ := lookup()
						return s.members.Opened[1].Condition() == health.Healthy && n == len(keys)
					})
					requireChain(t, s, sc, keys, faultBlock)
					require.NoError(t, s.Close())
				}()
			}
			n, lease := lookup()
			if tt.copies == 2 || tt.cached {
				require.Equal(t, len(keys), n)
			} else {
				require.Less(t, n, len(keys))
			}
			list, err := fetch(ctx, s, skep.Chain{Scope: sc, Keys: keys, Blocks: skep.Only(0, n), Lease: lease})
			require.NoError(t, err)
			for i := range n {
				require.NoError(t, list[i].err, "block %d of %d", i, n)
			}
			st, err := s.Stats(ctx)
			require.NoError(t, err)
			require.Zero(t, st.BrokenPromises)
		})
	}
}

// Who computes again what lies on a drive that cannot be read may store it again: it is
// wanted, and found from then on, and still there once when the drive is back.
func TestWhatCannotBeReadIsPutAgain(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, o := openRig(t, func(o *Options) {
		quick(o)
		o.DeviceCount, o.CacheBytes, o.taskEvery = 3, -1, hangs
	})
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	kept := openSpace(t, s, "durable", skep.Durable, 1, true)
	keys := chainKeys(1, 30)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	requireOutcome(t, skep.Committed, putRun(t, s, kept, keys, faultBlock))
	r.faults[1].MustInject(device.GoneRule())
	page := device.AlignedBuffer(layout.PageSize)
	eventually(t, "the drive is noticed", func() bool {
		_ = device.ReadAt(ctx, s.members.Opened[1].Dev, page, 0)
		return s.members.Opened[1].Standing.Unreadable()
	})
	found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys})
	require.NoError(t, err)
	require.Less(t, found.Blocks, len(keys))
	want, err := s.Want(ctx, &skep.WantRequest{Scope: sc, Keys: keys})
	require.NoError(t, err)
	require.True(t, want[found.Blocks].Wanted)
	res := putRun(t, s, sc, keys, faultBlock)
	require.Equal(t, skep.Committed, res[found.Blocks].Outcome)
	requireChain(t, s, sc, keys, faultBlock)
	requireOutcome(t, skep.Exists, putRun(t, s, kept, keys, faultBlock)) // the drive may come back

	r.faults[1].Clear()
	eventually(t, "the drive is back", func() bool { return s.members.Opened[1].Condition() == health.Healthy })
	requireChain(t, s, sc, keys, faultBlock)
	requireChain(t, s, kept, keys, faultBlock)
	require.Equal(t, 2*len(keys), countBlocks(t, s))
	require.NoError(t, s.Close())
	s, err = Open(ctx, o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, faultBlock)
	require.Equal(t, 2*len(keys), countBlocks(t, s))
	require.NoError(t, s.Close())
}
