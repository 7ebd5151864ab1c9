package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// lateHeaders has a write that is held answer after a time, and nothing that is not held.
func lateHeaders(o *Options) {
	unjudged(o)
	o.OpTimeout = 2 * time.Second
}

// requireHeaders requires that every drive has the header that it was given for each group last.
func requireHeaders(t *testing.T, s *Store, groups ...*group) {
	t.Helper()
	page := device.AlignedBuffer(layout.PageSize)
	for _, g := range groups {
		for i, d := range g.drives {
			want := s.headerOf(g, i)
			require.NoError(t, device.ReadAt(testContext(t), d.dev, page, d.segmentOffset(g.segments[i])))
			require.Empty(t, problemOfHeader(page, &want), "group %d, drive %d", g.num, i)
		}
	}
}

// isFree says whether a drive's segment is among those that a group may be opened on.
func isFree(s *Store, d *drive, seg uint32) bool {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	for _, n := range d.free {
		if n == seg {
			return true
		}
	}
	return false
}

// One drive takes the mark that a group is free, another is late with it. The group is free, and its segment on the drive
// that is late is nobody's before the mark has landed: it would land on the header of the next group.
func TestALateMarkDoesNotLandOnTheNextGroup(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s, r, o := openRig(t, lateHeaders)
	g := cleanOne(t, s, func(g *group) {
		r.faults[0].MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: headerWrites(g), Times: 1})
	})
	require.NoError(t, r.faults[0].WaitHeld(ctx, 1))
	eventually(t, "the other drive is told, and has its segment back", func() bool { return isFree(s, g.drives[1], g.segments[1]) })

	next := takeAll(t, s)
	require.NotEmpty(t, next)
	letGo(t, r)
	requireHeaders(t, s, next...)
	eventually(t, "the segment is free once the mark has landed", func() bool { return isFree(s, g.drives[0], g.segments[0]) })
	require.NoError(t, s.Close())
	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

// A scrub writes a header again, and the drive is late with it. The group is cleaned: what the drive is told last is that it is
// free. The next open would find a group that the catalog has lost, and set a sound catalog aside.
func TestALateHeaderOfAScrubDoesNotUndoThatAGroupIsFree(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s, r, o := openRig(t, func(o *Options) {
		lateHeaders(o)
		o.DeviceCount = 1
	})
	g := cleanOne(t, s, func(g *group) {
		harmDrive(t, g.drives[0], g.drives[0].segmentOffset(g.segments[0])+100, 1)
		r.faults[0].MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: headerWrites(g), Times: 1})
		gone, err := s.rewriteHeader(brief(t), g, 0)
		require.False(t, gone)
		requireKind(t, skep.Deadline, err)
		require.Equal(t, 1, r.faults[0].Held())
	})
	eventually(t, "it is known whether the drive can be told", func() bool { return !g.telling.Load() })
	letGo(t, r)
	eventually(t, "the drive is told", func() bool { s.cleaner.kick(); return g.isFreed() })
	require.NoError(t, s.Close())
	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.Nil(t, s.space.find(g.num))
	require.NoError(t, s.Close())
}

// An open tells a drive what the last run did not get to, that a group is free, and the drive is late with it.
func TestALateMarkOfAnOpenDoesNotLandOnTheNextGroup(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s, r, crash := crashRig(t, lateHeaders)
	g := cleanOne(t, s, func(g *group) {
		r.each(func(_ int, d *device.Fault) {
			d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Writes, Match: headerWrites(g)})
		})
	})
	require.NoError(t, s.Flush(ctx))
	o := crash("not told")
	r.each(func(_ int, d *device.Fault) { d.Clear() })
	require.NoError(t, s.Close())

	late := holdOnOpen(&o, headerWrites(g))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.Positive(t, late.faults[0].Held())
	next := takeAll(t, s)
	require.NotEmpty(t, next)
	letGo(t, late)
	requireHeaders(t, s, next...)
	require.NoError(t, s.Close())
}

// holdOnOpen has the next open hold the first write on each drive that match says.
func holdOnOpen(o *Options, match func(*device.Op) bool) *rig {
	r, open := &rig{}, o.OpenDevice
	o.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
		dev, err := open(i, path, create, size)
		if err != nil {
			return nil, err
		}
		f := device.NewFault(dev, 1)
		f.SetCloseTimeout(time.Second)
		f.MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: match, Times: 1})
		r.mu.Lock()
		defer r.mu.Unlock()
		for len(r.faults) <= i {
			r.faults = append(r.faults, nil)
		}
		r.faults[i] = f
		return f, nil
	}
	return r
}

// Who writes a header waits for the write of it before to come back, no longer than its context. So two are never on their way
// to one page, where the drive would choose which is the last.
func TestHeadersOfASegmentAreWrittenOneAfterTheOther(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, unjudged)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 6), faultBlock))
	g := s.groupList()[0]
	d, h := g.drives[0], s.headerOf(g, 0)
	r.faults[0].MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: headerWrites(g), Times: 1})
	requireKind(t, skep.Deadline, s.writeHeader(brief(t), d, &h))
	other := h
	other.Flags |= segment.HeaderFreed
	requireKind(t, skep.Deadline, s.writeHeader(brief(t), d, &other))
	page := device.AlignedBuffer(layout.PageSize)
	require.NoError(t, device.ReadAt(ctx, d.dev, page, d.segmentOffset(h.Segment)))
	require.Empty(t, problemOfHeader(page, &h), "the second waits for the first")

	ended := make(chan error, 1)
	waits, cancel := context.WithTimeout(ctx, hangs)
	defer cancel()
	go func() { ended <- s.writeHeader(waits, d, &other) }()
	letGo(t, r)
	require.NoError(t, <-ended)
	require.NoError(t, device.ReadAt(ctx, d.dev, page, d.segmentOffset(h.Segment)))
	require.NotEmpty(t, problemOfHeader(page, &h), "and is the last")
	require.NoError(t, s.writeHeader(ctx, d, &h))
	require.NoError(t, s.Close())
}
