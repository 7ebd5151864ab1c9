package store

import (
	"errors"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
)

// monitor looks at every drive several times a second, judges it (health.go) and does
// what follows: it fences, reads around, lets back in.
type monitor struct {
	s     *Store
	began time.Time
	list  []*watched
}

// watched is a drive under the monitor's eyes. Its goroutine only, but for the atomics.
type watched struct {
	d      *drive
	health health
	last   device.Stats
	at     time.Duration    // of the last look, on the monitor's clock
	stood  [2]time.Duration // for how long reads, and writes, have stood still
	mean   time.Duration    // of reads in the last tick that had some

	probing atomic.Bool
	outcome atomic.Int32
	took    atomic.Int64
	probed  time.Time
	lostAt  time.Time
	buf     []byte
	op      device.Op
}

// note takes a completion of a write into account.
func (d *drive) note(o *device.Op) {
	switch {
	case o.Kind != device.Write || errors.Is(o.Err, syscall.ENOSPC): // a full file system is no failing drive
	case o.Err == nil:
		d.errors.Store(0)
	case d.errors.Add(1) == fenceAfter && d.fence != nil:
		d.fence(o.Err)
	}
}

// fenceAfter is how many writes in a row may fail before a drive gets no new groups,
// without waiting for the monitor.
const fenceAfter = 3

// fence keeps a drive that failed a write out of new groups until probes have shown that
// it can be written again. Reads of what it holds go on.
func (s *Store) fence(d *drive, err error) {
	if errors.Is(err, syscall.ENOSPC) {
		return
	}
	d.forced.Store(&err)
	s.exclude(d, fenced, err)
}

// exclude takes a drive out of what is written: open groups it is in are sealed, and new
// ones do without it. Where it is dead nobody waits for it any longer.
func (s *Store) exclude(d *drive, c condition, err error) {
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
	if c == dead {
		select {
		case <-d.down:
		default:
			close(d.down)
		}
		for _, g := range sp.mu.groups {
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
func (s *Store) include(d *drive, c condition) {
	s.space.mu.Lock()
	was := d.failed
	d.failed = nil
	if d.retired.Load() {
		d.failed = errDraining
	}
	d.mode.Store(int32(c))
	d.errors.Store(0)
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
	}
}

func (m *monitor) start(s *Store) {
	m.s, m.began = s, time.Now()
	go0(&s.background, m.run)
}

func (m *monitor) run() {
	tick := time.NewTicker(m.s.options.rules.tick)
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
		w := &watched{d: d, health: health{rules: m.s.options.rules}, last: d.dev.Stats()}
		if c := d.condition(); c != healthy { // it was not there at the open
			w.health.state, w.health.why, w.health.falls, w.health.reads = c, "missing", 1, true
			w.lostAt = time.Now()
		}
		m.list = append(m.list, w)
	}
}

// look takes everybody's pulse, and draws the conclusions.
func (m *monitor) look() {
	m.sync()
	pulses := make([]pulse, len(m.list))
	means := make([]time.Duration, len(m.list))
	for i, w := range m.list {
		pulses[i] = w.take(time.Since(m.began))
		if pulses[i].reads >= w.health.rules.samples {
			means[i] = pulses[i].mean
			w.mean = pulses[i].mean
		}
	}
	for i, w := range m.list {
		p := &pulses[i]
		others := append(append([]time.Duration{}, means[:i]...), means[i+1:]...)
		p.peers = median(others)
		p.company = company(pulses, i)
		was := w.health.state
		m.apply(w, was, w.health.step(p))
		m.readAround(w)
		m.watchLoss(w)
		if w.health.state != healthy && !w.d.removed.Load() {
			m.probe(w)
		}
	}
}

// company says whether drive i stands still alone: another one goes on, or has nothing
// to do.
func company(pulses []pulse, i int) bool {
	p := &pulses[i]
	still := max(p.readsStalled, p.writesStalled)
	others, stand := 0, 0
	for j := range pulses {
		if j == i {
			continue
		}
		others++
		if max(pulses[j].readsStalled, pulses[j].writesStalled) >= still/2 && still > 0 {
			stand++
		}
	}
	return others > 0 && stand < others
}

// stepMost is how many ticks may pass between two looks before the time is not held against
// the drives.
const stepMost = 5

// stoodStill is for how long a drive owes an answer that says it does for so long: at most
// step longer than at the last look. What a machine that stood still itself, or had no time
// for the monitor, adds to that is no fault of the drives.
func stoodStill(before, says, step time.Duration) time.Duration {
	return min(says, before+step)
}

func (w *watched) take(at time.Duration) pulse {
	st := w.d.dev.Stats()
	l := &w.last
	p := pulse{
		at:         at,
		readFailed: int(st.Reads.Errors - l.Reads.Errors), writeFailed: int(st.Writes.Errors - l.Writes.Errors), flushFailed: int(st.Flushes.Errors - l.Flushes.Errors),
	}
	step := min(at-w.at, stepMost*w.health.rules.tick)
	w.at = at
	w.stood = [2]time.Duration{stoodStill(w.stood[0], st.ReadsStalled, step), stoodStill(w.stood[1], st.WritesStalled, step)}
	p.readsStalled, p.writesStalled = w.stood[0], w.stood[1]
	p.readOK = int(st.Reads.Ops-l.Reads.Ops) - p.readFailed
	p.writeOK = int(st.Writes.Ops-l.Writes.Ops) - p.writeFailed
	p.flushOK = int(st.Flushes.Ops-l.Flushes.Ops) - p.flushFailed
	if n := st.Reads.Ops - l.Reads.Ops; n > 0 {
		p.reads, p.mean = p.readOK, (st.Reads.LatencySum-l.Reads.LatencySum)/time.Duration(n)
	}
	for _, gone := range []error{syscall.ENXIO, syscall.ENODEV, device.ErrGone} {
		p.gone = p.gone || errors.Is(st.LastError, gone)
	}
	p.readOnly = errors.Is(st.LastError, syscall.EROFS)
	if errors.Is(st.LastError, syscall.ENOSPC) {
		p.writeFailed = 0
	}
	if e := w.d.forced.Swap(nil); e != nil {
		p.forced = *e
	}
	if o := probeOutcome(w.outcome.Swap(int32(probeNone))); o != probeNone {
		p.probe, p.took = o, time.Duration(w.took.Load())
	}
	w.last = st
	return p
}

// apply does what a change of condition asks for.
func (m *monitor) apply(w *watched, was, is condition) {
	if is == was {
		return
	}
	d, s := w.d, m.s
	err := &skep.Error{Op: "drive", Kind: skep.DeviceFailed, Field: d.path, Value: w.health.why, Err: w.last.LastError}
	switch {
	case is >= fenced:
		s.exclude(d, is, err)
	case was >= fenced:
		s.include(d, is)
	default:
		d.mode.Store(int32(is))
		if is == slow {
			s.log.Warn("drive is slow: it is read around where there is another copy", "drive", d.path, "serial", d.serial, "why", w.health.why)
		} else {
			s.log.Info("drive is as fast as before", "drive", d.path)
		}
	}
	why := w.health.why
	d.why.Store(&why)
	ev := skep.Event{Kind: skep.EventDevice, Depth: int(d.index)}
	if is != healthy {
		ev.Reason = skep.DeviceFailed
	}
	s.events.emit(ev)
}

// watchLoss decides when a drive that cannot be read counts as lost.
func (m *monitor) watchLoss(w *watched) {
	w.d.noReads.Store(w.health.state >= fenced && w.health.reads)
	switch {
	case w.health.state < fenced || !w.health.reads:
		w.lostAt = time.Time{}
		if w.d.lost.Swap(false) {
			m.s.forgetHealing(w.d)
		}
	case w.lostAt.IsZero():
		w.lostAt = time.Now()
	case time.Since(w.lostAt) > w.health.rules.lostAfter && !w.d.lost.Swap(true):
		m.s.log.Warn("drive counts as lost: copies it held are made again elsewhere", "drive", w.d.path, "serial", w.d.serial)
		m.s.tasks.kick()
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

// readAround sends reads elsewhere that take too long, or wait for a drive that is not to
// be read.
func (m *monitor) readAround(w *watched) {
	d := w.d
	c := d.condition()
	limit := int64(w.health.rules.hedgeAfter(c, w.mean))
	now := device.Now()
	q := &d.reads
	q.mu.Lock()
	var late, waiting []*read
	for r := q.oldest; r != nil && now-r.op.Start >= limit; r = r.newer {
		if r.state.Load() == readPending {
			late = append(late, r)
		}
	}
	if c != healthy {
		waiting = append(waiting, q.waits...)
	} else {
		q.startLocked() // one may have got stuck since
	}
	d.submitLocked()
	for _, r := range late {
		r.ch.leave(r, false, c == dead)
	}
	for _, r := range waiting {
		if !q.take(r) {
			continue // it has been given to the drive meanwhile
		}
		switch {
		case r.ch.leave(r, true, c == dead):
		case c == dead:
			r.op.Err = errNoDrive
			if r.came() {
				r.end(errNoDrive)
			}
		default:
			d.add([]*read{r})
		}
	}
}

// giveUp answers a chunk whose drive is dead as a miss. Its memory stays the drive's.
func (ch *chunk) giveUp() {
	ch.ses.mu.Lock()
	defer ch.ses.mu.Unlock()
	if ch.chain.items[ch.item] == itemAway {
		ch.cancelled.Store(true)
		ch.ses.answerLocked(ch.chain, ch.item, skep.Chunk{Err: errNoDrive}, itemMissed)
	}
}

// probe asks a drive that is not well for a sign of life: a page of its own, and where
// its writes were at fault a page written and flushed as well. One probe at a time: its
// memory is the drive's until it answers.
func (m *monitor) probe(w *watched) {
	if time.Since(w.probed) < w.health.rules.probeEvery || !w.probing.CompareAndSwap(false, true) {
		return
	}
	w.probed = time.Now()
	if w.buf == nil {
		w.buf = device.AlignedBuffer(layout.PageSize)
	}
	writes := w.health.writes && !m.s.options.ReadOnly
	began := device.Now()
	end := func(err error) {
		w.took.Store(device.Now() - began)
		outcome := probeGood
		if err != nil {
			outcome = probeBad
		}
		w.outcome.Store(int32(outcome))
		w.probing.Store(false)
	}
	var next func(k device.Kind)
	next = func(k device.Kind) {
		w.op = device.Op{Kind: k, Done: func(o *device.Op) {
			switch {
			case o.Err != nil || !writes || k == device.Flush:
				end(o.Err)
			case k == device.Read:
				next(device.Write)
			default:
				next(device.Flush)
			}
		}}
		if k != device.Flush {
			w.op.Bufs = [][]byte{w.buf}
		}
		if k == device.Write {
			clear(w.buf)
			w.op.Offset = probePage * layout.PageSize
		}
		if err := w.d.dev.Submit([]*device.Op{&w.op}); err != nil {
			end(err)
		}
	}
	next(device.Read)
}

// probePage is the last of the pages kept for superblocks, which holds nothing: what
// probes write to.
const probePage = layout.SuperblockPages - 1
