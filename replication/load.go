package replication

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/copies"
	"github.com/skepkv/skep/replication/lent"
)

// load is one session on a node.
type load struct {
	*work
	x       *session
	cancel  context.CancelFunc // of its beginning
	request *skep.RestoreRequest
	lent    bool          // its server may write to the destinations by itself
	begun   chan struct{} // closed when ses is there, or will not be
	ses     skep.Session
	left    map[place]struct{} // chunks not answered
	failed  map[place]error    // those that another node is asked for when this one is done with
	done    chan struct{}      // closed when all is answered, and nothing is written any more
	watch                      // of nodes that are late; x.mu guards it
}

type place struct {
	block int
	layer int // of a chain that goes by layers
}

// load begins work. x.mu is held.
func (x *session) load(w *work) {
	l := &load{work: w, x: x, begun: make(chan struct{}), done: make(chan struct{}), left: map[place]struct{}{}}
	for _, p := range w.pieces {
		for b := p.from; b < p.to; b++ {
			l.left[l.chain.at(b, p.layers)] = struct{}{}
		}
	}
	// What is answered is not known to be over before the node says so, whoever has given up waiting meanwhile.
	ctx := context.Background()
	if !w.leased() { // what is leased is where it was, whatever a newer map says
		ctx = x.st.mark(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	l.cancel = cancel
	l.closing, l.quit = context.WithCancel(context.Background())
	x.loads[l] = struct{}{}
	x.counts(w, 1)
	x.lent += w.bytes
	if w.chain.plan != nil {
		w.chain.plan.Begun(w.node.i, len(l.left))
	}
	l.request = w.request(x.sums, 0)
	l.lent = lent.Lends(w.node.st, l.request)
	l.watched()
	go l.run(ctx, l.request)
}

// leased says whether the node has promised all of it.
func (w *work) leased() bool {
	return !slices.ContainsFunc(w.pieces, func(p piece) bool { return p.lease == 0 })
}

func (c *chain) at(block int, layers skep.Range) place {
	if c.Direction.ByLayer() {
		return place{block, layers.From}
	}
	return place{block, 0}
}

// run loads, and delivers what does not come as misses.
func (l *load) run(ctx context.Context, r *skep.RestoreRequest) {
	defer l.cancel()
	defer l.quit()
	quiet, behind, why := l.read(ctx, r)
	l.end(why, quiet)
	if behind && !l.x.st.start(l.closeBehind) {
		l.closeBehind()
	}
}

// end delivers what does not come as misses, or has another node asked for it.
func (l *load) end(why error, quiet bool) {
	x := l.x
	x.mu.Lock()
	defer x.mu.Unlock()
	rest := l.rest()
	l.unwatched(why, len(rest))
	for _, at := range rest {
		l.told(false)
		x.lent -= l.chain.each
		err := l.failed[at]
		if err == nil {
			err = why
		}
		first := cmp.Or(l.first[at], err)
		if p := l.piece(at); !quiet || !copies.Elsewhere(err) || !x.again(l.chain, p, l.node, at, first) {
			x.owed.Paid(l.node.i, l.chain.each)
			x.miss(l.chain, at.block, p.layers, first)
		}
	}
	delete(x.loads, l)
	if !quiet || skep.KindOf(why) == skep.NotReleased {
		x.doubts.Add(l.chain.number, l.node.st, l.ses, l.request)
	}
	x.counts(l.work, -1)
	if l.chain.plan != nil {
		l.chain.plan.Ended(l.node.i)
	}
	close(l.done)
	x.schedule()
	x.signal()
}

// told has the plan know that a chunk came from the node, or will not.
func (l *load) told(arrived bool) {
	if l.chain.plan != nil {
		l.chain.plan.Came(l.node.i, arrived)
	}
}

// rest is the chunks that are not answered, in order.
func (l *load) rest() []place {
	return slices.SortedFunc(maps.Keys(l.left), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.layer, b.layer), cmp.Compare(a.block, b.block))
	})
}

// piece is what a chunk is of.
func (l *load) piece(at place) *piece {
	for i := range l.pieces {
		if p := &l.pieces[i]; at.block >= p.from && at.block < p.to && l.chain.at(at.block, p.layers) == at {
			return p
		}
	}
	panic("a chunk of no piece")
}

// read reads the node's session to its end, and says why what is left does not come. quiet
// says that nothing of it is written any more; behind, that the session is yet to be closed.
func (l *load) read(ctx context.Context, r *skep.RestoreRequest) (quiet, behind bool, why error) {
	const op = "restore"
	s := l.x.st
	err := s.on(ctx, op, l.node, l.chain.space, false, func(ctx context.Context, id skep.NamespaceID) error {
		for i := range r.Chains {
			r.Chains[i].Namespace = id
		}
		ses, err := l.node.st.Restore(ctx, r)
		if err == nil {
			l.ses = ses
		}
		return err
	})
	close(l.begun)
	if l.ses == nil {
		return true, false, l.why(ctx, err)
	}
	var into [32]skep.Chunk
	for err == nil {
		var n int
		n, err = l.ses.Next(context.Background(), into[:])
		l.take(into[:n])
		clear(into[:n])
	}
	if l.letGo() {
		return true, true, l.why(ctx, err)
	}
	// A session that ended otherwise than it should may still be writing.
	left := l.ses.Close(l.closing)
	if left != nil && l.letGo() {
		return true, true, l.why(ctx, err)
	}
	if left != nil && errors.Is(err, io.EOF) {
		err = left
	}
	return left == nil, false, l.why(ctx, err)
}

// why is the reason that chunks which no node answered for are missed with.
func (l *load) why(ctx context.Context, err error) error {
	x := l.x
	x.mu.Lock()
	stopped, leaving := l.chain.stopped || x.closed, l.leaving
	x.mu.Unlock()
	switch {
	case leaving && !stopped && skep.KindOf(err) != skep.NotReleased:
		return l.late()
	case skep.KindOf(err) == skep.NotReleased: // so that nobody takes the memory for free
		return err
	case stopped || ctx.Err() != nil:
		return &skep.Error{Op: "restore", Kind: skep.Stopped}
	case err == nil || errors.Is(err, io.EOF):
		return &skep.Error{Op: "restore", Kind: skep.NotFound}
	case x.st.away(err):
		l.node.trips.Add(1)
		return l.node.missing("restore", err)
	case errors.Is(err, skep.StaleMap):
		x.st.start(func() { _ = x.st.learn(x.st.ctx, x.st.of.Epoch) })
		return l.node.missing("restore", err)
	}
	return err
}

// take queues chunks of the node as chunks of the caller's chain.
func (l *load) take(chunks []skep.Chunk) {
	x := l.x
	x.mu.Lock()
	defer x.mu.Unlock()
	l.heard()
	for i := range chunks {
		ch := chunks[i]
		if ch.Chain < 0 || ch.Chain >= len(l.pieces) {
			continue
		}
		p := &l.pieces[ch.Chain]
		ch.Chain, ch.Block = l.chain.number, ch.Block+p.head
		at := l.chain.at(ch.Block, ch.Layers)
		if _, ok := l.left[at]; !ok || l.failed[at] != nil {
			ch.Release()
			continue
		}
		if l.leaving && !l.chain.stopped && skep.KindOf(ch.Err) == skep.Stopped {
			ch.Err = l.late()
		} else if ch.Err != nil && x.st.away(ch.Err) {
			l.node.trips.Add(1)
			ch.Err = l.node.missing("restore", ch.Err)
		}
		if n, _ := x.further(l.chain, p); ch.Err != nil && copies.Elsewhere(ch.Err) && n != nil {
			if l.failed == nil {
				l.failed = map[place]error{}
			}
			l.failed[at] = ch.Err
			continue
		}
		l.told(ch.Err == nil)
		delete(l.left, at)
		x.owed.Paid(l.node.i, l.chain.each)
		if ch.Err != nil {
			x.lent -= l.chain.each
			ch.Err = cmp.Or(l.first[at], ch.Err)
			x.answer(l.chain, waiting{Chunk: ch})
			continue
		}
		x.st.hedges.Bytes.Earn(ch.Bytes)
		l.came(p)
		x.answer(l.chain, waiting{Chunk: ch, bytes: l.chain.each})
	}
}

// stop stops the load, and waits until nothing of it is written any more.
func (l *load) stop(ctx context.Context, op string) error {
	l.cancel() // where it has not begun, it does not begin
	select {
	case <-l.begun:
	case <-ctx.Done():
		return &skep.Error{Op: op, Kind: skep.NotReleased, Err: ctx.Err()}
	}
	if l.ses == nil {
		<-l.done // at once
		return nil
	}
	if err := l.ses.Stop(ctx, -1); skep.KindOf(err) == skep.NotReleased || err != nil && ctx.Err() != nil {
		select {
		case <-l.done: // it has ended by itself
			return nil
		default:
			return &skep.Error{Op: op, Kind: skep.NotReleased, Err: err}
		}
	}
	return nil
}
