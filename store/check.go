package store

import (
	"slices"
	"sort"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// workers check and copy what drives deliver, on a bounded set of goroutines: never
// on a device's, which has the next completions to take.
type workers struct {
	mu    sync.Mutex
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
	case f.memory != nil:
		ch.finish(ch.fromMemory())
		return
	case f.inline != nil || f.size == 0:
		ch.pieces = append(ch.pieces[:0], piece{off: 0, mem: f.inline})
	}
	err := ch.check()
	if err == nil {
		if wrong := ch.unseal(); wrong != nil {
			ch.ses.s.damaged(ch)
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
	if err == nil || ch.abandoned || !ch.again(err) {
		ch.disband()
		ch.finish(err)
		return
	}
	for _, r := range ch.reads { // the list as it is now: the first to be added may bring about more
		r.drive.add([]*read{r})
	}
}

// check compares every granule that was read with its checksum.
func (ch *chunk) check() error {
	if e := ch.failed.Load(); e != nil {
		if skep.KindOf(*e) != skep.Other {
			return *e
		}
		return &skep.Error{Op: "restore", Kind: skep.DeviceFailed, Err: *e}
	}
	f := ch.at
	pieces := ch.pieces
	if !sort.SliceIsSorted(pieces, func(i, j int) bool { return pieces[i].off < pieces[j].off }) {
		sort.Slice(pieces, func(i, j int) bool { return pieces[i].off < pieces[j].off })
	}
	next := 0 // first granule not checked
	at := 0   // piece that holds or precedes it
	for _, s := range ch.spans {
		first, last := f.granules.Cover(s)
		for g := max(first, next); g <= last; g++ {
			sum, ok := granuleSum(f.seed, g, f.granules.Span(g), pieces, &at)
			if !ok || sum != f.sums[g] {
				return &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "granule", Value: g}
			}
		}
		next = max(next, last+1)
	}
	return nil
}

// granuleSum hashes a granule out of the pieces it lies in, starting at piece *at.
func granuleSum(seed segment.Seed, g int, s layout.Span, pieces []piece, at *int) (uint64, bool) {
	for *at < len(pieces) && pieces[*at].off+int64(len(pieces[*at].mem)) <= s.Off {
		*at++
	}
	if *at == len(pieces) {
		return 0, false
	}
	if p := &pieces[*at]; p.off <= s.Off && p.off+int64(len(p.mem)) >= s.End() {
		return seed.Sum(g, p.mem[s.Off-p.off:s.End()-p.off]), true
	}
	var h segment.Hasher
	h.Reset(seed, g)
	off := s.Off
	for i := *at; i < len(pieces) && off < s.End(); i++ {
		p := &pieces[i]
		if p.off > off {
			return 0, false
		}
		if end := p.off + int64(len(p.mem)); end > off {
			to := min(end, s.End())
			h.Write(p.mem[off-p.off : to-p.off])
			off = to
		}
	}
	return h.Sum(), off == s.End()
}

// deliver copies what was not read in place, or lends it.
func (ch *chunk) deliver() error {
	c := ch.chain
	if c.Dest.Memory == nil && c.Dest.Paged == nil {
		ch.lend()
		return nil
	}
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
}

// copyOut copies bytes of the part from off to the destination.
func (ch *chunk) copyOut(off int64, src []byte) {
	c := ch.chain
	ch.ses.s.count.copied.Add(int64(len(src)))
	if m := c.Dest.Memory; m != nil {
		copy(m[int64(ch.at.block-c.blocks.From)*c.Dest.Stride+off:], src)
		return
	}
	shape := c.ns.info.Shape
	if shape.Kind == skep.Attention && c.Dest.Paged.Order != shape.Order {
		ch.transpose(off, src)
		return
	}
	slice := c.geometry.SliceBytes()
	for len(src) > 0 {
		n := copy(ch.pageAt(off), src[:min(int64(len(src)), slice-off%slice)])
		src = src[n:]
		off += int64(n)
	}
}

// transpose copies rows of one order to pages of the other: [head][token] to
// [token][head] or back.
func (ch *chunk) transpose(off int64, src []byte) {
	shape := ch.chain.ns.info.Shape
	row := int64(shape.HeadDim) * int64(shape.Element.Bits()) / 8
	slice := ch.chain.geometry.SliceBytes()
	inner := int64(shape.BlockTokens) // rows of the faster axis in the part
	outer := int64(shape.KVHeads)
	if shape.Order == skep.NHD {
		inner, outer = outer, inner
	}
	for len(src) > 0 {
		in := off % slice
		r := in / row
		to := (r%inner*outer+r/inner)*row + in%row
		n := copy(ch.pageAt(off - in)[to:], src[:min(int64(len(src)), row-in%row)])
		src = src[n:]
		off += int64(n)
	}
}

// lend gives the chunk's reader the memory the bytes were read into.
func (ch *chunk) lend() {
	s := ch.ses.s
	bufs := slices.DeleteFunc(ch.temp, func(b *memory.Buffer) bool { return b == nil })
	ch.temp = nil
	whole := len(ch.spans) == 1 && ch.spans[0] == layout.Span{Off: 0, Len: ch.at.size}
	for _, sp := range ch.spans {
		for i := range ch.pieces {
			p := &ch.pieces[i]
			from, to := max(sp.Off, p.off), min(sp.End(), p.off+int64(len(p.mem)))
			if from < to {
				ch.out.Data = append(ch.out.Data, p.mem[from-p.off:to-p.off])
			}
		}
	}
	if whole && len(bufs) > 0 && !ch.joined {
		if list := ch.inOrder(bufs); list != nil {
			s.admit(ch.at.fp, ch.at.loc.Pack(), ch.chain.part, ch.at.size, list)
		}
	}
	ch.lent = ch.bytes
	ses, lent := ch.ses, ch.lent
	ch.out.Free = func() {
		for _, b := range bufs {
			b.Release()
		}
		ses.returned(lent)
	}
}

// fromMemory copies or lends what the DRAM tier holds. It was checked when it came
// there.
func (ch *chunk) fromMemory() error {
	h := ch.at.memory
	ch.out.Tier = skep.TierDRAM
	ch.attachSums()
	if ch.chain.Dest.Memory == nil && ch.chain.Dest.Paged == nil {
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
	if err != nil {
		return &skep.Error{Op: "restore", Kind: skep.Evicted, Err: err}
	}
	return nil
}

func (ch *chunk) lendMemory(h *memory.Handle) error {
	bufs, err := h.Share()
	if err != nil {
		return &skep.Error{Op: "restore", Kind: skep.Evicted, Err: err}
	}
	var off int64
	for _, b := range bufs {
		mem := b.Bytes()
		mem = mem[:min(int64(len(mem)), ch.at.size-off)]
		ch.pieces = append(ch.pieces, piece{off: off, mem: mem})
		off += int64(len(mem))
	}
	for _, sp := range ch.spans {
		for _, p := range ch.pieces {
			from, to := max(sp.Off, p.off), min(sp.End(), p.off+int64(len(p.mem)))
			if from < to {
				ch.out.Data = append(ch.out.Data, p.mem[from-p.off:to-p.off])
			}
		}
	}
	ch.lent = ch.bytes
	ses, lent := ch.ses, ch.lent
	ch.out.Free = func() {
		for _, b := range bufs {
			b.Release()
		}
		ses.returned(lent)
	}
	return nil
}
