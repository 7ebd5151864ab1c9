package restore

import (
	"errors"
	"slices"
	"sort"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/memory"
)

// workers check and copy what drives deliver, on a bounded set of goroutines: never
// on a device's, which has the next completions to take.
type workers struct {
	mu    locks.Mutex[locks.Workers]
	more  sync.Cond
	queue []*chunk
	at    int
	ended bool
	wait  sync.WaitGroup
}

func (w *workers) start(n int) {
	w.more.L = &w.mu
	for range n {
		w.wait.Add(1)
		go w.run()
	}
}

// add hands a chunk over. It does not block: how many can wait is bounded by the
// sessions' windows.
func (w *workers) add(ch *chunk) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended { // a drive gave it back after Close: it only has to let go of what it holds
		go ch.complete()
		return
	}
	w.queue = append(w.queue, ch)
	w.more.Signal()
}

func (w *workers) run() {
	defer w.wait.Done()
	for {
		w.mu.Lock()
		for w.at == len(w.queue) && !w.ended {
			w.more.Wait()
		}
		if w.at == len(w.queue) {
			w.mu.Unlock()
			return
		}
		ch := w.queue[w.at]
		w.queue[w.at] = nil
		if w.at++; w.at == len(w.queue) {
			w.queue, w.at = w.queue[:0], 0
		}
		w.mu.Unlock()
		ch.complete()
	}
}

// stop ends the workers once their queue is empty.
func (w *workers) stop() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.more.Broadcast()
	w.wait.Wait()
}

// complete takes a chunk whose reads are done to its end, or to its next copy.
func (ch *chunk) complete() {
	f := ch.at
	switch {
	case ch.cancelled.Load():
		ch.disband()
		ch.finish(errCancelled)
		return
	case f.Memory != nil:
		err := ch.fromMemory()
		if errors.Is(err, memory.ErrRevoked) {
			go ch.lookAgain(err) // it reads the catalog, and may wait for memory, which workers give back
			return
		}
		ch.finish(err)
		return
	case f.Inline != nil || f.Size == 0:
		ch.pieces = append(ch.pieces[:0], piece{off: 0, mem: f.Inline})
	}
	err := ch.check()
	if err == nil {
		if wrong := ch.unseal(); wrong != nil {
			ch.ses.rs.Source.Undecipherable(&ch.chain.Asked, f)
			ch.disband()
			ch.finish(wrong)
			return
		}
		ch.isolate()
		ch.out.Tier = skep.TierDevice
		ch.attachSums()
		ch.share()
		err = ch.deliver()
	}
	if err == errGone { // no other copy would have a place to go to
		ch.disband()
		ch.finish(err)
		return
	}
	if (skep.KindOf(err) == skep.Damaged || device.BadMemory(err)) && exposed(ch.pieces) && !ch.abandoned {
		ch.readPrivately()
		return
	}
	if err != nil && !ch.abandoned && ch.again(err) {
		return
	}
	ch.disband()
	ch.finish(err)
}

// check compares every granule that was read with its checksum.
func (ch *chunk) check() error {
	if e := ch.failed.Load(); e != nil {
		if skep.KindOf(*e) != skep.Other {
			return *e
		}
		return &skep.Error{Op: "restore", Kind: skep.DeviceFailed, Err: *e}
	}
	pieces := ch.pieces
	if !sort.SliceIsSorted(pieces, func(i, j int) bool { return pieces[i].off < pieces[j].off }) {
		sort.Slice(pieces, func(i, j int) bool { return pieces[i].off < pieces[j].off })
	}
	return ch.checkIn(pieces)
}

// checkIn is check of pieces, in order.
func (ch *chunk) checkIn(list []piece) error {
	if exposed(list) {
		return ch.touch(func() error { return ch.wrongIn(list) })
	}
	return ch.wrongIn(list)
}

func (ch *chunk) wrongIn(list []piece) error {
	for g := range ch.at.Sums.Wrong(ch.spans, pieces(list)) {
		return &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "granule", Value: g}
	}
	return nil
}

// deliver copies what was not read in place, or lends it.
func (ch *chunk) deliver() error {
	if ch.lends() {
		ch.lend()
		return nil
	}
	return ch.touch(func() error {
		for i := range ch.pieces {
			if p := &ch.pieces[i]; !p.inPlace {
				for _, s := range ch.spans {
					from, to := max(s.Off, p.off), min(s.End(), p.off+int64(len(p.mem)))
					if from < to {
						ch.copyOut(from, p.mem[from-p.off:to-p.off])
					}
				}
			}
		}
		return nil
	})
}

// copyOut copies bytes of the part from off to the destination.
func (ch *chunk) copyOut(off int64, src []byte) {
	ch.ses.rs.Count.Copied.Add(int64(len(src)))
	ch.chain.Copy(ch.at.Block, off, src)
}

// lend gives the chunk's reader the memory the bytes were read into.
func (ch *chunk) lend() {
	rs := ch.ses.rs
	bufs := slices.DeleteFunc(ch.temp, func(b *memory.Buffer) bool { return b == nil })
	ch.temp = nil
	whole := len(ch.spans) == 1 && ch.spans[0] == layout.Span{Off: 0, Len: ch.at.Size}
	if whole && len(bufs) > 0 && !ch.joined {
		if list := ch.inOrder(ch.pieces, bufs); list != nil {
			rs.admit(ch.at.FP, ch.at.At.Pack(), ch.chain.Part, ch.at.Size, list)
		}
	}
	ch.lendPieces(bufs)
}

// fromMemory copies or lends what the DRAM tier holds. It was checked when it came
// there.
func (ch *chunk) fromMemory() error {
	h := ch.at.Memory
	ch.out.Tier = skep.TierDRAM
	ch.attachSums()
	if ch.lends() {
		return ch.lendMemory(h)
	}
	err := h.Read(func(bufs [][]byte) error {
		ch.pieces = ch.pieces[:0]
		var off int64
		for _, b := range bufs {
			ch.pieces = append(ch.pieces, piece{off: off, mem: b})
			off += int64(len(b))
		}
		return ch.deliver()
	})
	ch.pieces = nil
	if err != nil && err != errGone { // errGone is of the destination
		return &skep.Error{Op: "restore", Kind: skep.Evicted, Err: err}
	}
	return err
}

func (ch *chunk) lendMemory(h *memory.Handle) error {
	bufs, err := h.Share()
	if err != nil {
		return &skep.Error{Op: "restore", Kind: skep.Evicted, Err: err}
	}
	var off int64
	for _, b := range bufs {
		mem := b.Bytes()
		mem = mem[:min(int64(len(mem)), ch.at.Size-off)]
		ch.pieces = append(ch.pieces, piece{off: off, mem: mem})
		off += int64(len(mem))
	}
	ch.lendPieces(bufs)
	return nil
}

// lendPieces gives the chunk's reader its pieces, which lie in bufs.
func (ch *chunk) lendPieces(bufs []*memory.Buffer) {
	for _, sp := range ch.spans {
		for i := range ch.pieces {
			p := &ch.pieces[i]
			from, to := max(sp.Off, p.off), min(sp.End(), p.off+int64(len(p.mem)))
			if from < to {
				ch.out.Data = append(ch.out.Data, p.mem[from-p.off:to-p.off])
			}
		}
	}
	ch.lent = ch.bytes
	ses, lent := ch.ses, ch.lent
	ch.out.Free = func() {
		memory.ReleaseAll(bufs)
		ses.returned(lent)
	}
}
