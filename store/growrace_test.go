package store

import (
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/space"
)

// Several groups are made at once on drives that may grow, as far as anybody knows, and cannot: their file system is
// full. What they have allotted for the cleaner stays its own.
func TestGroupsMadeAtOnceLeaveTheCleanersReserve(t *testing.T) {
	t.Parallel()
	s, h := openUncapped(t, 40<<20, well)
	defer func() { require.NoError(t, s.Close()) }()
	ctx := testContext(t)
	kept := s.space.KeptFree
	free := func() (least int) {
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		least = space.Unlimited
		for _, d := range s.members.Opened {
			least = min(least, len(d.Free))
		}
		return least
	}
	for free() > kept+1 {
		_, err := s.space.NewGroup(ctx, kept)
		require.NoError(t, err)
	}
	h.total.Store(0)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := s.space.NewGroup(ctx, kept); err != nil {
				assert.Equal(t, space.ErrFull, err)
			}
		})
	}
	all.Wait()
	require.Equal(t, kept, free())
}

// A drive grows, and the flush of that fails since its file system is full, or never ends. The drive is fenced: no
// group takes what it has allotted for the cleaner.
func TestADriveThatDidNotGrowForGood(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]device.Rule{
		"full":  {Action: device.Fail, Kinds: device.Flushes, Err: syscall.ENOSPC},
		"hangs": {Action: device.Hold, Kinds: device.Flushes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s, h := openUncapped(t, 400<<20, func(o *Options) {
				unjudged(o)
				o.rules.ProbeEvery = hangs // what is fenced stays so
				if o.FlushInterval = hangs; name == "hangs" {
					o.OpTimeout = hangs / 90
				}
			})
			defer func() { require.NoError(t, s.Close()) }()
			kept, d := s.space.KeptFree, s.members.Opened[0]
			of := func() (free, segments int) {
				s.space.Inside().Lock()
				defer s.space.Inside().Unlock()
				return len(d.Free), d.Segments
			}
			for free, _ := of(); free > kept; free, _ = of() {
				_, err := s.space.NewGroup(ctx, kept)
				require.NoError(t, err)
			}
			_, before := of()
			size := d.Dev.Size()
			h.r.faults[0].MustInject(rule)
			_, err := s.space.NewGroup(ctx, kept)
			h.r.faults[0].Clear()
			h.r.faults[0].Release()
			free, segments := of()
			require.Greater(t, d.Dev.Size(), size, "it has grown")
			require.Equal(t, []int{kept, before}, []int{free, segments})
			require.NoError(t, err, "the other drive has room")
			require.Equal(t, health.Fenced, d.Condition())
			eventually(t, "the monitor knows it", func() bool { return d.Standing.Why() != "" })
			s.space.Include(d, health.Healthy)
			h.total.Store(d.Dev.Size() + s.members.Opened[1].Dev.Size() + 1<<20 + 1) // room for no more than it has
			_, err = s.space.NewGroup(ctx, kept)
			require.NoError(t, err)
			_, segments = of()
			require.Greater(t, segments, before, "what it has grown by is its own now")
		})
	}
}
