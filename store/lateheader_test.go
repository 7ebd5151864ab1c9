package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// lateHeaders has a write that is held answer after a time, and nothing that is not held.
func lateHeaders(o *Options) {
	unjudged(o)
	o.OpTimeout = 2 * time.Second
}

// requireHeaders requires that every drive has the header that it was given for each group last.
func requireHeaders(t *testing.T, s *Store, groups ...*space.Group) {
	t.Helper()
	page := device.AlignedBuffer(layout.PageSize)
	for _, g := range groups {
		for i, d := range g.Drives {
			want := s.space.HeaderOf(g, i)
			require.NoError(t, device.ReadAt(testContext(t), d.Dev, page, d.SegmentOffset(g.Segments[i])))
			require.Empty(t, problemOfHeader(page, &want), "group %d, drive %d", g.Num, i)
		}
	}
}

// isFree says whether a drive's segment is among those that a group may be opened on.
func isFree(s *Store, d *space.Drive, seg uint32) bool {
	s.space.Inside().Lock()
	defer s.space.Inside().Unlock()
	for _, n := range d.Free {
		if n == seg {
			return true
		}
	}
	return false
}

// One drive takes the mark that a group is free, another is late with it. The group is free, and its segment on the
// drive that is late is nobody's before the mark has landed: it would land on the header of the next group.
func TestALateMarkDoesNotLandOnTheNextGroup(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s, r, o := openRig(t, lateHeaders)
	g := cleanOne(t, s, func(g *space.Group) {
		r.faults[0].MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: headerWrites(g), Times: 1})
	})
	require.NoError(t, r.faults[0].WaitHeld(ctx, 1))
	eventually(t, "the other drive is told, and has its segment back", func() bool { return isFree(s, g.Drives[1], g.Segments[1]) })

	next := takeAll(t, s)
	require.NotEmpty(t, next)
	letGo(t, r)
	requireHeaders(t, s, next...)
	eventually(t, "the segment is free once the mark has landed", func() bool { return isFree(s, g.Drives[0], g.Segments[0]) })
	require.NoError(t, s.Close())
	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

// A scrub writes a header again, and the drive is late with it. The group is cleaned: what the drive is told last is
// that it is free. The next open would find a group that the catalog has lost, and set a sound catalog aside.
func TestALateHeaderOfAScrubDoesNotUndoThatAGroupIsFree(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s, r, o := openRig(t, func(o *Options) {
		lateHeaders(o)
		o.DeviceCount = 1
	})
	g := cleanOne(t, s, func(g *space.Group) {
		harmDrive(t, g.Drives[0], g.Drives[0].SegmentOffset(g.Segments[0])+100, 1)
		r.faults[0].MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: headerWrites(g), Times: 1})
		gone, err := s.space.RewriteHeader(brief(t), g, 0)
		require.False(t, gone)
		requireKind(t, skep.Deadline, err)
		require.Equal(t, 1, r.faults[0].Held())
	})
	eventually(t, "it is known whether the drive can be told", func() bool { return !g.Telling.Load() })
	letGo(t, r)
	eventually(t, "the drive is told", func() bool { s.space.Kick(); return isFreed(g) })
	require.NoError(t, s.Close())
	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.Nil(t, s.space.Find(g.Num))
	require.NoError(t, s.Close())
}

// An open tells a drive what the last run did not get to, that a group is free, and the drive is late with it.
func TestALateMarkOfAnOpenDoesNotLandOnTheNextGroup(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s, r, crash := crashRig(t, lateHeaders)
	g := cleanOne(t, s, func(g *space.Group) {
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

// Who writes a header waits for the write of it before to come back, no longer than its context. So two are never on
// their way to one page, where the drive would choose which is the last.
func TestHeadersOfASegmentAreWrittenOneAfterTheOther(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, unjudged)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 6), faultBlock))
	g := s.space.Groups()[0]
	d, h := g.Drives[0], s.space.HeaderOf(g, 0)
	r.faults[0].MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: headerWrites(g), Times: 1})
	requireKind(t, skep.Deadline, s.space.WriteHeader(brief(t), d, &h))
	other := h
	other.Flags |= segment.HeaderFreed
	requireKind(t, skep.Deadline, s.space.WriteHeader(brief(t), d, &other))
	page := device.AlignedBuffer(layout.PageSize)
	require.NoError(t, device.ReadAt(ctx, d.Dev, page, d.SegmentOffset(h.Segment)))
	require.Empty(t, problemOfHeader(page, &h), "the second waits for the first")

	ended := make(chan error, 1)
	waits, cancel := context.WithTimeout(ctx, hangs)
	defer cancel()
	go func() { ended <- s.space.WriteHeader(waits, d, &other) }()
	letGo(t, r)
	require.NoError(t, <-ended)
	require.NoError(t, device.ReadAt(ctx, d.Dev, page, d.SegmentOffset(h.Segment)))
	require.NotEmpty(t, problemOfHeader(page, &h), "and is the last")
	require.NoError(t, s.space.WriteHeader(ctx, d, &h))
	require.NoError(t, s.Close())
}
