package moving

import (
	"time"

	"github.com/skepkv/skep/store/internal/compact"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/space"
)

// job is why a group is moved.
type job struct {
	task  string
	drive *space.Drive // that is lost, or to be emptied
	force bool
	work  *observe.Work // where it is told how far it is; nil: nowhere
}

func (j job) device() int {
	if j.drive == nil {
		return -1
	}
	return int(j.drive.Index)
}

// next chooses what to do.
func (m *Mover) next() (job, *space.Group) {
	m.stuck.forget(time.Now())
	groups := m.Space.Groups()
	free := func(g *space.Group) bool { return m.ready(g) }
	for _, d := range m.Members.All() {
		if d.Removed.Load() || !d.Standing.Lost() {
			continue
		}
		for _, g := range groups {
			if g.Has(d) && !g.Healed.Load() && free(g) {
				return job{task: taskHeal, drive: d}, g
			}
		}
	}
	for _, d := range m.Members.All() {
		if d.Removed.Load() || !d.Retired.Load() || m.isAsked(d) {
			continue
		}
		for _, g := range groups {
			if g.Has(d) && free(g) {
				return job{task: taskDrain, drive: d}, g
			}
		}
	}
	if !m.NoRebalance {
		if g := m.Space.Unbalanced(groups, free); g != nil {
			return job{task: taskRebalance}, g
		}
	}
	for _, c := range compact.Unasked.Choose(m.Space.Costs(groups)) {
		if g := m.Space.Find(c.Num); g != nil && free(g) {
			return job{task: taskCompact}, g
		}
	}
	return job{}, nil
}

// ready says whether a group can be moved now.
func (m *Mover) ready(g *space.Group) bool {
	return !m.stuck.has(g.ID(), time.Now()) && m.Space.IsIdle(g)
}
