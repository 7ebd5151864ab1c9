package replication

import (
	"slices"

	"github.com/skepkv/skep"
)

// other is the node that is asked next for a piece that its nodes so far did not give; nil: there is none.
func (x *session) other(c *chain, p *piece) *node {
	if p.also != nil {
		others := slices.DeleteFunc(slices.Clone(p.also), func(n *node) bool { return n == p.node })
		if p.tried < len(others) {
			return others[p.tried]
		}
		return nil
	}
	if x.st.copies(c.space) == 1 {
		return nil
	}
	return x.st.other(c.space, c.Salt, c.Keys[p.head], p.node, p.tried)
}

// further is the node that is asked next for a piece, with what of the piece is otherwise there; nil: there is none.
func (x *session) further(c *chain, of *piece) (n *node, p piece) {
	p = *of
	if p.tried == 0 {
		p.promise = p.lease
	}
	if n = x.other(c, of); n != nil {
		p.lease, p.tried = 0, of.tried+1
		return n, p
	}
	if of.moved {
		p.lease, p.moved, p.taken = p.promise, false, nil
		return of.node, p
	}
	return nil, p
}

// again has a chunk of a piece loaded from another node of its group, into the same place: nobody writes there any more.
// from owes it, first is why it did not come from the first one. False: there is no such node. x.mu is held.
func (x *session) again(c *chain, of *piece, from *node, at place, first error) bool {
	n, p := x.further(c, of)
	if n == nil || x.closed {
		return false
	}
	p.from, p.to = at.block, at.block+1
	var w *work
	if list := x.retry[n.i]; len(list) > 0 {
		w = list[len(list)-1]
	}
	if w == nil || w.chain != c || w.bytes+c.each > x.most() ||
		len(w.pieces) == workPieces || len(w.first) == workChunks {
		w = &work{chain: c, node: n, first: map[place]error{}}
		x.retry[n.i] = append(x.retry[n.i], w)
	}
	w.add(p)
	w.bytes += c.each
	x.owed.Moves(from.i, n.i, c.each)
	if first != nil {
		w.first[at] = first
	}
	return true
}

// tryAgain begins what a node is asked for in place of another one. x.mu is held.
func (x *session) tryAgain(i int) {
	list := x.retry[i]
	x.retry[i] = list[:0]
	for _, w := range list {
		switch c, gone := w.chain, w.chain.gone(x.now); {
		case gone != 0:
			for _, p := range w.pieces {
				x.owed.Paid(i, c.each*int64(p.to-p.from))
				for b := p.from; b < p.to; b++ {
					x.miss(c, b, p.layers, &skep.Error{Op: "restore", Kind: gone})
				}
			}
		case len(x.retry[i]) > 0 || x.busy(c, i) || len(x.ready) >= mostReady || x.full(c): // each in its turn
			x.retry[i] = append(x.retry[i], w)
		default:
			x.load(w)
		}
	}
}
