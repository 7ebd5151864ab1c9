package store

import (
	"context"
	"maps"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/compact"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// tasks is the work in the background that moves blocks, one group at a time and one task
// at a time: copies that were lost are made again, drives that are to go are emptied, a
// drive that came is filled, groups with many holes are compacted. In this order.
type tasks struct {
	s    *Store
	wake chan struct{}
	turn chan struct{} // held by who moves blocks

	members chan struct{}                  // held by who adds, removes or retires a device
	grown   atomic.Pointer[[]*space.Drive] // the drives, once some were added since the open

	unstamped atomic.Bool // a superblock does not say how many devices there are: restamp

	mu     locks.Mutex[locks.Tasks]
	totals map[string]Progress
	stuck  map[space.ID]time.Time // groups that could not be moved, and until when
}

// Names of tasks.
const (
	taskHeal      = "re-replicate"
	taskDrain     = "drain"
	taskRebalance = "rebalance"
	taskCompact   = "compact"
	taskScrub     = "scrub"
)

// MoveOptions say how Compact, Drain, Remove and Rebalance go about it.
type MoveOptions struct {
	Rate     int64          // bytes a second of payload; 0: as the drives are idle
	All      bool           // of Compact: every group, whether it needs it or not
	DryRun   bool           // say what would be done, and do nothing
	Force    bool           // of RemoveDevice: give durable blocks up that cannot be read
	Progress func(Progress) // called now and then, on the caller's goroutine
}

func (t *tasks) start(s *Store) {
	t.s = s
	t.wake, t.turn = make(chan struct{}, 1), make(chan struct{}, 1)
	t.members = make(chan struct{}, 1)
	t.totals, t.stuck = map[string]Progress{}, map[space.ID]time.Time{}
	s.background.Go(t.run)
}

func (t *tasks) kick() {
	if t.wake == nil {
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// take waits for the turn.
func (t *tasks) take(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &skep.Error{Op: "move blocks", Kind: skep.Deadline, Err: ctx.Err()}
	case <-t.s.closing:
		return gate.ErrClosed
	}
}

func (t *tasks) give() { <-t.turn }

// takeMembers waits until nobody else adds, removes or retires a device.
func (t *tasks) takeMembers(ctx context.Context, op string) error {
	select {
	case t.members <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
	}
}

func (t *tasks) giveMembers() { <-t.members }

func (t *tasks) run() {
	tick := time.NewTicker(t.s.options.taskEvery)
	defer tick.Stop()
	for {
		select {
		case <-t.s.closing:
			return
		case <-tick.C:
		case <-t.wake:
		}
		t.restampAgain()
		for t.s.ctx.Err() == nil && t.s.rows.Failed() == nil && !t.s.catalogRoom.Full() {
			if t.take(t.s.ctx) != nil {
				return
			}
			did := t.one(t.s.ctx)
			t.give()
			if !did {
				break
			}
		}
	}
}

// one does the most urgent piece of work. False: there is none.
func (t *tasks) one(ctx context.Context) bool {
	s := t.s
	job, g := t.next()
	if g == nil {
		return false
	}
	began := time.Now()
	p := Progress{Task: job.task, Device: job.device()}
	job.work = s.works.Begin(job.task, s.space.LiveBytes([]*space.Group{g}))
	defer job.work.End()
	err := s.moveGroup(ctx, g, job, s.space.Pace(s.options.BackgroundRate), &p)
	p.Seconds = time.Since(began).Seconds()
	t.note(p)
	if err != nil {
		t.mu.Lock()
		t.stuck[g.ID()] = time.Now().Add(s.options.taskRetry)
		t.mu.Unlock()
		if ctx.Err() == nil && err != space.ErrBusy {
			s.log.Warn("blocks not moved for now", "task", job.task, "group", g.Num, "error", err)
		}
	}
	return true
}

// note adds to what tasks have done so far.
func (t *tasks) note(p Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.totals[p.Task]
	sum.Task, sum.Device = p.Task, p.Device
	sum.GroupsDone++
	sum.Blocks += p.Blocks
	sum.Bytes += p.Bytes
	sum.Unreadable += p.Unreadable
	sum.Evicted += p.Evicted
	sum.Seconds += p.Seconds
	t.totals[p.Task] = sum
}

// Tasks is what the work in the background has done since the open, by task.
func (s *Store) Tasks() []Progress {
	t := &s.tasks
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Progress
	for _, name := range []string{taskHeal, taskDrain, taskRebalance, taskCompact} {
		if p, ok := t.totals[name]; ok {
			out = append(out, p)
		}
	}
	return out
}

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
func (t *tasks) next() (job, *space.Group) {
	s := t.s
	t.mu.Lock()
	now := time.Now() // groups that are gone are asked about no more
	maps.DeleteFunc(t.stuck, func(_ space.ID, until time.Time) bool { return !now.Before(until) })
	t.mu.Unlock()
	groups := s.space.Groups()
	free := func(g *space.Group) bool { return t.ready(g) }
	for _, d := range s.allDrives() {
		if d.Removed.Load() || !d.Standing.Lost() {
			continue
		}
		for _, g := range groups {
			if g.Has(d) && !g.Healed.Load() && free(g) {
				return job{task: taskHeal, drive: d}, g
			}
		}
	}
	for _, d := range s.allDrives() {
		if d.Removed.Load() || !d.Retired.Load() {
			continue
		}
		for _, g := range groups {
			if g.Has(d) && free(g) {
				return job{task: taskDrain, drive: d}, g
			}
		}
	}
	if !s.options.NoRebalance {
		if g := s.space.Unbalanced(groups, free); g != nil {
			return job{task: taskRebalance}, g
		}
	}
	for _, c := range compact.Unasked.Choose(s.space.Costs(groups)) {
		if g := s.space.Find(c.Num); g != nil && free(g) {
			return job{task: taskCompact}, g
		}
	}
	return job{}, nil
}

// ready says whether a group can be moved now.
func (t *tasks) ready(g *space.Group) bool {
	t.mu.Lock()
	until := t.stuck[g.ID()]
	t.mu.Unlock()
	if time.Now().Before(until) {
		return false
	}
	return t.s.space.IsIdle(g)
}

// moveGroup does a job on one group: its blocks are written elsewhere in the order of
// their chains, and, unless only copies are made again, the group is freed.
func (s *Store) moveGroup(ctx context.Context, g *space.Group, j job, b *limits.Pace, p *Progress) error {
	list, release, err := s.gatherGroup(ctx, g)
	if err != nil {
		return err
	}
	if j.task != taskHeal { // the group is given back, on the drives that stay at least
		s.cleaner.Loan.Store(1)
		defer s.cleaner.Loan.Store(0)
	}
	if j.task == taskHeal {
		list = s.halved(g, list)
	}
	if len(list) > 0 {
		err = s.markMoving(ctx, g)
	}
	before := *p
	if err == nil {
		err = s.moveList(ctx, inChainOrder(list), j, b, p)
	}
	release()
	if err == errNoRoom && (j.task == taskHeal || j.task == taskDrain) {
		// The cleaner has room for a whole group. Where it has none either, what is there has to make some: cleaned,
		// the group keeps what is worth keeping, with all its copies.
		if err := s.cleaner.Clean(ctx, g, true); err == nil || ctx.Err() != nil {
			if err == nil {
				p.Blocks, p.Bytes = before.Blocks+int64(len(list)), before.Bytes+sizeOf(list)
			}
			return err
		}
		return s.cleaner.Clean(ctx, g, false)
	}
	if err == errNoRoom && j.task == taskRebalance {
		// The new drive is of no use to a full store until its old ones have room. The cleaner
		// has some for the whole group, and drops nothing of it.
		return s.cleaner.Clean(ctx, g, true)
	}
	if err != nil {
		return err
	}
	if j.task == taskHeal {
		g.Healed.Store(true)
		return nil
	}
	if left, err := s.left(ctx, g); err != nil || left > 0 {
		if err == nil {
			err = &skep.Error{Op: "move blocks", Kind: skep.DeviceFailed, Field: "blocks of group " + itoa(int(g.Num)) + " that cannot be read", Value: left}
		}
		return err
	}
	return s.cleaner.Clean(ctx, g, true)
}

// sizeOf is the payload of blocks.
func sizeOf(list []*appender.Block) (n int64) {
	for _, in := range list {
		n += in.Size
	}
	return n
}

// moveList moves blocks of pinned groups.
func (s *Store) moveList(ctx context.Context, list []*appender.Block, j job, b *limits.Pace, p *Progress) error {
	m := mover{s: s, budget: b,
		moved: func(blocks int, bytes int64) {
			p.Blocks += int64(blocks)
			p.Bytes += bytes
			j.work.Add(bytes)
		},
		unreadable: func(in *appender.Block, ns *namespaces.Namespace, why error) {
			p.Unreadable++
			if j.task == taskDrain && (j.force || !in.Durable()) && skep.KindOf(why) != skep.Deadline {
				s.rows.Lost(ns, &in.Block, skep.KindOf(why))
			}
		}}
	return m.move(ctx, list)
}

// halved are the blocks of g of which a copy is lost and another can be read.
func (s *Store) halved(g *space.Group, list []*appender.Block) (out []*appender.Block) {
	alive := func(i int) bool { return !g.Drives[i].Standing.Lost() && g.Drives[i].Absent == nil }
	for _, in := range list {
		if len(in.Record.Copies) < 2 {
			continue
		}
		readable, whole := segio.UnitsOf(in.Record.Copies, int64(in.Pages)*layout.PageSize, len(g.Drives)).Survive(alive)
		if readable && !whole {
			out = append(out, in)
		}
	}
	return out
}

// left is how many blocks still live in g.
func (s *Store) left(ctx context.Context, g *space.Group) (n int, err error) {
	err = s.catalog.ScanGroup(ctx, g.Num, func(l layout.Location, row []byte) error {
		var rec segment.Record
		if segment.DecodeRecord(row, &rec) != nil {
			return nil // the cleaner reports it
		}
		if _, ok := s.stands(&rec, l); ok {
			n++
		}
		return nil
	})
	return n, err
}

// markMoving notes in the catalog that g's log will have records of blocks that are
// elsewhere.
func (s *Store) markMoving(ctx context.Context, g *space.Group) error {
	s.space.SetStale(g)
	state := s.space.StaleRow(g)
	b := s.catalog.NewBatch()
	b.PutGroup(&state)
	return s.catalog.Commit(ctx, b, false)
}

// typed gives an error that only says that ctx ended a kind.
func typed(ctx context.Context, op string, err *error) {
	if *err != nil && ctx.Err() != nil && skep.KindOf(*err) == skep.Other {
		*err = &skep.Error{Op: op, Kind: skep.Deadline, Err: *err}
	}
}
