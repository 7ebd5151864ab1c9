package replication

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/pace"
)

// A run of which nothing comes for longer than is usual is taken from its node, and what is left of it is loaded from
// another one, into the same memory: when the first node's session has surely ended, so no bytes are mixed. What is
// loaded anew is bounded (pace.Hedges). Of a slow node others, but for one now and then, are loaded elsewhere at once.

// watch is how a load's node keeps up.
type watch struct {
	call    *pace.Call // nil: nobody looks
	timer   *time.Timer
	leaving bool // what is left is to come from another node
	over    bool

	closing context.Context // of the session's end
	quit    context.CancelFunc
	letting sync.Mutex
	free    bool // the session writes nothing any more, and is not closed
}

// freer is a session that writes nothing any more when LetGo has returned true, although it has not ended.
type freer interface{ LetGo() bool }

// watched has somebody look whether the load is late. x.mu is held.
func (l *load) watched() {
	s := l.x.st
	if !s.paced(l.chain.space) {
		return
	}
	now := time.Now()
	if l.call = l.probe; l.call == nil {
		l.call = l.node.runs.Begin(now)
	}
	l.timer = time.AfterFunc(pace.Usual(now, s.lines(runLine)).Due(l.node.runs), l.look)
}

// heard notes that something came. x.mu is held.
func (l *load) heard() {
	if l.call != nil {
		l.call.Heard(time.Now())
	}
}

// unwatched ends that, and notes how the load went of which so many chunks did not come. x.mu is held.
func (l *load) unwatched(why error, left int) {
	l.over = true
	if l.call == nil {
		return
	}
	l.timer.Stop()
	l.call.End(time.Now(), !l.leaving && (left == 0 || !l.x.st.away(why)))
}

// taken is a run that was taken from a node, of which so many chunks have not come from another one yet.
type taken struct{ left int }

// came notes that a chunk of a piece did. x.mu is held.
func (l *load) came(p *piece) {
	if p.taken == nil {
		return
	}
	if p.taken.left--; p.taken.left == 0 && !l.leaving {
		l.x.st.hedges.Note(func(st *skep.HedgeStats) { st.RunsWon++ })
	}
}

// look looks whether the load is late, and takes what is left of it from the node.
func (l *load) look() {
	x := l.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if l.over || l.leaving || x.closed || l.chain.stopped {
		return
	}
	now := time.Now()
	silent, due := l.call.Silent(now), pace.Usual(now, x.st.lines(runLine)).Due(l.node.runs)
	if silent < due {
		l.timer.Reset(due - silent)
		return
	}
	for i := range l.pieces {
		if x.other(l.chain, &l.pieces[i]) == nil {
			return // nobody else has it, or they have been asked
		}
	}
	bytes := int64(len(l.left)-len(l.failed)) * l.chain.each // 0: only the session's end is late
	if l.node.behind.Full() || !x.st.hedges.Bytes.Take(bytes) {
		l.timer.Reset(due)
		return
	}
	l.leaving = true
	run := &taken{len(l.left)}
	for i := range l.pieces {
		l.pieces[i].moved, l.pieces[i].taken = true, run
	}
	if bytes > 0 {
		x.st.hedges.Note(func(st *skep.HedgeStats) { st.Runs, st.Bytes = st.Runs+1, st.Bytes+bytes })
	}
	x.st.start(l.leave)
}

// leave ends the load where it can be ended without the node, else with it.
func (l *load) leave() {
	if !l.lent {
		l.cancel() // where it has not begun, it does not begin
	}
	select {
	case <-l.begun:
	case <-l.x.st.ctx.Done():
		return
	}
	if f, ok := l.ses.(freer); ok {
		l.letting.Lock() // who sees that the session is over waits for why
		l.free = f.LetGo()
		l.letting.Unlock()
		if l.letGo() {
			l.quit() // who waits for the session's end
		}
	}
	if l.ses != nil && !l.letGo() {
		_ = l.stop(l.x.st.ctx, "restore")
	}
}

func (l *load) letGo() bool {
	l.letting.Lock()
	defer l.letting.Unlock()
	return l.free
}

// closeBehind closes the session, which nobody waits for.
func (l *load) closeBehind() {
	l.node.behind.Begin()
	defer l.node.behind.End()
	_ = l.ses.Close(l.x.st.ctx)
}

// late is why what a node was late with does not come from there.
func (l *load) late() error {
	return l.node.missing("restore",
		&skep.Error{Op: "restore", Kind: skep.Unavailable, Field: "next chunk", Value: "late", Limit: "as soon as usual"})
}

// slow says which nodes' runs are slow beside others'.
func (x *session) slow() []bool {
	lines := make([]*pace.Line, len(x.st.nodes))
	for _, n := range x.st.owner {
		lines[n.i] = n.runs
	}
	_, slow := pace.Compare(time.Now(), lines)
	return slow
}

// instead is the node that loads what is next in a slow node's lane; nil: its own. x.mu is held.
func (x *session) instead(c *chain, i int, slow []bool) *node {
	if !slow[i] || x.st.nodes[i].runs.Ready(time.Now()) {
		return nil
	}
	l := &c.lanes[i]
	n := x.other(c, &piece{span: l.spans[l.span]})
	if n == nil || slow[n.i] {
		return nil
	}
	return n
}

// move has work loaded from other nodes than its own. x.mu is held.
func (x *session) move(w *work) {
	own := &work{chain: w.chain, node: w.node, first: map[place]error{}}
	on := map[int]bool{}
	for _, p := range w.pieces {
		p.moved = true
		n, _ := x.further(w.chain, &p)
		for b := p.from; b < p.to; b++ {
			at := w.chain.at(b, p.layers)
			if n != nil && n != w.node && x.again(w.chain, &p, w.node, at, nil) {
				on[n.i] = true
				continue
			}
			q := p
			q.from, q.to, q.moved = b, b+1, false
			own.add(q)
			own.bytes += w.chain.each
		}
	}
	if len(own.pieces) > 0 {
		x.load(own)
	}
	for i := range on {
		x.tryAgain(i)
	}
}
