package restore

import (
	"github.com/skepkv/skep/store/memory"
)

// Memory that others can write: what is read into it, and what follows from that. The rule is in
// doc.go.

// exposed says that some of what was read lies in memory that others can write.
func exposed(pieces []piece) bool {
	for i := range pieces {
		if pieces[i].inPlace {
			return true
		}
	}
	return false
}

// readPrivately reads a chunk again that was wrong where others can write.
func (ch *chunk) readPrivately() {
	ch.disband()
	ch.unread()
	ch.private = true
	go ch.ses.rs.issue([]*chunk{ch}) // it may wait for memory, which workers give back
}

// aside is a chunk's bytes, checked, in memory that nobody else can write.
type aside struct {
	pieces []piece
	bufs   []*memory.Buffer // they lie in
	own    []*memory.Buffer // of those, the ones a copy was made in
}

// aside gives ch's bytes where nobody else can write them: where they are, but for what was
// read straight into a destination, of which it makes a copy. False: there is no memory for
// that now, or what lies in the destination is not what was stored any more. REQUIRES: ch was
// checked. The caller releases it.
func (ch *chunk) aside(budget memory.Budget) (a aside, ok bool) {
	for _, b := range ch.temp {
		if b != nil {
			a.bufs = append(a.bufs, b)
		}
	}
	if !exposed(ch.pieces) {
		a.pieces = ch.pieces
		return a, true
	}
	arena := ch.ses.rs.Arena
	var lens []int
	for i := 0; i < len(ch.pieces); {
		if !ch.pieces[i].inPlace {
			a.pieces = append(a.pieces, ch.pieces[i])
			i++
			continue
		}
		off := ch.pieces[i].off
		end := off
		for ; i < len(ch.pieces) && ch.pieces[i].inPlace && ch.pieces[i].off == end; i++ {
			end += int64(len(ch.pieces[i].mem))
		}
		for _, n := range arena.Split(int(end - off)) { // neighbours together
			a.pieces = append(a.pieces, piece{off: off, inPlace: true})
			lens = append(lens, n)
			off += int64(n)
		}
	}
	var err error
	if a.own, err = arena.TryAllocVec(lens, budget); err != nil {
		return aside{}, false
	}
	err = ch.touch(func() error {
		next, from := 0, 0
		for i := range a.pieces {
			p := &a.pieces[i]
			if !p.inPlace {
				continue
			}
			p.mem, p.inPlace = a.own[next].Bytes(), false
			next++
			copyOf(p.mem, p.off, ch.pieces, &from)
		}
		return nil
	})
	a.bufs = append(a.bufs, a.own...)
	if err != nil || ch.checkIn(a.pieces) != nil { // what was copied is what is checked
		a.release()
		return aside{}, false
	}
	return a, true
}

// copyOf fills dst with the bytes of a part from off on, beginning at piece *from.
func copyOf(dst []byte, off int64, pieces []piece, from *int) {
	for len(dst) > 0 && *from < len(pieces) {
		p := &pieces[*from]
		if p.off+int64(len(p.mem)) <= off {
			*from++
			continue
		}
		n := copy(dst, p.mem[off-p.off:])
		dst, off = dst[n:], off+int64(n)
	}
}

func (a *aside) release() { memory.ReleaseAll(a.own) }
