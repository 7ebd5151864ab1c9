package store

import (
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/monitor"
	"github.com/skepkv/skep/store/internal/restore"
)

// newMonitor watches the drives from here on.
func (s *Store) newMonitor(rules health.Rules) *monitor.Monitor {
	return monitor.New(monitor.Config{Host: monitored{s}, Rules: rules, ReadOnly: s.options.ReadOnly, Context: s.ctx,
		Closing: s.closing, Background: &s.background, Log: s.log})
}

// monitored is the store as its drives' monitor sees it: monitor.Host.
type monitored struct{ s *Store }

func (h monitored) Drives(from int) (list []monitor.Drive) {
	for _, d := range h.s.members.All()[from:] {
		list = append(list, monitor.Drive{Dev: d.Dev, Flush: &d.Flush, Standing: &d.Standing, Index: int(d.Index),
			Path: d.Path, Serial: d.Serial,
			File: !h.s.options.customDevices && !d.Dev.Info().Raw, Removed: d.Removed.Load})
	}
	return list
}

func (h monitored) Exclude(i int, is health.State, why error) {
	h.s.space.Exclude(h.s.members.All()[i], is, why)
}

func (h monitored) Include(i int, is health.State) { h.s.space.Include(h.s.members.All()[i], is) }

func (h monitored) Changed(i int, is health.State) {
	ev := skep.Event{Kind: skep.EventDevice, Depth: i}
	if is != health.Healthy {
		ev.Reason = skep.DeviceFailed
	}
	h.s.events.Emit(ev)
}

func (h monitored) Hedge(i int, after time.Duration, is health.State) {
	restore.Hedge(h.s.members.All()[i], after, is)
}

func (h monitored) Lost(i int, lost bool) {
	h.s.space.HealAgain(h.s.members.All()[i])
	if lost {
		h.s.moving.Kick()
	}
}
