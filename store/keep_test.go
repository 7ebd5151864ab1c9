package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/admin"
)

// A drain is taken back: it ends, so does a removal, nothing is lost, and the device is used again, after the next
// open too.
func TestADrainIsTakenBack(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	for what, take := range map[string]func(s *Store, o MoveOptions) error{
		"drain":  func(s *Store, o MoveOptions) error { _, err := s.DrainDevice(ctx, "0", o); return err },
		"remove": func(s *Store, o MoveOptions) error { _, err := s.RemoveDevice(ctx, "0", o); return err },
	} {
		o := small(tempRoot(t, "store"))
		o.Admin = true
		s, err := Open(ctx, o)
		require.NoError(t, err)
		sc := openSpace(t, s, "n", skep.Durable, 1, true)
		for i := range 20 {
			requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(i, 12), faultBlock))
		}
		once := false
		err = take(s, MoveOptions{Progress: func(Progress) {
			if !once { // while groups are left
				once = true
				_, err := AskDevice(ctx, o.Dir, DeviceRequest{Action: "keep", Device: "0"})
				assert.NoError(t, err)
			}
		}})
		require.True(t, once)
		require.ErrorIs(t, err, skep.Conflict, what)
		require.NoError(t, s.KeepDevice(ctx, "0"), "the second time it is done already")
		require.ErrorIs(t, s.KeepDevice(ctx, "9"), skep.NotFound)
		used := func() {
			d := s.members.Opened[0]
			require.False(t, d.Retired.Load())
			s.space.Inside().Lock()
			failed := d.Failed
			s.space.Inside().Unlock()
			require.NoError(t, failed)
			for i := range 20 {
				requireChain(t, s, sc, chainKeys(i, 12), faultBlock)
			}
			for i := 100; len(s.space.GroupsOf(d)) == 0; i++ {
				requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(i, 12), faultBlock))
				require.Less(t, i, 200, "puts come to the device again")
			}
		}
		used()
		rows, err := s.catalog.Devices(ctx)
		require.NoError(t, err)
		require.Equal(t, catalog.DeviceInUse, rows[0].State)
		require.NoError(t, s.Close())
		s, err = Open(ctx, o)
		require.NoError(t, err)
		used()
		require.NoError(t, s.Close())
	}
}

// Another process has an open store scrub and compact itself.
func TestAnOpenStoreIsScrubbedAndCompacted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.Admin = true
	s := openTest(t, o)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 12), faultBlock))
	r, err := AskScrub(ctx, o.Dir, WorkRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 12, r.Blocks)
	require.True(t, r.Sound())
	c, err := AskCompact(ctx, o.Dir, WorkRequest{DryRun: true})
	require.NoError(t, err)
	require.True(t, c.DryRun)
	var out WorkAnswer[ScrubReport]
	require.NoError(t, admin.Ask(ctx, o.Dir, "scrub no", &out))
	require.Equal(t, skep.Invalid, out.Kind)
}
