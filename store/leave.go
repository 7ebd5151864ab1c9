package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/space"
)

// How a drive leaves the store: its last groups are gone from memory before their headers are marked as freed, which happens
// behind everybody's back, and readers hold on to groups that are gone. A drive that is out of the store is written to no
// more, as somebody may have another use for it, and once nobody reads it either it is closed: an open file keeps its room,
// an open block device its lock.

// leaveStep is how often a drive that is to leave is looked at again, leaveRest how seldom if nobody waits.
const leaveStep, leaveRest = 2 * time.Millisecond, time.Second

// leavingLocked says whether groups of d are gone and not yet given back: all of them, or those with headers to be written.
// REQUIRES: space.mu.
func (c *cleaner) leavingLocked(d *drive, all bool) bool {
	return slices.ContainsFunc(c.drain, func(g *group) bool {
		return g.has(d) && (all || g.life.State() != space.Freed)
	})
}

// awaitLeft waits until nothing is to be written to a drive without groups any more. One that is out of order is not
// waited for: it is not wiped either. Writes that groups were let go of without may never come back, and keep nobody from
// removing the drive; with force, headers do not either.
func (c *cleaner) awaitLeft(ctx context.Context, op string, d *drive, force bool) error {
	s := c.s
	within, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
	defer cancel()
	c.kick()
	for {
		s.space.mu.Lock()
		late, heads := len(d.late), len(d.heads)
		leaving := c.leavingLocked(d, false)
		s.space.mu.Unlock()
		if late+heads == 0 && !leaving || d.condition() >= health.Fenced {
			return nil
		}
		select {
		case <-time.After(leaveStep):
			continue
		case <-within.Done():
		}
		if ctx.Err() == nil && (force || heads == 0 && !leaving) {
			s.log.Warn("removed device has writes under way, which may land on it later", "device", d.path, "segments",
				late+heads)
			return nil
		}
		return &skep.Error{Op: op, Kind: skep.Deadline, Field: "segments being freed on " + d.path,
			Value: max(1, heads), Err: within.Err(),
			Limit: "none within " + s.options.OpTimeout.String() + ": it is emptied, and stays so; remove it once more, or with force"}
	}
}

// letGo closes a drive that was removed once nobody has anything of it. From then on it is as one that is not there.
// What is not idle when the store closes is closed with it.
func (c *cleaner) letGo(d *drive) {
	s := c.s
	for step := leaveStep; ; step = min(2*step, leaveRest) {
		s.space.mu.Lock()
		busy := len(d.heads)+len(d.late) > 0 || c.leavingLocked(d, true)
		s.space.mu.Unlock()
		if !busy && d.dev.Stats().InFlight == 0 {
			break
		}
		select {
		case <-time.After(step):
		case <-s.closing:
			return
		}
	}
	s.exclude(d, health.Dead, errRemoved)
	// The device itself refuses what comes now, and waits for what came a moment ago.
	if err := d.dev.Close(); err != nil && !errors.Is(err, device.ErrClosed) {
		s.log.Warn("removed device not closed", "device", d.path, "error", err)
	}
}
