package store

import (
	"errors"
	"syscall"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/monitor"
	"github.com/skepkv/skep/store/internal/restore"
)

// condition is what was last found of a drive; healthy before anybody has looked.
func (d *drive) condition() health.State { return d.standing.State() }

// note takes a completion of a write into account.
func (d *drive) note(o *device.Op) {
	switch {
	case o.Kind != device.Write || errors.Is(o.Err, syscall.ENOSPC) || device.BadMemory(o.Err): // a full file system is no failing drive, nor is bad memory
	case d.standing.Writes.Note(o.Err != nil) && d.fence != nil: // without waiting for the monitor
		d.fence(o.Err)
	}
}

// fence keeps a drive that failed a write out of new groups until probes have shown that
// it can be written again. Reads of what it holds go on.
func (s *Store) fence(d *drive, err error) {
	if errors.Is(err, syscall.ENOSPC) {
		return
	}
	d.standing.Force(err)
	s.exclude(d, health.Fenced, err)
}

// exclude takes a drive out of what is written: open groups it is in are sealed, and new
// ones do without it. Where it is dead nobody waits for it any longer.
func (s *Store) exclude(d *drive, c health.State, err error) {
	sp := &s.space
	sp.mu.Lock()
	first := d.failed == nil
	d.failed = err
	if c > d.condition() {
		d.standing.Set(c)
	}
	for _, g := range sp.mu.open {
		if g != nil && g.has(d) {
			s.sealLocked(g)
		}
	}
	if c == health.Dead {
		select {
		case <-d.down:
		default:
			close(d.down)
		}
		for g := range sp.mu.groups.Each() {
			if g.pending > 0 && g.has(d) {
				g.loseLocked()
			}
		}
		for _, g := range sp.mu.making { // who opens one keeps others from opening any
			if g.has(d) {
				g.loseLocked()
			}
		}
	}
	sp.mu.Unlock()
	if first && err != errDraining {
		s.log.Error("drive fenced: it takes no new blocks until it is well again", "drive", d.path, "serial", d.serial, "condition", c.String(), "error", err)
	}
	s.cleaner.kick()
}

// include lets a drive back in.
func (s *Store) include(d *drive, c health.State) {
	s.space.mu.Lock()
	was := d.failed
	d.failed = nil
	if d.retired.Load() {
		d.failed = errDraining
	}
	d.standing.Set(c)
	d.standing.Writes.Forget()
	select {
	case <-d.down:
		d.down = make(chan struct{})
	default:
	}
	s.space.mu.Unlock()
	if was != nil {
		s.log.Info("drive let back in", "drive", d.path, "serial", d.serial)
	}
}

func (g *group) has(d *drive) bool {
	for _, of := range g.drives {
		if of == d {
			return true
		}
	}
	return false
}

// loseLocked ends all waiting for the group's writes. REQUIRES: space.mu.
func (g *group) loseLocked() {
	select {
	case <-g.lost:
	default:
		close(g.lost)
	}
}

// newMonitor watches the drives from here on.
func (s *Store) newMonitor(rules health.Rules) *monitor.Monitor {
	return monitor.New(monitor.Config{Host: monitored{s}, Rules: rules, ReadOnly: s.options.ReadOnly, Context: s.ctx,
		Closing: s.closing, Background: &s.background, Log: s.log})
}

// watchDrive has a drive that fails fenced without waiting for the monitor.
func (s *Store) watchDrive(d *drive) {
	d.fence = func(err error) { s.fence(d, err) }
	d.flush.OnFailure(d.fence)
}

// monitored is the store as its drives' monitor sees it: monitor.Host.
type monitored struct{ s *Store }

func (h monitored) Drives(from int) (list []monitor.Drive) {
	for _, d := range h.s.allDrives()[from:] {
		list = append(list, monitor.Drive{Dev: d.dev, Flush: &d.flush, Standing: &d.standing, Index: int(d.index),
			Path: d.path, Serial: d.serial,
			File: !h.s.options.customDevices && !d.dev.Info().Raw, Removed: d.removed.Load})
	}
	return list
}

func (h monitored) Exclude(i int, is health.State, why error) {
	h.s.exclude(h.s.allDrives()[i], is, why)
}

func (h monitored) Include(i int, is health.State) { h.s.include(h.s.allDrives()[i], is) }

func (h monitored) Changed(i int, is health.State) {
	ev := skep.Event{Kind: skep.EventDevice, Depth: i}
	if is != health.Healthy {
		ev.Reason = skep.DeviceFailed
	}
	h.s.events.Emit(ev)
}

func (h monitored) Hedge(i int, after time.Duration, is health.State) {
	restore.Hedge(h.s.allDrives()[i], after, is)
}

func (h monitored) Lost(i int, lost bool) {
	if lost {
		h.s.tasks.kick()
	} else {
		h.s.forgetHealing(h.s.allDrives()[i])
	}
}

// forgetHealing is called when a drive that was lost is back: should it be lost again,
// its groups are to be looked at again.
func (s *Store) forgetHealing(d *drive) {
	for _, g := range s.groupList() {
		if g.has(d) {
			g.healed.Store(false)
		}
	}
}
