package store

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// Reading around what a drive does wrong.
//
// A copy of a large block lies on all drives of its group, so a drive that is lost
// takes a piece of every copy with it. But the same piece of two copies is never on one
// drive. So what is chosen is not a copy but, for each unit, where to read it: from the
// best drive that has it. A block is lost when every copy of one unit is.
//
// A drive may hang on a read it was given, and write to that memory minutes later,
// right bytes or wrong ones. Where there is another copy, nothing is therefore read
// straight into the caller's memory: it goes to the store's own, is checked there and
// copied (Options.ReadInPlace says otherwise). Then a read that takes too long is left
// to the drive together with its memory, the same bytes are read elsewhere, and neither
// the chunk nor the caller's memory waits for the drive.

// bad is a range of a part that was wrong in one copy.
type bad struct {
	copy int
	span layout.Span
}

// troubles is what went wrong with a chunk so far. Nil: nothing.
type troubles struct {
	shun []*drive // reads from these failed
	bad  []bad
}

func (t *troubles) wrong(copy int, s layout.Span) bool {
	if t == nil {
		return false
	}
	for _, b := range t.bad {
		if b.copy == copy && b.span.Off < s.End() && s.Off < b.span.End() {
			return true
		}
	}
	return false
}

// noPlace is the cost of reading where it is no use to.
const noPlace = 1 << 20

// costOf says what it costs to read from d: less is better, noPlace and above never.
func (t *troubles) costOf(d *drive) int {
	if t != nil && slices.Contains(t.shun, d) {
		return noPlace
	}
	switch d.condition() {
	case healthy:
		return 0
	case slow:
		return 1
	case fenced:
		return 2
	}
	return noPlace // dead
}

// copyReads are the reads of the chunk's spans from copy c.
func (f *found) copyReads(c int, spans []layout.Span) []layout.Read {
	p := f.copies[c]
	loc := layout.Location{Group: p.Group, Page: p.Page, Device: p.Device, Sub: p.Sub}
	reads := layout.AppendReads(nil, loc, len(f.group.drives), f.stored, f.partOff, f.granules, spans)
	for i := range reads {
		reads[i].Tag = uint32(c)
	}
	return reads
}

var (
	errNoDrive = &skep.Error{Op: "restore", Kind: skep.DeviceFailed, Field: "drive", Value: "fenced"}
	errNoCopy  = &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "copies", Value: "all wrong"}
)

// chooseReads says where each piece of the chunk is read. The error is DeviceFailed when a
// piece lies only on drives that cannot be read, Damaged when all its copies were wrong.
func (ch *chunk) chooseReads() ([]layout.Read, error) {
	f := ch.at
	first := f.copyReads(0, ch.spans)
	if ch.trouble == nil && f.group.allHealthy() {
		return first, nil
	}
	lists := make([][]layout.Read, len(f.copies))
	lists[0] = first
	for i := range first {
		best, cost, wrong := 0, noPlace, 0
		for c := range f.copies {
			if lists[c] == nil {
				if lists[c] = f.copyReads(c, ch.spans); len(lists[c]) != len(first) {
					return nil, &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "places of the copies"}
				}
			}
			r := &lists[c][i]
			if ch.trouble.wrong(c, layout.Span{Off: r.PartOff, Len: r.Len}) {
				wrong++
				continue
			}
			if n := ch.trouble.costOf(f.group.drives[r.Device]); n < cost {
				best, cost = c, n
			}
		}
		switch {
		case wrong == len(f.copies):
			return nil, errNoCopy
		case cost >= noPlace:
			return nil, errNoDrive
		}
		first[i] = lists[best][i]
	}
	return first, nil
}

// again prepares another attempt after err. False: there is nothing else to try, or
// trying would not help.
func (ch *chunk) again(err error) bool {
	f, s := ch.at, ch.ses.s
	kind := skep.KindOf(err)
	if len(f.copies) == 0 {
		return false
	}
	known := ch.trouble != nil
	if !known {
		ch.trouble = &troubles{}
	}
	before := len(ch.trouble.shun) + len(ch.trouble.bad)
	switch kind {
	case skep.Damaged:
		ch.noteWrong()
	case skep.DeviceFailed:
		for _, r := range ch.reads {
			// One that was left behind is its drive's still, error and all.
			if r.state.Load() == readDone && r.op.Err != nil && !slices.Contains(ch.trouble.shun, r.drive) {
				ch.trouble.shun = append(ch.trouble.shun, r.drive)
			}
		}
	}
	for _, b := range ch.temp {
		if b != nil {
			b.Release()
		}
	}
	ch.temp = nil
	var next error
	if len(ch.trouble.shun)+len(ch.trouble.bad) == before {
		next = err // nothing learnt: no second try would differ
	} else {
		ch.failed.Store(nil)
		ch.patient = true
		next = ch.prepare()
	}
	s.readFailed(ch, err, next == errNoCopy)
	return next == nil
}

// noteWrong finds every granule that is wrong, and the copies its bytes came from.
func (ch *chunk) noteWrong() {
	f := ch.at
	for _, s := range ch.spans {
		first, last := f.granules.Cover(s)
		at := 0
		for g := first; g <= last; g++ {
			span := f.granules.Span(g)
			if sum, ok := granuleSum(f.seed, g, span, ch.pieces, &at); ok && sum == f.sums[g] {
				continue
			}
			for i := range ch.pieces {
				p := &ch.pieces[i]
				from, to := max(span.Off, p.off), min(span.End(), p.off+int64(len(p.mem)))
				if from < to {
					ch.trouble.bad = append(ch.trouble.bad, bad{int(p.copy), layout.Span{Off: from, Len: to - from}})
				}
			}
			at = 0
		}
	}
}

// States of a read.
const (
	readPending int32 = iota
	readDone
	readLeaving // being left to the drive
	readBack    // it came back while it was being left
	readLeft    // to the drive, with its memory: its chunk reads elsewhere
)

// leave parts a read that takes too long from its chunk, when the chunk needs it no more
// or can read the same elsewhere. False: it has ended, or has to wait; with dead, a chunk
// that would have to wait is answered as a miss. Only the health goroutine calls it; queued
// says that the read has not been given to the drive, and is out of its queue.
func (ch *chunk) leave(r *read, queued, dead bool) bool {
	// From here on the read does not end, and with it the chunk: both stay as they are.
	if !r.state.CompareAndSwap(readPending, readLeaving) {
		return false
	}
	remain := func() bool {
		if dead && !queued {
			ch.giveUp() // before the read may end: then its chunk might be trying another copy
		}
		r.stay()
		return false
	}
	if ch.cancelled.Load() {
		if !ch.ownMemory(r) {
			return remain()
		}
		ch.orphan(r, queued)
		r.end(errCancelled)
		return true
	}
	fresh, ok := ch.elsewhere(r)
	if !ok {
		return remain()
	}
	ch.orphan(r, queued)
	ch.ses.s.count.readAround.Add(int64(len(fresh)))
	ch.left.Add(int32(len(fresh)) - 1)
	for _, n := range fresh {
		n.read.temp = [2]int{len(ch.temp), len(ch.temp) + 1}
		ch.temp = append(ch.temp, n.buf)
		p := &ch.pieces[n.piece]
		p.mem, p.page, p.copy, p.read = n.lands.mem, n.lands.page, n.copy, n.read
		ch.reads = append(ch.reads, n.read)
	}
	for _, n := range fresh {
		n.read.drive.add([]*read{n.read})
	}
	return true
}

// ownMemory says that no byte of r goes to the caller's memory.
func (ch *chunk) ownMemory(r *read) bool {
	for i := range ch.pieces {
		if p := &ch.pieces[i]; p.read == r && p.inPlace {
			return false
		}
	}
	return r.temp[1] > r.temp[0]
}

// orphan gives the read the memory the drive may still write to, until it has come back;
// back says that the drive never had it.
func (ch *chunk) orphan(r *read, back bool) {
	for i := r.temp[0]; i < r.temp[1] && i < len(ch.temp); i++ {
		if ch.temp[i] != nil {
			r.orphans = append(r.orphans, ch.temp[i])
			ch.temp[i] = nil
		}
	}
	if back || !r.state.CompareAndSwap(readLeaving, readLeft) {
		r.dropOrphans()
	}
}

// came is called when the drive is done with the read. False: its chunk has read
// elsewhere.
func (r *read) came() bool {
	if r.state.CompareAndSwap(readPending, readDone) {
		return true
	}
	if !r.state.CompareAndSwap(readLeaving, readBack) {
		r.dropOrphans()
	}
	return false
}

// stay takes back that the read is being left. When it came back meanwhile, it ends now.
func (r *read) stay() {
	if !r.state.CompareAndSwap(readLeaving, readPending) {
		r.state.Store(readDone)
		r.end(r.op.Err)
	}
}

// dropOrphans releases memory whose read has come back at last.
func (r *read) dropOrphans() {
	for _, b := range r.orphans {
		b.Release()
	}
	r.orphans = nil
}

// detour is a piece that is read elsewhere.
type detour struct {
	piece int
	copy  uint8
	lands piece
	buf   *memory.Buffer
	read  *read
}

// elsewhere prepares the reads of r's pieces from other drives.
func (ch *chunk) elsewhere(r *read) (fresh []detour, ok bool) {
	f := ch.at
	if len(f.copies) < 2 || !ch.ownMemory(r) {
		return nil, false
	}
	defer func() {
		if !ok {
			for _, n := range fresh {
				n.buf.Release()
			}
			fresh = nil
		}
	}()
	var lists [skep.MaxCopies][]layout.Read
	for i := range ch.pieces {
		p := &ch.pieces[i]
		if p.read != r {
			continue
		}
		var best *layout.Read
		cost := noPlace
		for c := range f.copies {
			if c == int(p.copy) {
				continue
			}
			if lists[c] == nil {
				lists[c] = f.copyReads(c, ch.spans)
			}
			for k := range lists[c] {
				l := &lists[c][k]
				if off, _ := f.landing(l); off != p.off || f.group.drives[l.Device] == r.drive || ch.trouble.wrong(c, layout.Span{Off: l.PartOff, Len: l.Len}) {
					continue
				}
				if n := ch.trouble.costOf(f.group.drives[l.Device]); n < cost {
					best, cost = l, n
				}
			}
		}
		if best == nil {
			return fresh, false
		}
		n := best.Pages * layout.PageSize
		buf, err := ch.ses.s.arena.TryAlloc(n, memory.BudgetIO)
		if err != nil {
			return fresh, false
		}
		d := f.group.drives[best.Device]
		nr := &read{ch: ch, drive: d, priority: ch.chain.Priority, bytes: int64(n)}
		mem := buf.Bytes()[:n]
		nr.op = device.Op{Kind: device.Read, Bufs: append(nr.bufs[:0], mem), Done: nr.done,
			Offset: d.segmentOffset(f.group.segments[best.Device]) + int64(best.Page)*layout.PageSize}
		_, skip := f.landing(best)
		fresh = append(fresh, detour{i, uint8(best.Tag), f.pieceIn(mem, p.off, skip), buf, nr})
	}
	return fresh, len(fresh) > 0
}

// allHealthy says that no drive of the group needs to be read around.
func (g *group) allHealthy() bool {
	for _, d := range g.drives {
		if d.condition() != healthy {
			return false
		}
	}
	return true
}

// unitPlace is one unit of a block, in every copy it has.
type unitPlace struct {
	off, n int64
	drives []int    // by copy: position in the group
	pages  []uint32 // by copy
	subs   []uint8  // by copy: where in its page a packed block begins
}

// unitsOf lists a block's units. stored is what one copy takes.
func unitsOf(copies []segment.Place, stored int64, drives int) []unitPlace {
	var out []unitPlace
	for c, p := range copies {
		loc := layout.Location{Group: p.Group, Page: p.Page, Device: p.Device, Sub: p.Sub}
		for i, e := range layout.Extents(nil, loc, stored, drives) {
			if c == 0 {
				out = append(out, unitPlace{off: e.Off, n: e.Len})
			}
			if i >= len(out) {
				break
			}
			out[i].drives = append(out[i].drives, e.Device)
			out[i].pages = append(out[i].pages, e.Page)
			out[i].subs = append(out[i].subs, p.Sub)
		}
	}
	return out
}

// survives says whether every unit has a copy on a drive for which alive is true, and
// whole whether all of them have all.
func survives(units []unitPlace, alive func(position int) bool) (readable, whole bool) {
	readable, whole = true, true
	for i := range units {
		n := 0
		for _, d := range units[i].drives {
			if alive(d) {
				n++
			}
		}
		readable = readable && n > 0
		whole = whole && n == len(units[i].drives)
	}
	return readable, whole
}
