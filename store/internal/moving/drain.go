package moving

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/clean"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/report"
)

// Drain moves everything off a device: nothing new goes there from now on, in later
// opens too, and what it holds is written again on the others. Cache blocks that cannot be
// read are forgotten; Durable ones stay where they are, and the error says how many.
func (m *Mover) Drain(ctx context.Context, name string, o report.MoveOptions) (report.Progress, error) {
	const op = "drain device"
	d, err := m.enterOf(ctx, op, name, o)
	if err != nil {
		return report.Progress{}, err
	}
	defer m.Gate.Leave()
	return m.drain(ctx, op, d, o)
}

func (m *Mover) drain(ctx context.Context, op string, d *space.Drive, o report.MoveOptions) (p report.Progress, err error) {
	p.Task, p.Device = taskDrain, int(d.Index)
	of := m.Space.GroupsOf(d)
	p.Groups = len(of)
	if o.DryRun {
		err = m.plan(ctx, op, of, o, &p)
		return p, errors.Join(err, m.mayDrain(op, d, o.Joining))
	}
	for _, g := range of {
		if st, ok := m.Index.Group(g.Num); ok {
			p.Found += int64(st.Blocks)
		}
	}
	ctx, cancel := gate.Until(ctx, m.Closing)
	defer cancel()
	defer gate.Typed(ctx, op, &err)
	before := m.Count.Evicted.Load()
	defer func() { p.Evicted = m.Count.Evicted.Load() - before }()
	defer m.ask(d)()
	if err := m.retireUnlessTooFew(ctx, op, d); err != nil {
		return p, err
	}
	if err := m.Take(ctx); err != nil {
		return p, err
	}
	defer m.Give()
	if err := m.Space.AwaitOpening(ctx, op); err != nil { // what was being opened with it is known now
		return p, err
	}
	began, b := time.Now(), m.Space.Pace(o.Rate)
	w := m.Works.Begin(taskDrain, m.Space.LiveBytes(of))
	defer w.End()
	var stuck error
	var kept int // durable blocks that cannot be read
	skip := map[*space.Group]bool{}
	for {
		if !d.Retired.Load() {
			return p, errKept(op, d)
		}
		g, busy := m.nextOf(d, skip)
		if g == nil {
			if !busy {
				break
			}
			m.Space.SealGroupsOf(d)
			if err := b.Sleep(ctx, sealedStep); err != nil {
				return p, &skep.Error{Op: op, Kind: skep.Deadline, Field: "groups left", Value: len(m.Space.GroupsOf(d)), Err: err}
			}
			continue
		}
		if err := m.moveGroup(ctx, g, job{taskDrain, d, o.Force, w}, b, &p); err != nil && err != space.ErrBusy {
			if ctx.Err() != nil {
				return p, &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
			}
			skip[g] = true
			if e := (*skep.Error)(nil); errors.As(err, &e) && e.Field == clean.Unread {
				kept += e.Value.(int)
			}
			stuck = err
		}
		p.GroupsDone++
		p.Seconds = time.Since(began).Seconds()
		if o.Progress != nil {
			o.Progress(p)
		}
	}
	m.note(p)
	if stuck == nil {
		return p, nil
	}
	if kept > 0 && skep.KindOf(stuck) == skep.DeviceFailed {
		return p, m.errKeeps(op, kept)
	}
	e := &skep.Error{Op: op, Kind: skep.KindOf(stuck), Field: "groups left", Value: len(m.Space.GroupsOf(d)), Err: stuck}
	if e.Kind == skep.Full {
		e.Limit = "0; the other devices have no room for what must be kept: delete something, give the store more capacity or add a device. What is left is moved as soon as there is room"
	}
	return p, e
}

// mayDrain refuses to leave fewer devices than a namespace has copies; so many will have joined.
func (m *Mover) mayDrain(op string, d *space.Drive, joining int) error {
	left := joining
	for _, o := range m.Members.All() {
		if o != d && !o.Retired.Load() && o.Condition() < health.Fenced {
			left++
		}
	}
	most := 1
	for ns := range m.Names.All() {
		most = max(most, ns.Info.Copies)
	}
	if left < most {
		return skep.Invalidf(op, "devices left in working order", left, fmt.Sprintf("at least %d: as many as a namespace has copies", most))
	}
	return nil
}

// retireUnlessTooFew retires a drive unless too few were left: one decision at a time, or two of the last two drives
// are both let in.
func (m *Mover) retireUnlessTooFew(ctx context.Context, op string, d *space.Drive) error {
	if err := m.Members.Take(ctx, op); err != nil {
		return err
	}
	defer m.Members.Give()
	if err := m.mayDrain(op, d, 0); err != nil {
		return err
	}
	return m.retire(ctx, d)
}

// retire takes a drive out of use, for good: the catalog knows. REQUIRES: the turn of the members.
func (m *Mover) retire(ctx context.Context, d *space.Drive) error {
	if d.Retired.Load() {
		return nil
	}
	row := m.Space.RowOf(d)
	row.State = catalog.DeviceDraining
	b := m.Catalog.NewBatch()
	b.PutDevice(&row)
	if err := m.Catalog.Commit(m.Context, b, true); err != nil { // what it says must be known here
		return err
	}
	d.Retired.Store(true)
	m.Space.Exclude(d, d.Condition(), space.ErrDraining)
	m.Space.Reroom()
	return nil
}

// sealedStep is how often a group is looked at again that was sealed to be moved.
const sealedStep = 10 * time.Millisecond

// nextOf is a group of d that can be moved now; busy says that there is one that may be
// soon.
func (m *Mover) nextOf(d *space.Drive, skip map[*space.Group]bool) (g *space.Group, busy bool) {
	for _, g := range m.Space.GroupsOf(d) {
		if skip[g] {
			continue
		}
		if m.Space.IsIdle(g) {
			return g, false
		}
		busy = true
	}
	return nil, busy
}

// Keep takes a drain back: the device is used again, in later opens too, and a drain or a removal of it that is
// under way ends with an error. What was moved off it comes back as the store rebalances. A device that is not being
// drained is left as it is.
func (m *Mover) Keep(ctx context.Context, name string) error {
	const op = "keep device"
	if err := m.Gate.EnterWrite(ctx, op); err != nil {
		return err
	}
	defer m.Gate.Leave()
	d, err := m.Members.Find(op, name)
	if err != nil {
		return err
	}
	if err := m.Members.Take(ctx, op); err != nil {
		return err
	}
	defer m.Members.Give()
	if !d.Retired.Load() {
		return nil
	}
	if d.Removed.Load() {
		return &skep.Error{Op: op, Kind: skep.NotFound, Field: "device", Value: name,
			Limit: "a device of the store; it was removed"}
	}
	row := m.Space.RowOf(d)
	row.State = catalog.DeviceInUse
	b := m.Catalog.NewBatch()
	b.PutDevice(&row)
	if err := m.Catalog.Commit(m.Context, b, true); err != nil { // what it says must be known here
		return err
	}
	d.Retired.Store(false)
	if c := d.Condition(); c < health.Fenced {
		m.Space.Include(d, c)
	}
	m.Space.Reroom()
	m.Kick()
	return nil
}

// errKept is what a drain or a removal ends with when the device is to be kept after all.
func errKept(op string, d *space.Drive) error {
	return &skep.Error{Op: op, Kind: skep.Conflict, Field: "device", Value: d.Path,
		Limit: "one that is being drained: it is kept (the drain was taken back)"}
}
