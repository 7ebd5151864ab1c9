package store

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/compact"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// untilClosing is a context that also ends when the store is being closed.
func (s *Store) untilClosing(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with cancel
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// compactSet is how much of what lives is put in order together.
const (
	compactSetBytes  = 256 << 20
	compactSetGroups = 64
)

// Compact rewrites groups that have holes or whose chains lie scattered: what lives in
// them is written again in the order of its chains, and they are freed. Nothing is
// dropped. Deletes, restores and puts go on meanwhile.
func (s *Store) Compact(ctx context.Context, o MoveOptions) (r CompactResult, err error) {
	if err := s.enterMove(ctx, "compact", o); err != nil {
		return r, err
	}
	defer s.gate.Leave()
	ctx, cancel := s.untilClosing(ctx)
	defer cancel()
	t := &s.tasks
	if !s.options.ReadOnly {
		if err := t.take(ctx); err != nil {
			return r, err
		}
		defer t.give()
	}
	began := time.Now()
	r.Task, r.Device, r.DryRun = taskCompact, -1, o.DryRun
	r.FreeBefore = s.space.Free()
	if !o.DryRun {
		s.space.SealOpen(space.Moved)
	}
	costs, err := s.scanCosts(ctx)
	if err != nil {
		return r, err
	}
	chosen := compact.Asked.Choose(costs)
	if o.All {
		chosen = costs
	}
	var live, capacity int64
	var links, breaks int
	for _, c := range chosen {
		live, capacity, links, breaks = live+c.Live, capacity+c.Capacity, links+c.Links, breaks+c.Breaks
	}
	if capacity > 0 {
		r.LiveShare = float64(live) / float64(capacity)
	}
	if links > 0 {
		r.Disorder = float64(breaks) / float64(links)
	}
	r.Groups = len(chosen)
	if o.DryRun {
		r.Bytes = live * layout.PageSize
		r.FreeAfter, r.DisorderLeft = r.FreeBefore, compact.Disorder(costs)
		r.Seconds = time.Since(began).Seconds()
		return r, nil
	}
	s.cleaner.Loan.Store(1)
	defer s.cleaner.Loan.Store(0)
	b := s.space.Pace(o.Rate)
	w := s.works.Begin(taskCompact, live*layout.PageSize)
	defer w.End()
	for len(chosen) > 0 && err == nil {
		n := s.setSize(chosen)
		err = s.compactSet(ctx, chosen[:n], b, &r, o, w)
		chosen = chosen[n:]
	}
	s.space.SealOpen(space.Moved)
	if err == errNoRoom {
		r.OutOfRoom, err = true, nil
	}
	r.FreeAfter = s.space.Free()
	r.Seconds = time.Since(began).Seconds()
	t.note(r.Progress)
	if err == nil {
		if costs, err = s.scanCosts(ctx); err == nil {
			r.DisorderLeft = compact.Disorder(costs)
		}
	}
	return r, err
}

// setSize is how many of the chosen groups are put in order together: as many as the free
// groups can take what lives in them, at least one.
func (s *Store) setSize(chosen []compact.Group) int {
	room := max(1, s.space.Free()-s.space.KeptFree)
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

func (s *Store) compactSet(ctx context.Context, set []compact.Group, b *limits.Pace, r *CompactResult, o MoveOptions, w *observe.Work) error {
	var list []*appender.Block
	var groups []*space.Group
	var releases []func()
	defer func() {
		for _, f := range releases {
			f()
		}
	}()
	for _, c := range set {
		g := s.space.Find(c.Num)
		if g == nil {
			continue
		}
		blocks, release, err := s.gatherGroup(ctx, g)
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
			if err := s.markMoving(ctx, g); err != nil {
				return err
			}
		}
	}
	err := s.moveList(ctx, inChainOrder(list), job{task: taskCompact, work: w}, b, &r.Progress)
	for _, f := range releases {
		f()
	}
	releases = nil
	before := s.count.MovedBytes.Load()
	for _, g := range groups {
		r.GroupsDone++
		n, e := s.left(ctx, g)
		if e != nil || n > 0 && err != errNoRoom {
			continue // blocks that cannot be read, or puts that came back
		}
		// Without room to put them in order, the cleaner still has some for what is left.
		if s.cleaner.Clean(ctx, g, true) == nil {
			r.GroupsFreed++
			err = nil
		}
	}
	r.Bytes += s.count.MovedBytes.Load() - before
	if o.Progress != nil {
		o.Progress(r.Progress)
	}
	return err
}

// scanCosts are the sealed groups with the order of their chains.
func (s *Store) scanCosts(ctx context.Context) ([]compact.Group, error) {
	groups := s.space.Groups()
	costs := s.space.Costs(groups)
	byNum := map[uint32]*compact.Group{}
	for i := range costs {
		byNum[costs[i].Num] = &costs[i]
	}
	for _, g := range groups {
		c := byNum[g.Num]
		if c == nil {
			continue
		}
		list, release, err := s.gatherGroup(ctx, g)
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

// findDrive is the drive of a name: its index, its path, its serial number or the
// beginning of its id in hexadecimal.
func (s *Store) findDrive(op, name string) (*space.Drive, error) {
	var found []*space.Drive
	path, err := filepath.Abs(name)
	if err != nil || s.options.customDevices {
		path = name
	}
	for _, d := range s.allDrives() {
		if d.Removed.Load() {
			continue
		}
		id := hex.EncodeToString(d.ID[:])
		if name == strconv.Itoa(int(d.Index)) || path == d.Path || d.Serial != "" && name == d.Serial || len(name) >= 6 && len(name) <= len(id) && name == id[:len(name)] {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "device", Value: name, Limit: fmt.Sprintf("the index, path, serial number or id of one device of the store; %d match", len(found))}
	}
	return found[0], nil
}

// FindDevice says, as an error of kind NotFound, that no device of the store has that name, or several do.
func (s *Store) FindDevice(name string) error {
	_, err := s.findDrive("find device", name)
	return err
}

// DrainDevice moves everything off a device: nothing new goes there from now on, in later
// opens too, and what it holds is written again on the others. Cache blocks that cannot be
// read are forgotten; Durable ones stay where they are, and the error says how many.
func (s *Store) DrainDevice(ctx context.Context, name string, o MoveOptions) (Progress, error) {
	const op = "drain device"
	if err := s.enterMove(ctx, op, o); err != nil {
		return Progress{}, err
	}
	defer s.gate.Leave()
	d, err := s.findDrive(op, name)
	if err != nil {
		return Progress{}, err
	}
	return s.drain(ctx, op, d, o)
}

func (s *Store) drain(ctx context.Context, op string, d *space.Drive, o MoveOptions) (p Progress, err error) {
	p.Task, p.Device = taskDrain, int(d.Index)
	of := s.space.GroupsOf(d)
	p.Groups = len(of)
	if o.DryRun {
		for _, g := range of {
			if st, ok := s.index.Group(g.Num); ok {
				p.Blocks += int64(st.Blocks)
				p.Bytes += layout.SlotBytes(st.LivePages)
			}
		}
		return p, s.mayDrain(op, d)
	}
	ctx, cancel := s.untilClosing(ctx)
	defer cancel()
	defer typed(ctx, op, &err)
	before := s.count.Evicted.Load()
	defer func() { p.Evicted = s.count.Evicted.Load() - before }()
	if err := s.tasks.retire(ctx, op, d); err != nil {
		return p, err
	}
	t := &s.tasks
	if err := t.take(ctx); err != nil {
		return p, err
	}
	defer t.give()
	if err := s.space.AwaitOpening(ctx, op); err != nil { // what was being opened with it is known now
		return p, err
	}
	began, b := time.Now(), s.space.Pace(o.Rate)
	w := s.works.Begin(taskDrain, s.space.LiveBytes(of))
	defer w.End()
	var stuck error
	skip := map[*space.Group]bool{}
	for {
		if !d.Retired.Load() {
			return p, errKept(op, d)
		}
		g, busy := s.nextOf(d, skip)
		if g == nil {
			if !busy {
				break
			}
			s.space.SealGroupsOf(d)
			if err := b.Sleep(ctx, sealedStep); err != nil {
				return p, &skep.Error{Op: op, Kind: skep.Deadline, Field: "groups left", Value: len(s.space.GroupsOf(d)), Err: err}
			}
			continue
		}
		if err := s.moveGroup(ctx, g, job{taskDrain, d, o.Force, w}, b, &p); err != nil && err != space.ErrBusy {
			if ctx.Err() != nil {
				return p, &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
			}
			skip[g] = true
			stuck = err
		}
		p.GroupsDone++
		p.Seconds = time.Since(began).Seconds()
		if o.Progress != nil {
			o.Progress(p)
		}
	}
	t.note(p)
	if stuck == nil {
		return p, nil
	}
	e := &skep.Error{Op: op, Kind: skep.KindOf(stuck), Field: "groups left", Value: len(s.space.GroupsOf(d)), Err: stuck}
	if e.Kind == skep.Full {
		e.Limit = "0; the other devices have no room for what must be kept: delete something, give the store more capacity or add a device. What is left is moved as soon as there is room"
	}
	return p, e
}

// mayDrain refuses to leave fewer devices than a namespace has copies.
func (s *Store) mayDrain(op string, d *space.Drive) error {
	left := 0
	for _, o := range s.allDrives() {
		if o != d && !o.Retired.Load() && o.Condition() < health.Fenced {
			left++
		}
	}
	most := 1
	for ns := range s.names.All() {
		most = max(most, ns.Info.Copies)
	}
	if left < most {
		return skep.Invalidf(op, "devices left in working order", left, fmt.Sprintf("at least %d: as many as a namespace has copies", most))
	}
	return nil
}

// retire retires a drive unless too few were left: one decision at a time, or two of the last two drives are both let
// in.
func (t *tasks) retire(ctx context.Context, op string, d *space.Drive) error {
	if err := t.takeMembers(ctx, op); err != nil {
		return err
	}
	defer t.giveMembers()
	if err := t.s.mayDrain(op, d); err != nil {
		return err
	}
	return t.s.retire(ctx, d)
}

// retire takes a drive out of use, for good: the catalog knows. REQUIRES: tasks.members.
func (s *Store) retire(ctx context.Context, d *space.Drive) error {
	if d.Retired.Load() {
		return nil
	}
	row := s.space.RowOf(d)
	row.State = catalog.DeviceDraining
	b := s.catalog.NewBatch()
	b.PutDevice(&row)
	if err := s.catalog.Commit(s.ctx, b, true); err != nil { // what it says must be known here
		return err
	}
	d.Retired.Store(true)
	s.space.Exclude(d, d.Condition(), space.ErrDraining)
	s.space.Reroom()
	return nil
}

// sealedStep is how often a group is looked at again that was sealed to be moved.
const sealedStep = 10 * time.Millisecond

// nextOf is a group of d that can be moved now; busy says that there is one that may be
// soon.
func (s *Store) nextOf(d *space.Drive, skip map[*space.Group]bool) (g *space.Group, busy bool) {
	for _, g := range s.space.GroupsOf(d) {
		if skip[g] {
			continue
		}
		if s.space.IsIdle(g) {
			return g, false
		}
		busy = true
	}
	return nil, busy
}

// RemoveDevice drains a device and takes it out of the store. With Force, durable blocks
// that cannot be read any more are given up. A block device is wiped where it can be
// written, a file is removed; its index is not used again.
func (s *Store) RemoveDevice(ctx context.Context, name string, o MoveOptions) (Progress, error) {
	const op = "remove device"
	if err := s.enterMove(ctx, op, o); err != nil {
		return Progress{}, err
	}
	defer s.gate.Leave()
	d, err := s.findDrive(op, name)
	if err != nil {
		return Progress{}, err
	}
	p, err := s.drain(ctx, op, d, o)
	if err != nil || o.DryRun {
		return p, err
	}
	if err := s.tasks.takeMembers(ctx, op); err != nil {
		return p, err
	}
	defer s.tasks.giveMembers()
	if !d.Retired.Load() || len(s.space.GroupsOf(d)) > 0 {
		return p, errKept(op, d)
	}
	if err := s.space.AwaitLeft(ctx, op, d, o.Force); err != nil {
		return p, err
	}
	row := s.space.RowOf(d)
	row.State = catalog.DeviceRemoved
	b := s.catalog.NewBatch()
	b.PutDevice(&row)
	if err := s.catalog.Commit(s.ctx, b, true); err != nil {
		return p, err
	}
	d.Removed.Store(true)
	s.restamp()
	if d.Condition() < health.Fenced {
		ctx, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
		defer cancel()
		if err := segio.Wipe(ctx, s.space.Durably(d)); err != nil {
			s.log.Warn("removed device not wiped: clear its first 64 KiB before it is used again", "device", d.Path, "error", err)
		} else if st, err := os.Lstat(d.Path); err == nil && st.Mode().IsRegular() && !d.Dev.Info().Raw && d.Dev.Info().Path == d.Path {
			if err := os.Remove(d.Path); err != nil {
				s.log.Warn("file of a removed device left behind", "device", d.Path, "error", err)
			}
		}
	}
	s.log.Info("device removed", "device", d.Index, "path", d.Path, "serial", d.Serial)
	s.background.Go(func() { s.space.LetGo(d) })
	return p, nil
}

// Rebalance spreads what is stored over devices that were added, and returns when they
// are filled about alike. The same goes on in the background by itself.
func (s *Store) Rebalance(ctx context.Context, o MoveOptions) (p Progress, err error) {
	const op = "rebalance"
	if err := s.gate.EnterWrite(ctx, op); err != nil {
		return p, err
	}
	defer s.gate.Leave()
	ctx, cancel := s.untilClosing(ctx)
	defer cancel()
	t := &s.tasks
	if err := t.take(ctx); err != nil {
		return p, err
	}
	defer t.give()
	p.Task, p.Device = taskRebalance, -1
	began, b := time.Now(), s.space.Pace(o.Rate)
	w := s.works.Begin(taskRebalance, 0)
	defer w.End()
	skip := map[*space.Group]bool{}
	for {
		g := s.space.Unbalanced(s.space.Groups(), func(g *space.Group) bool { return !skip[g] && t.ready(g) })
		if g == nil || o.DryRun {
			break
		}
		if err := s.moveGroup(ctx, g, job{task: taskRebalance, work: w}, b, &p); err != nil {
			if ctx.Err() != nil {
				return p, &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
			}
			skip[g] = true
		}
		p.GroupsDone++
		p.Seconds = time.Since(began).Seconds()
		if o.Progress != nil {
			o.Progress(p)
		}
	}
	t.note(p)
	return p, nil
}
