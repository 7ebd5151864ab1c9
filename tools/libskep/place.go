package main

import "unsafe"

// maxPieces is the most pieces that the places of one operation are in.
const maxPieces = 1 << 20

// place is memory of the caller's for a block: pieces that have its bytes one after the other. None of a load: it is
// not asked for.
type place [][]byte

// inOne is a place of one piece for each block.
func inOne(blocks [][]byte) []place {
	out := make([]place, len(blocks))
	for i, b := range blocks {
		if b != nil {
			out[i] = blocks[i : i+1 : i+1]
		}
	}
	return out
}

// firsts are the first pieces of places that have one.
func firsts(places []place) [][]byte {
	out := make([][]byte, len(places))
	for i, p := range places {
		out[i] = p[0]
	}
	return out
}

func (p place) size() (n int64) {
	for _, b := range p {
		n += int64(len(b))
	}
	return n
}

// add adds a piece: to the one before it, where it lies right behind that.
func (p place) add(b []byte) place {
	if n := len(p); n > 0 && touch(p[n-1], b) {
		p[n-1] = unsafe.Slice(unsafe.SliceData(p[n-1]), len(p[n-1])+len(b))
		return p
	}
	return append(p, b)
}

// from is the place of a block's bytes from off on.
func (p place) from(off int64) place {
	for off > 0 && off >= int64(len(p[0])) {
		off, p = off-int64(len(p[0])), p[1:]
	}
	if off == 0 {
		return p
	}
	return append(place{p[0][off:]}, p[1:]...)
}

// fill copies a block to its place, of the same length.
func (p place) fill(block ...[]byte) {
	at, to := 0, []byte(nil)
	for _, b := range block {
		for len(b) > 0 {
			for len(to) == 0 {
				to, at = p[at], at+1
			}
			n := copy(to, b)
			b, to = b[n:], to[n:]
		}
	}
}

// gather copies a block from its place.
func (p place) gather(to []byte) {
	for _, b := range p {
		to = to[copy(to, b):]
	}
}

// scattered says whether a block is in several pieces.
func scattered(places []place) bool {
	for _, p := range places {
		if len(p) > 1 {
			return true
		}
	}
	return false
}
