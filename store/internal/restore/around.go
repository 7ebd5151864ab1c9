package restore

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/memory"
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
	shun []Drive // reads from these failed
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

// costOf says what it costs to read from d: less is better, segio.NoPlace and above never.
func (t *troubles) costOf(d Drive) int {
	if t != nil && slices.Contains(t.shun, d) {
		return segio.NoPlace
	}
	return d.ReadCost()
}

// partSpan is what of the part a read brings.
func partSpan(r *layout.Read) layout.Span { return layout.Span{Off: r.PartOff, Len: r.Len} }

// copyReads are the reads of the chunk's spans from copy c.
func (f *Located) copyReads(c int, spans []layout.Span) []layout.Read {
	reads := layout.AppendReads(nil, f.Copies[c], f.Stripe.Len(), f.Stored, f.Offset, f.Sums.Granules, spans)
	for i := range reads {
		reads[i].Tag = uint32(c)
	}
	return reads
}

// chooseReads says where each piece of the chunk is read. The error is DeviceFailed when a
// piece lies only on drives that cannot be read, Damaged when all its copies were wrong.
func (ch *chunk) chooseReads() ([]layout.Read, error) {
	f := ch.at
	first := f.copyReads(0, ch.spans)
	if ch.trouble == nil && f.Stripe.Healthy() {
		return first, nil
	}
	lists := make([][]layout.Read, len(f.Copies))
	lists[0] = first
	for c := range f.Copies {
		if c > 0 {
			lists[c] = f.copyReads(c, ch.spans)
		}
		if len(lists[c]) != len(first) {
			return nil, &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "places of the copies"}
		}
	}
	chosen := make([]layout.Read, len(first))
	for i := range chosen {
		best, err := segio.Best(len(f.Copies), func(c int) bool { return ch.trouble.wrong(c, partSpan(&lists[c][i])) },
			func(c int) int { return ch.trouble.costOf(f.Stripe.Drive(lists[c][i].Device)) })
		if err != nil {
			return nil, err
		}
		chosen[i] = lists[best][i]
	}
	return chosen, nil
}

// again has another attempt after err under way, or about to be. False: there is none, and the chunk ends with err.
func (ch *chunk) again(err error) bool {
	kind := skep.KindOf(err)
	if len(ch.at.Copies) == 0 {
		return false
	}
	if ch.trouble == nil {
		ch.trouble = &troubles{}
	}
	before := len(ch.trouble.shun) + len(ch.trouble.bad)
	switch kind {
	case skep.Damaged:
		known := len(ch.trouble.bad)
		ch.noteWrong()
		ch.gaveWrong(known, len(ch.trouble.bad))
	case skep.DeviceFailed:
		for _, r := range ch.reads {
			// One that was left behind is its drive's still, error and all.
			if r.state.is() == readDone && r.op.Err != nil && !slices.Contains(ch.trouble.shun, r.drive) {
				ch.trouble.shun = append(ch.trouble.shun, r.drive)
			}
		}
	}
	if len(ch.trouble.shun)+len(ch.trouble.bad) == before { // nothing learnt: no second try would differ
		return ch.anew(err, err)
	}
	ch.unread()
	ch.patient = false
	next := ch.prepare()
	if next == memory.ErrScarce {
		go ch.againLater(err) // not on this worker: chunks that hold memory may wait for it
		return true
	}
	return ch.anew(err, next)
}

// againLater waits for the memory that another attempt after err needs.
func (ch *chunk) againLater(err error) {
	rs := ch.ses.rs
	next := rs.Scarce.Wait(ch.ses.ctx, rs.OpTimeout, func() error {
		ch.patient = true
		return ch.prepare()
	})
	if !ch.anew(err, next) {
		ch.abandon(err)
	}
}

// anew tells of the attempt that ended with err, and has the next one, that was prepared with error next, begin. False:
// there is none.
func (ch *chunk) anew(err, next error) bool {
	ch.ses.rs.Source.Failed(&ch.chain.Asked, ch.at, err, next == segio.ErrNoCopy)
	if next != nil {
		return false
	}
	for _, r := range ch.reads { // the list as it is now: the first to be added may bring about more
		queue(r.drive, r)
	}
	return true
}

// unread forgets an attempt that failed.
func (ch *chunk) unread() {
	for _, b := range ch.temp {
		if b != nil {
			b.Release()
		}
	}
	ch.temp = nil
	ch.failed.Store(nil)
}

// noteWrong finds every granule that is wrong, and the copies its bytes came from.
func (ch *chunk) noteWrong() {
	for _, span := range ch.at.Sums.Wrong(ch.spans, pieces(ch.pieces)) {
		for i := range ch.pieces {
			p := &ch.pieces[i]
			from, to := max(span.Off, p.off), min(span.End(), p.off+int64(len(p.mem)))
			if from < to {
				ch.trouble.bad = append(ch.trouble.bad, bad{int(p.copy), layout.Span{Off: from, Len: to - from}})
			}
		}
	}
}

// leave parts a read that takes too long from its chunk, when the chunk needs it no more
// or can read the same elsewhere. False: it has ended, or has to wait; with dead, a chunk
// that would have to wait is answered as a miss. Only the health goroutine calls it; queued
// says that the read has not been given to the drive, and is out of its queue.
func (ch *chunk) leave(r *read, queued, dead bool) bool {
	// From here on the read does not end, and with it the chunk: both stay as they are.
	if !r.state.leave() {
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
	ch.ses.rs.Count.ReadAround.Add(int64(len(fresh)))
	ch.left.Add(int32(len(fresh)) - 1)
	for _, n := range fresh {
		n.read.temp = [2]int{len(ch.temp), len(ch.temp) + 1}
		ch.temp = append(ch.temp, n.buf)
		p := &ch.pieces[n.piece]
		p.mem, p.page, p.copy, p.read = n.lands.mem, n.lands.page, n.copy, n.read
		ch.reads = append(ch.reads, n.read)
	}
	for _, n := range fresh {
		queue(n.read.drive, n.read)
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
// queued says that the drive never had it.
func (ch *chunk) orphan(r *read, queued bool) {
	var bufs []*memory.Buffer
	for i := r.temp[0]; i < r.temp[1] && i < len(ch.temp); i++ {
		if ch.temp[i] != nil {
			bufs = append(bufs, ch.temp[i])
			ch.temp[i] = nil
		}
	}
	r.kept = bufs
	if queued || r.state.part() {
		memory.ReleaseAll(bufs)
	}
}

// came is called when the drive is done with the read. False: its chunk has read
// elsewhere, or the one that was about to leave it ends it.
func (r *read) came() bool {
	ended, free := r.state.came()
	if free {
		memory.ReleaseAll(r.kept)
	}
	return ended
}

// stay takes back that the read is being left. When it came back meanwhile, it ends now.
func (r *read) stay() {
	if r.state.stay() {
		r.end(r.op.Err)
	}
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
	if len(f.Copies) < 2 || !ch.ownMemory(r) {
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
		var same [skep.MaxCopies]*layout.Read // the same bytes, by copy
		for c := range f.Copies {
			if lists[c] == nil {
				lists[c] = f.copyReads(c, ch.spans)
			}
			k := slices.IndexFunc(lists[c], func(l layout.Read) bool { off, _ := f.landing(&l); return off == p.off })
			if k >= 0 && c != int(p.copy) && f.Stripe.Drive(lists[c][k].Device) != r.drive {
				same[c] = &lists[c][k]
			}
		}
		c, err := segio.Best(len(f.Copies), func(c int) bool { return same[c] == nil || ch.trouble.wrong(c, partSpan(same[c])) },
			func(c int) int { return ch.trouble.costOf(f.Stripe.Drive(same[c].Device)) })
		if err != nil {
			return fresh, false
		}
		best := same[c]
		n := best.Pages * layout.PageSize
		buf, err := ch.ses.rs.Arena.TryAlloc(n, memory.BudgetIO)
		if err != nil {
			return fresh, false
		}
		d := f.Stripe.Drive(best.Device)
		nr := &read{ch: ch, drive: d, priority: ch.priority, bytes: int64(n)}
		mem := buf.Bytes()[:n]
		nr.op = device.Op{Kind: device.Read, Bufs: append(nr.bufs[:0], mem), Done: nr.done,
			Offset: pageOffset(f.Stripe, best.Device, best.Page)}
		_, skip := f.landing(best)
		fresh = append(fresh, detour{i, uint8(best.Tag), f.pieceIn(mem, p.off, skip), buf, nr})
	}
	return fresh, len(fresh) > 0
}
