package restore

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/memory"
)

// Reads that a drive does not finish.
//
// A drive may hang on a read it was given, and write to that memory minutes later, right bytes or wrong ones. Where
// there is another copy, nothing is therefore read straight into the caller's memory: it goes to the store's own, is
// checked there and copied (Options.ReadInPlace says otherwise). Then a read that takes too long is left to the drive
// together with its memory, the same bytes are read elsewhere, and neither the chunk nor the caller's memory waits for
// the drive. Hedge says which reads take too long.

// leave parts a read that takes too long from its chunk, when the chunk needs it no more or can read the same
// elsewhere. False: it has ended, or has to wait; with dead, a chunk that would have to wait is answered as a miss.
// Only Hedge calls it, on the goroutine of package monitor; queued says that the read has not been given to the drive,
// and is out of its queue.
func (ch *chunk) leave(r *read, queued, dead bool) bool {
	// From here on the read does not end, and with it the chunk: both stay as they are.
	if !r.state.leave() {
		return false
	}
	remain := func() bool {
		if dead && !queued {
			ch.giveUp() // before the read may end: then its chunk might be trying another copy
			ch.disband()
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
		c, err := segio.Best(len(f.Copies),
			func(c int) bool { return same[c] == nil || ch.trouble.wrong(c, partSpan(same[c])) },
			func(c int) int { return ch.trouble.rankOf(f.Stripe.Drive(same[c].Device)) })
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
