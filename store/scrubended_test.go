package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/space"
)

// A scrub that is cancelled has nothing to say of what it was about to read, of no drive either.
func TestACancelledScrubBlamesNoDrive(t *testing.T) {
	t.Parallel()
	for _, held := range []string{"superblocks", "logs", "blocks"} {
		t.Run(held, func(t *testing.T) {
			t.Parallel()
			s, r, _ := openRig(t, func(o *Options) { unjudged(o); o.DeviceCount, o.OpTimeout = 1, hangs })
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 16), 4<<10))
			g := openedBy(s, space.User)
			s.space.Seal(g)
			from := s.members.Opened[0].SegmentOffset(g.Segments[0])
			rule := device.Rule{Action: device.Hold, Kinds: device.Reads, From: from + layout.PageSize,
				Match: func(op *device.Op) bool { return len(op.Bufs) == 1 && len(op.Bufs[0]) == layout.PageSize }}
			n := 8
			switch held {
			case "superblocks":
				rule, n = device.Rule{Action: device.Hold, Kinds: device.Reads}, 1
			case "logs":
				rule.Match, n = func(op *device.Op) bool { return len(op.Bufs[0]) > layout.PageSize }, 1
			}
			r.faults[0].MustInject(rule)
			ctx, cancel := context.WithCancel(testContext(t))
			var rep ScrubReport
			var err error
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				rep, err = s.Scrub(ctx, ScrubOptions{Rate: 1 << 40})
			}()
			require.NoError(t, r.faults[0].WaitHeld(testContext(t), n))
			cancel()
			<-ended
			r.faults[0].Release()
			requireKind(t, skep.Deadline, err)
			require.True(t, rep.Sound(), "%+v", rep)
			require.Zero(t, rep.Groups)
			require.Zero(t, rep.Blocks)
		})
	}
}

// What a scrub was about to write when it was cancelled is told as not mended, and no drive is blamed.
func TestAScrubThatIsCancelledWhileItWritesBlamesNoDrive(t *testing.T) {
	t.Parallel()
	for _, held := range []string{"superblock", "header"} {
		t.Run(held, func(t *testing.T) {
			t.Parallel()
			s, r, _ := openRig(t, func(o *Options) { unjudged(o); o.DeviceCount, o.OpTimeout = 1, hangs })
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 4), 4<<10))
			g, at := openedBy(s, space.User), int64(200)
			s.space.Seal(g)
			if held == "header" {
				at += s.members.Opened[0].SegmentOffset(g.Segments[0])
			}
			harmDrive(t, s.members.Opened[0], at, 1)
			page := at &^ (layout.PageSize - 1)
			r.faults[0].MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes,
				From: page, To: page + layout.PageSize})
			ctx, cancel := context.WithCancel(testContext(t))
			var rep ScrubReport
			var err error
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				rep, err = s.Scrub(ctx, ScrubOptions{Rate: 1 << 40})
			}()
			require.NoError(t, r.faults[0].WaitHeld(testContext(t), 1))
			cancel()
			<-ended
			r.faults[0].Release()
			requireKind(t, skep.Deadline, err)
			require.Len(t, rep.Faults, 1, "%+v", rep)
			require.EqualValues(t, 1, rep.Unmended)
			require.Contains(t, rep.Faults[0].Do, "scrub again")
			require.Equal(t, health.Healthy, s.members.Opened[0].Condition())
		})
	}
}

// A scrub does not read what is left of the store as fast as it can while Close runs, which ends its waits: it ends.
func TestAScrubEndsWhenTheStoreCloses(t *testing.T) {
	t.Parallel()
	const blocks = 64
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) { unjudged(o); o.OpTimeout = hangs })
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, blocks), 4<<10))
	r.faults[0].Hold(device.Read)
	var rep ScrubReport
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		rep, err = s.Scrub(ctx, ScrubOptions{Rate: 1})
	}()
	require.NoError(t, r.faults[0].WaitHeld(ctx, 1))
	r.faults[1].Hold(device.Flush) // Close does not get to where it ends what is left
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-s.closing
	r.faults[0].Release()
	<-ended
	r.faults[1].Release()
	require.NoError(t, <-closed)
	requireKind(t, skep.Deadline, err)
	require.Less(t, rep.Blocks, int64(blocks))
	require.True(t, rep.Sound(), "%+v", rep)
}
