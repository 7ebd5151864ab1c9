package replication

import (
	"context"
	"errors"
	"io"

	"github.com/skepkv/skep"
)

// load is one session on a node.
type load struct {
	*work
	x      *session
	cancel context.CancelFunc // of its beginning
	begun  chan struct{}      // closed when ses is there, or will not be
	ses    skep.Session
	left   map[place]struct{} // chunks not answered
	done   chan struct{}      // closed when all is answered, and nothing is written any more
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
			l.left[l.place(b, p.layers)] = struct{}{}
		}
	}
	// What is answered is not known to be over before the node says so, whoever has given up waiting meanwhile.
	ctx, cancel := context.WithCancel(x.st.mark(context.Background()))
	l.cancel = cancel
	x.loads[l] = struct{}{}
	x.active[w.node.i]++
	x.lent += w.bytes
	request := w.request(x.sums, 0)
	go l.run(ctx, request)
}

func (l *load) place(block int, layers skep.Range) place {
	if l.chain.Direction.ByLayer() {
		return place{block, layers.From}
	}
	return place{block, 0}
}

// run loads, and delivers what does not come as misses.
func (l *load) run(ctx context.Context, r *skep.RestoreRequest) {
	defer l.cancel()
	why := l.read(ctx, r)
	x := l.x
	x.mu.Lock()
	defer x.mu.Unlock()
	for p := range l.left {
		layers := l.chain.Layers
		if l.chain.Direction.ByLayer() {
			layers = skep.Range{From: p.layer, To: p.layer + 1}
		}
		x.lent -= l.chain.each
		x.miss(l.chain, p.block, layers, why)
	}
	delete(x.loads, l)
	x.active[l.node.i]--
	close(l.done)
	x.schedule()
	x.signal()
}

// read reads the node's session to its end, and says why what is left does not come.
func (l *load) read(ctx context.Context, r *skep.RestoreRequest) error {
	const op = "restore"
	s := l.x.st
	err := s.on(ctx, op, l.node, l.chain.space, false, func(id skep.NamespaceID) error {
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
		return l.why(ctx, err)
	}
	var into [32]skep.Chunk
	for err == nil {
		var n int
		n, err = l.ses.Next(context.Background(), into[:])
		l.take(into[:n])
		clear(into[:n])
	}
	// A session that ended otherwise than it should may still be writing.
	if left := l.ses.Close(context.Background()); left != nil && errors.Is(err, io.EOF) {
		err = left
	}
	return l.why(ctx, err)
}

// why is the reason that chunks which no node answered for are missed with.
func (l *load) why(ctx context.Context, err error) error {
	x := l.x
	x.mu.Lock()
	stopped := l.chain.stopped
	x.mu.Unlock()
	switch {
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
	for i := range chunks {
		ch := chunks[i]
		if ch.Chain < 0 || ch.Chain >= len(l.pieces) {
			continue
		}
		p := &l.pieces[ch.Chain]
		ch.Chain, ch.Block = l.chain.number, ch.Block+p.head
		at := l.place(ch.Block, ch.Layers)
		if _, ok := l.left[at]; !ok {
			ch.Release()
			continue
		}
		delete(l.left, at)
		if ch.Err != nil {
			x.lent -= l.chain.each
			if x.st.away(ch.Err) {
				l.node.trips.Add(1)
				ch.Err = l.node.missing("restore", ch.Err)
			}
			x.answer(l.chain, waiting{Chunk: ch})
			continue
		}
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
