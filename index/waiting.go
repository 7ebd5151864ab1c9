package index

import "slices"

// Waiting is the order in which accepted blocks leave DRAM: which run of which chain is
// decided on next. It knows sizes and parents, neither bytes nor drives.
//
// Blocks leave in the order they came, a put's run of a chain together, because the
// decision is by chain. Two kinds do not wait their turn: used blocks are proven and go
// to the drives as soon as the budget allows, with the ancestors that still wait, which
// leaves the room to blocks that are not; and partial tails, which are hardly ever asked for again, leave
// first when there is a budget to keep.
//
// It is not safe for concurrent use.
type Waiting struct {
	blocks map[Fingerprint]*waiter
	order  ring      // that wait their turn, oldest first
	proven ring      // used
	tails  []*waiter // partial tails among order's, oldest first, and some that have left
	bytes  int64
}

type waiter struct {
	fp, parent Fingerprint
	hasParent  bool
	bytes      int64
	partial    bool
	used       bool
	in         *ring
	prev, next *waiter
}

// ring is a list with a sentinel, so that any element leaves it in constant time.
type ring struct {
	root waiter
	n    int
}

func (r *ring) init() { r.root.prev, r.root.next = &r.root, &r.root }

func (r *ring) push(w *waiter) {
	w.in, w.prev, w.next = r, r.root.prev, &r.root
	w.prev.next, w.next.prev = w, w
	r.n++
}

func (w *waiter) leave() {
	w.prev.next, w.next.prev = w.next, w.prev
	w.in.n--
	w.in, w.prev, w.next = nil, nil, nil
}

func (r *ring) first() *waiter {
	if r.n == 0 {
		return nil
	}
	return r.root.next
}

// NewWaiting makes an empty one.
func NewWaiting() *Waiting {
	w := &Waiting{blocks: map[Fingerprint]*waiter{}}
	w.order.init()
	w.proven.init()
	return w
}

// WaitingBlock is a block as Add takes and the other methods give it.
type WaitingBlock struct {
	FP, Parent Fingerprint
	HasParent  bool
	Bytes      int64
	Partial    bool
	Used       bool
}

// Add enters an accepted block, in place of one of the same key. Blocks of a chain are
// added first block first.
func (w *Waiting) Add(b WaitingBlock) {
	w.Remove(b.FP)
	x := &waiter{fp: b.FP, parent: b.Parent, hasParent: b.HasParent, bytes: b.Bytes, partial: b.Partial}
	w.blocks[b.FP] = x
	w.bytes += b.Bytes
	w.order.push(x)
	if b.Partial {
		if len(w.tails) > 2*len(w.blocks) {
			w.tails = slices.DeleteFunc(w.tails, w.notWaiting)
		}
		w.tails = append(w.tails, x)
	}
	if b.Used {
		w.Use(b.FP)
	}
}

// Use notes a use of a block and says whether it is news. The block and those of its
// ancestors that wait are proven.
func (w *Waiting) Use(fp Fingerprint) bool {
	x := w.blocks[fp]
	if x == nil || x.used {
		return false
	}
	var chain []*waiter
	for x != nil && !x.used {
		x.used = true // also ends a circle of parents, which a hostile client can make
		chain = append(chain, x)
		if !x.hasParent {
			break
		}
		x = w.blocks[x.parent]
	}
	for i := len(chain) - 1; i >= 0; i-- { // ancestors first
		x := chain[i]
		x.leave()
		w.proven.push(x)
	}
	return true
}

// Remove takes a block out: it was deleted, or written on another way.
func (w *Waiting) Remove(fp Fingerprint) {
	if x := w.blocks[fp]; x != nil {
		w.take(x)
	}
}

func (w *Waiting) take(x *waiter) WaitingBlock {
	x.leave()
	delete(w.blocks, x.fp)
	w.bytes -= x.bytes
	return WaitingBlock{x.fp, x.parent, x.hasParent, x.bytes, x.partial, x.used}
}

// Has says whether a block waits.
func (w *Waiting) Has(fp Fingerprint) bool { return w.blocks[fp] != nil }

// Len and Bytes are what waits.
func (w *Waiting) Len() int     { return len(w.blocks) }
func (w *Waiting) Bytes() int64 { return w.bytes }

// Proven takes out used blocks, ancestors first, of up to so many bytes and blocks; at
// least one when there is one.
func (w *Waiting) Proven(blocks int, bytes int64, dst []WaitingBlock) []WaitingBlock {
	for x := w.proven.first(); x != nil && blocks > 0; x = w.proven.first() {
		if bytes -= x.bytes; bytes < 0 && len(dst) > 0 {
			break
		}
		blocks--
		dst = append(dst, w.take(x))
	}
	return dst
}

// notWaiting says that x has left, or does not wait its turn any more.
func (w *Waiting) notWaiting(x *waiter) bool { return x.in != &w.order }

// Next takes out what leaves next: with tailsFirst the oldest partial tail, if there is
// one, else the oldest block with those that follow it in its chain and came right after
// it, up to so many. Nothing when only proven blocks are left, or none.
func (w *Waiting) Next(blocks int, tailsFirst bool, dst []WaitingBlock) []WaitingBlock {
	for tailsFirst && len(w.tails) > 0 {
		x := w.tails[0]
		w.tails = w.tails[1:]
		if !w.notWaiting(x) {
			return append(dst, w.take(x))
		}
	}
	x := w.order.first()
	if x == nil {
		return w.Proven(1, 0, dst)
	}
	for x != nil && blocks > 0 {
		b := w.take(x)
		dst = append(dst, b)
		blocks--
		if x = w.order.first(); x == nil || !x.hasParent || x.parent != b.FP {
			break
		}
	}
	return dst
}
