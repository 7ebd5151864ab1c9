package moving

import (
	"context"
	"time"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/compact"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/report"
)

// compactSet is how much of what lives is put in order together.
const (
	compactSetBytes  = 256 << 20
	compactSetGroups = 64
)

// Compact rewrites groups that have holes or whose chains lie scattered: what lives in
// them is written again in the order of its chains, and they are freed. Nothing is
// dropped. Deletes, restores and puts go on meanwhile.
func (m *Mover) Compact(ctx context.Context, o report.MoveOptions) (r report.Compact, err error) {
	if err := m.enter(ctx, "compact", o); err != nil {
		return r, err
	}
	defer m.Gate.Leave()
	ctx, cancel := gate.Until(ctx, m.Closing)
	defer cancel()
	if err := m.Take(ctx); err != nil {
		return r, err
	}
	defer m.Give()
	began := time.Now()
	r.Task, r.Device, r.DryRun = taskCompact, -1, o.DryRun
	r.FreeBefore = m.Space.Free()
	if !o.DryRun {
		m.Space.SealOpen(space.Moved)
	}
	costs, err := m.scanCosts(ctx)
	if err != nil {
		return r, err
	}
	chosen := compact.Asked.Choose(costs)
	if o.All {
		chosen = costs
	}
	var bytes, live, capacity int64
	var links, breaks int
	for _, c := range chosen {
		bytes, live, capacity = bytes+c.Bytes, live+c.Live, capacity+c.Capacity
		links, breaks = links+c.Links, breaks+c.Breaks
	}
	if capacity > 0 {
		r.LiveShare = float64(live) / float64(capacity)
	}
	if links > 0 {
		r.Disorder = float64(breaks) / float64(links)
	}
	r.Groups = len(chosen)
	if o.DryRun {
		r.Bytes = bytes
		r.FreeAfter, r.DisorderLeft = r.FreeBefore, compact.Disorder(costs)
		r.Seconds = time.Since(began).Seconds()
		return r, nil
	}
	m.Cleaner.Loan.Store(1)
	defer m.Cleaner.Loan.Store(0)
	b := m.Space.Pace(o.Rate)
	w := m.Works.Begin(taskCompact, bytes)
	defer w.End()
	for len(chosen) > 0 && err == nil {
		n := m.setSize(chosen)
		err = m.compactSet(ctx, chosen[:n], b, &r, o, w)
		chosen = chosen[n:]
	}
	m.Space.SealOpen(space.Moved)
	if err == errNoRoom {
		r.OutOfRoom, err = true, nil
	}
	r.FreeAfter = m.Space.Free()
	r.Seconds = time.Since(began).Seconds()
	m.note(r.Progress)
	if err == nil {
		if costs, err = m.scanCosts(ctx); err == nil {
			r.DisorderLeft = compact.Disorder(costs)
		}
	}
	return r, err
}

// setSize is how many of the chosen groups are put in order together: as many as the free
// groups can take what lives in them, at least one.
func (m *Mover) setSize(chosen []compact.Group) int {
	room := max(1, m.Space.Free()-m.Space.KeptFree)
	var live int64
	n := 0
	for n < len(chosen) && n < compactSetGroups {
		live += chosen[n].Live
		if n > 0 && (live*layout.PageSize > compactSetBytes || live > int64(room)*chosen[n].Capacity) {
			break
		}
		n++
	}
	return n
}

func (m *Mover) compactSet(ctx context.Context, set []compact.Group, b *limits.Pace, r *report.Compact, o report.MoveOptions, w *observe.Work) error {
	var list []*appender.Block
	var groups []*space.Group
	var releases []func()
	defer func() {
		for _, f := range releases {
			f()
		}
	}()
	for _, c := range set {
		g := m.Space.Find(c.Num)
		if g == nil {
			continue
		}
		blocks, release, err := m.gather(ctx, g)
		if err == space.ErrBusy {
			continue
		}
		if err != nil {
			return err
		}
		releases = append(releases, release)
		groups = append(groups, g)
		list = append(list, blocks...)
		if len(blocks) > 0 {
			if err := m.markMoving(ctx, g); err != nil {
				return err
			}
		}
	}
	err := m.moveList(ctx, inChainOrder(list), job{task: taskCompact, work: w}, b, &r.Progress)
	for _, f := range releases {
		f()
	}
	releases = nil
	before := m.Count.MovedBytes.Load()
	for _, g := range groups {
		r.GroupsDone++
		n, e := m.left(ctx, g)
		if e != nil || n > 0 && err != errNoRoom {
			continue // blocks that cannot be read, or puts that came back
		}
		// Without room to put them in order, the cleaner still has some for what is left.
		if m.Cleaner.Clean(ctx, g, true) == nil {
			r.GroupsFreed++
			if err == errNoRoom {
				err = nil
			}
		}
	}
	r.Bytes += m.Count.MovedBytes.Load() - before
	if o.Progress != nil {
		o.Progress(r.Progress)
	}
	return err
}

// scanCosts are the sealed groups with the order of their chains.
func (m *Mover) scanCosts(ctx context.Context) ([]compact.Group, error) {
	groups := m.Space.Groups()
	costs := m.Space.Costs(groups)
	byNum := map[uint32]*compact.Group{}
	for i := range costs {
		byNum[costs[i].Num] = &costs[i]
	}
	for _, g := range groups {
		c := byNum[g.Num]
		if c == nil {
			continue
		}
		list, release, err := m.gather(ctx, g)
		if err == space.ErrBusy {
			continue
		}
		if err != nil {
			return nil, err
		}
		release()
		items := make([]compact.Item, len(list))
		for i, in := range list {
			items[i] = compact.Item{FP: in.FP, Parent: in.Parent, HasParent: in.HasParent}
		}
		c.Links, c.Breaks = compact.CountBreaks(items, 2*len(g.Drives))
	}
	return costs, nil
}
