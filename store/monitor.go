package store

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/restore"
)

// monitor looks at every drive several times a second, has it judged (package health) and does
// what follows: it fences, reads around, lets back in.
type monitor struct {
	s      *Store
	rules  health.Rules
	began  time.Time
	list   []*watched
	judges []*health.Judge // of list
}

// watched is a drive under the monitor's eyes. Its goroutine only, but for the atomics.
type watched struct {
	d     *drive
	judge *health.Judge
	file  *watchedFile // nil: it is no file

	probing atomic.Bool
	outcome atomic.Int32
	took    atomic.Int64
	buf     []byte // the probe's, while there is one
	pattern byte   // of what the last probe wrote; likewise
}

// condition is what the monitor last found; healthy before it has looked.
func (d *drive) condition() health.State { return health.State(d.mode.Load()) }

// unreadable says whether what the drive holds cannot be read for now.
func (d *drive) unreadable() bool { return d.condition() == health.Dead || d.noReads.Load() }

// note takes a completion of a write into account.
func (d *drive) note(o *device.Op) {
	switch {
	case o.Kind != device.Write || errors.Is(o.Err, syscall.ENOSPC) || device.BadMemory(o.Err): // a full file system is no failing drive, nor is bad memory
	case d.writeErrors.Note(o.Err != nil) && d.fence != nil: // without waiting for the monitor
		d.fence(o.Err)
	}
}

// fence keeps a drive that failed a write out of new groups until probes have shown that
// it can be written again. Reads of what it holds go on.
func (s *Store) fence(d *drive, err error) {
	if errors.Is(err, syscall.ENOSPC) {
		return
	}
	d.forced.Store(&err)
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
		d.mode.Store(int32(c))
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
	d.mode.Store(int32(c))
	d.writeErrors.Forget()
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

// watchDrives prepares the drives for being judged.
func (s *Store) watchDrives() {
	for _, d := range s.allDrives() {
		d.fence = func(err error) { s.fence(d, err) }
		d.flush.OnFailure(d.fence)
	}
}

func (m *monitor) start(s *Store) {
	m.s, m.rules, m.began = s, s.options.rules, time.Now()
	m.sync() // at once: what becomes of a file from here on is seen
	s.background.Go(m.run)
}

func (m *monitor) run() {
	tick := time.NewTicker(m.rules.Tick)
	defer tick.Stop()
	for {
		select {
		case <-m.s.closing:
			return
		case <-tick.C:
		}
		m.look()
	}
}

// sync gives every drive of the store a place on the list.
func (m *monitor) sync() {
	for _, d := range m.s.allDrives()[len(m.list):] {
		w := &watched{d: d}
		so := health.Reading{Stats: d.dev.Stats(), Wrong: d.wrong.Load()}
		if c := d.condition(); c != health.Healthy { // it was not there at the open
			w.judge = health.NewMissing(m.rules, time.Since(m.began), c, so)
		} else {
			w.judge = health.NewJudge(m.rules, so)
			w.file = m.s.watchFile(d)
		}
		m.list, m.judges = append(m.list, w), append(m.judges, w.judge)
	}
}

// look reads what everybody did, and draws the conclusions.
func (m *monitor) look() {
	m.sync()
	at := time.Since(m.began)
	readings, was := make([]health.Reading, len(m.list)), make([]health.State, len(m.list))
	for i, w := range m.list {
		readings[i], was[i] = w.read(m.rules.FileEvery), w.judge.State()
	}
	health.Look(at, m.judges, readings)
	for i, w := range m.list {
		if readings[i].Ignored {
			continue
		}
		m.apply(w, was[i], w.judge.State())
		c := w.d.condition()
		restore.Hedge(w.d, w.judge.HedgeAfter(c), c)
		m.watchLoss(w)
		if !w.probing.Load() {
			if probe, write := w.judge.WantsProbe(at); probe {
				m.probe(w, write && !m.s.options.ReadOnly)
			}
		}
	}
}

// read is what the drive did up to now.
func (w *watched) read(fileEvery time.Duration) health.Reading {
	r := health.Reading{Stats: w.d.dev.Stats(), Wrong: w.d.wrong.Load(), Unlinked: w.file.unlinked(fileEvery)}
	r.Ignored = w.d.removed.Load() // what its file does is nobody's concern
	if e := w.d.forced.Swap(nil); e != nil {
		r.Forced = *e
	}
	if o := health.Outcome(w.outcome.Swap(int32(health.NoProbe))); o != health.NoProbe {
		r.Probe, r.Took = o, time.Duration(w.took.Load())
	}
	return r
}

// apply does what a change of condition asks for.
func (m *monitor) apply(w *watched, was, is health.State) {
	if is == was {
		return
	}
	d, s, why := w.d, m.s, w.judge.Why()
	err := &skep.Error{Op: "drive", Kind: skep.DeviceFailed, Field: d.path, Value: why, Err: w.judge.LastError()}
	switch {
	case is >= health.Fenced:
		s.exclude(d, is, err)
	case was >= health.Fenced:
		s.include(d, is)
	default:
		d.mode.Store(int32(is))
		if is == health.Slow {
			s.log.Warn("drive is slow: it is read around where there is another copy", "drive", d.path, "serial", d.serial, "why", why)
		} else {
			s.log.Info("drive is as fast as before", "drive", d.path)
		}
	}
	d.why.Store(&why)
	ev := skep.Event{Kind: skep.EventDevice, Depth: int(d.index)}
	if is != health.Healthy {
		ev.Reason = skep.DeviceFailed
	}
	s.events.Emit(ev)
}

// watchLoss does what follows when a drive that cannot be read counts as lost, or does not any more.
func (m *monitor) watchLoss(w *watched) {
	w.d.noReads.Store(w.judge.Unreadable())
	lost := w.judge.Lost()
	if w.d.lost.Swap(lost) == lost {
		return
	}
	if !lost {
		m.s.forgetHealing(w.d)
		return
	}
	m.s.log.Warn("drive counts as lost: copies it held are made again elsewhere", "drive", w.d.path, "serial", w.d.serial)
	m.s.tasks.kick()
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

// probe asks a drive that is not well for a sign of life: a page of its own, and where
// its writes were at fault, or its bytes, a page written, flushed and read again as well. One
// probe at a time: its memory is the drive's until it answers.
func (m *monitor) probe(w *watched, write bool) {
	w.probing.Store(true)
	if w.buf == nil {
		w.buf = device.AlignedBuffer(layout.PageSize)
	}
	ctx := m.s.ctx
	m.s.background.Go(func() {
		began := device.Now()
		err := w.signOfLife(ctx, write)
		if ctx.Err() != nil {
			return
		}
		w.took.Store(device.Now() - began)
		outcome := health.GoodProbe
		if err != nil {
			outcome = health.BadProbe
		}
		w.outcome.Store(int32(outcome))
		w.probing.Store(false)
	})
}

// signOfLife is one probe. It returns when the drive has answered, or ctx ends: then its memory may
// still be the drive's.
func (w *watched) signOfLife(ctx context.Context, write bool) error {
	if err := device.ReadAt(ctx, w.d.dev, w.buf, 0); err != nil || !write {
		return err
	}
	w.pattern++
	fillWith(w.buf, w.pattern)
	if err := device.WriteAt(ctx, w.d.dev, w.buf, probePage*layout.PageSize); err != nil {
		return err
	}
	r := w.d.flush.Start()
	select {
	case <-r.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := r.Err(); err != nil {
		return err
	}
	fillWith(w.buf, ^w.pattern) // so that a read which brings nothing is seen
	if err := device.ReadAt(ctx, w.d.dev, w.buf, probePage*layout.PageSize); err != nil {
		return err
	}
	if slices.ContainsFunc(w.buf, func(b byte) bool { return b != w.pattern }) {
		return errWrongProbe
	}
	return nil
}

var errWrongProbe = &skep.Error{Op: "probe drive", Kind: skep.Damaged, Field: "what was written to it"}

func fillWith(p []byte, b byte) {
	for i := range p {
		p[i] = b
	}
}

// probePage is the last of the pages kept for superblocks, which holds nothing: what
// probes write to.
const probePage = layout.SuperblockPages - 1
