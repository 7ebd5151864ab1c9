package restore

import (
	"github.com/skepkv/skep/layout"
)

// landing is where in the part what a read brings begins, and how far into what it brings.
// What is before it in a page belongs to others, where the block is packed; else it is of
// the part, too.
func (f *Located) landing(r *layout.Read) (off int64, skip int) {
	if f.Packed {
		return r.PartOff, r.Skip
	}
	return r.PartOff - int64(r.Skip), 0
}

// pieceIn is the piece of the part from off that mem, whole pages, holds after skip.
func (f *Located) pieceIn(mem []byte, off int64, skip int) piece {
	p := piece{off: off, mem: mem[skip : skip+int(min(int64(len(mem)-skip), f.Size-off))]}
	if f.Packed {
		p.page = mem
	}
	return p
}

// isolate moves the bytes of a packed block to the start of the page they were read in,
// and clears the rest of it: that memory may be lent, or kept.
func (ch *chunk) isolate() {
	if !ch.at.Packed {
		return
	}
	for i := range ch.pieces {
		if p := &ch.pieces[i]; p.page != nil {
			n := copy(p.page, p.mem)
			clear(p.page[n:])
			p.mem, p.page = p.page[:n], nil
		}
	}
}

// unseal decrypts what was read of a chunk, once it was checked. The error is of kind
// Damaged; what was read is of no use then.
func (ch *chunk) unseal() error {
	f := ch.at
	if f.Opener == nil {
		return nil
	}
	return f.Opener.Open(f.Sums.Granules, ch.spans, pieces(ch.pieces))
}

// gaveWrong counts against their drives the reads that brought wrong granules. Only memory of
// the store counts: what lies in a caller's may have been changed by the caller.
func (ch *chunk) gaveWrong(from, to int) {
	for _, b := range ch.trouble.bad[from:to] {
		for i := range ch.pieces {
			p := &ch.pieces[i]
			if !p.inPlace && p.read != nil && int(p.copy) == b.copy && p.off < b.span.End() && b.span.Off < p.off+int64(len(p.mem)) {
				p.read.gaveWrong()
			}
		}
	}
}

// gaveWrong counts a read once, however much of it was wrong.
func (r *read) gaveWrong() {
	if !r.wrong {
		r.wrong = true
		r.drive.GaveWrong()
	}
}
