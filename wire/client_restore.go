package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

const opRestore = "restore"

// clientSession is a restore under way on a server.
//
// The connection's reader puts bytes where they belong and queues chunks; Next hands them out and gives the server
// credit for what it handed out. A chain that was stopped takes no more bytes: what comes for it is read and dropped.
// Since the answer to Stop comes on the same connection, behind everything sent before it, no byte is written to a
// stopped chain's destination once it is here.
type clientSession struct {
	c      *Client
	x      *clientConn // nil: there was none, everything is a miss
	id     uint64
	chains []*layout.ChainPlan
	window int64
	sums   bool         // chunks carry their checksums
	ring   *ringSession // nil: chunks come through the socket

	mu      sync.Mutex
	landed  chan struct{} // one token: something changed
	ready   []skep.Chunk
	got     [][]uint64 // bits: items answered, by chain
	left    int        // items not answered
	stopped []bool
	late    bool  // its answer did not come in time: the server may have begun it, and nothing of it is taken
	ended   error // no more will come; io.EOF when all came
	closed  bool
	owed    int64 // bytes handed out and not credited
	credit  int64 // bytes that may come
	landing bool  // the reader writes to a destination, and closes calm when it has
	calm    chan struct{}

	// The reader's own.
	now   arriving
	slots [][]byte
}

// arriving is the chunk of which pieces are coming in.
type arriving struct {
	open   bool
	chain  int
	item   int
	bytes  uint64 // of the whole chunk
	off    int64
	spans  []layout.Span
	data   []byte // memory of our own: the chunk is lent, or its rows are to be sorted
	drop   bool
	failed error
	sums   []skep.Sum // of what came so far, where they are asked for
}

// Restore implements skep.Restorer.
func (c *Client) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := c.open(ctx, opRestore); err != nil {
		return nil, err
	}
	s := &clientSession{c: c, landed: make(chan struct{}, 1), stopped: make([]bool, len(r.Chains)), window: c.opt.Window, sums: r.Sums}
	if r.Window > 0 {
		s.window = r.Window
	}
	for i := range r.Chains {
		ch := &r.Chains[i]
		n, err := c.namespace(ctx, opRestore, ch.Namespace)
		if err != nil {
			return nil, err
		}
		t, err := layout.PlanChain(ch, n.Shape)
		if err != nil {
			return nil, err
		}
		if !t.Structured || t.Layers.Len() == 1 {
			_ = t.Resolve(skep.TailFirst) // it comes in whole blocks either way
		}
		s.chains = append(s.chains, t)
	}
	err := s.start(ctx)
	switch {
	case err == nil:
		return s, nil
	case c.forgiven(ctx, err):
		if s.late && s.ring == nil {
			s.endBehind()
		}
		if !s.late || s.ring == nil { // else Close ends it: drives of the server may write to its destinations
			s.x, s.ring = nil, nil
		}
		s.lost(err)
		return s, nil
	case s.late:
		if s.ring != nil {
			s.c.shared.taint(s.x, s)
		}
		s.endBehind()
	}
	if left := s.standing(opRestore); left != nil {
		err = left
	}
	return nil, err
}

// endBehind ends, without a wait, a session that may have begun.
func (s *clientSession) endBehind() {
	x, id, ring := s.x, s.id, s.ring
	go func() {
		ctx, cancel := context.WithTimeout(x.c.ctx, x.c.opt.Patience)
		defer cancel()
		_, err := x.call(ctx, frames.TypeEnd, &frames.Number{N: id}, nil, nil)
		x.delist(id)
		switch {
		case ring != nil && err == nil:
			s.c.shared.over(s) // the server has released them after all
		case ring != nil:
			ring.forget()
		}
	}()
}

// start sends the request, again where the server did nothing.
func (s *clientSession) start(ctx context.Context) error {
	c := s.c
	sp := spec{t: frames.TypeRestore, op: opRestore, again: true}
	within, cancel := context.WithTimeout(ctx, c.opt.Timeout)
	defer cancel()
	m := &frames.CostedRestoreRequest{RestoreRequest: frames.RestoreRequest{Window: uint64(s.window)}}
	for try := 0; ; try++ {
		s.anew()
		x, err := c.pickFor(within, s)
		sent := false
		if err == nil {
			s.fill(m, x)
			sent, err = s.open(within, x, m)
		}
		if err == nil {
			return nil
		}
		wait, again := c.again(sp, err, sent)
		if !again || try >= c.opt.Retries || !paused(within, wait) {
			return c.verdict(ctx, within, sp, err)
		}
	}
}

// anew forgets what a try got before its answer was lost: the ring tells of chunks as soon as they land.
func (s *clientSession) anew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got, s.left, s.ready, s.ended = s.got[:0], 0, nil, nil
	for _, t := range s.chains {
		s.got = append(s.got, make([]uint64, (t.Chunks()+63)/64))
		s.left += t.Chunks()
	}
}

// pickFor is a connection for the session: the one the shared memory is attached to, when every destination lies in it.
func (c *Client) pickFor(ctx context.Context, s *clientSession) (*clientConn, error) {
	if c.shared == nil || !c.shared.holds(s.chains) {
		return c.pick(ctx)
	}
	return c.conn(ctx, 0)
}

// fill makes the request as it travels. Deadlines are told as what is left of them.
func (s *clientSession) fill(m *frames.CostedRestoreRequest, x *clientConn) {
	m.Chains, m.Compute = slices.Grow(m.Chains[:0], len(s.chains)), m.Compute[:0]
	m.Ring = s.c.shared != nil && s.c.shared.attachedTo(x) && s.c.shared.holds(s.chains)
	now := skep.Steady() // one for all: equal deadlines stay equal
	for i, t := range s.chains {
		if t.Compute != nil && x.hi.Features&frames.FeatureCompute != 0 {
			m.Compute = append(m.Compute, frames.ChainCompute{Chain: uint32(i), Compute: *t.Compute})
		}
		heads, _ := t.Heads.Bounds() // not empty: plan has looked
		rc := frames.RestoreChain{Scope: t.Scope, Part: t.Part, Direction: s.offer(t, x.hi.Features),
			Lease: uint64(t.Lease), Priority: t.Priority,
			Deadline: leftUntil(now, t.Deadline), Blocks: t.Blocks, Keys: t.Keys, Heads: heads}
		if t.Blocks.Len() == 0 {
			rc.Blocks = skep.Range{}
		}
		if t.Structured {
			rc.Layers = t.Layers
		}
		if m.Ring {
			s.c.shared.describe(&rc, t)
		}
		m.Chains = append(m.Chains, rc)
	}
}

// leftUntil is how far away t is, never 0 for one that is set.
func leftUntil(now, t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return cmp.Or(t.Sub(now), -1)
}

// open starts the session on a connection. It is listed there before the call is sent:
// chunks may come right behind the answer.
func (s *clientSession) open(ctx context.Context, x *clientConn, m *frames.CostedRestoreRequest) (sent bool,
	err error) {
	typ, body := m.Frame()
	p := &pendingCall{t: typ, reply: make(chan reply, 1)}
	id, err := x.enlist(p)
	if err != nil {
		return false, err
	}
	s.x, s.id, s.ring, s.credit = x, id, nil, s.window
	if m.Ring {
		s.c.shared.session(s)
	}
	x.mu.Lock()
	x.sessions[id] = s
	x.mu.Unlock()
	if err := x.post(ctx, frames.Header{Type: typ, Call: id, Deadline: deadlineOf(ctx)}, body, nil); err != nil {
		s.forget()
		var u *link.Unsent
		if errors.As(err, &u) {
			return false, u.Err
		}
		if skep.KindOf(err) == skep.Unavailable {
			x.end(err)
		}
		return skep.KindOf(err) != skep.Invalid, err
	}
	var r reply
	select {
	case r = <-p.reply:
	case <-ctx.Done():
		if s.tooLate(p) {
			return true, link.Ended(opRestore, ctx)
		}
		r = <-p.reply // it came this moment
	}
	if r.err != nil {
		s.forget()
		if r.lost && s.ring != nil { // the server may have begun it
			s.c.shared.taint(x, s)
		}
	}
	return true, r.err
}

// forget has nothing more that comes be the session's.
func (s *clientSession) forget() {
	s.x.delist(s.id)
	if s.ring != nil {
		s.ring.forget()
	}
}

// tooLate gives the answer up, unless it is here. Chunks come behind it, and the reader begins none
// of a session that is late: so nothing is in the middle of being written here.
func (s *clientSession) tooLate(p *pendingCall) bool {
	x := s.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pending[s.id] != p {
		return false
	}
	delete(x.pending, s.id)
	s.mu.Lock()
	s.late = true
	s.mu.Unlock()
	return true
}

func (s *clientSession) signal() {
	select {
	case s.landed <- struct{}{}:
	default:
	}
}

// answerLocked queues a chunk, once for each item. REQUIRES: s.mu.
func (s *clientSession) answerLocked(chain, item int, ch skep.Chunk) bool {
	word, bit := &s.got[chain][item/64], uint64(1)<<(item%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	s.left--
	ch.Chain = chain
	ch.Block, ch.Layers = s.chains[chain].Chunk(item)
	if s.closed {
		go ch.Release() // takes s.mu
		return true
	}
	s.ready = append(s.ready, ch)
	return true
}

func (s *clientSession) answer(chain, item int, ch skep.Chunk) error {
	s.mu.Lock()
	fresh := s.late || s.answerLocked(chain, item, ch)
	s.mu.Unlock()
	if !fresh {
		return frames.Broken("chunk", item, "each delivered once")
	}
	return nil
}

// consumed gives the server credit for bytes that are out of the way, a quarter of the
// window at a time. Next tries again what was not sent: the server may wait for it.
func (s *clientSession) consumed(n int64) {
	s.mu.Lock()
	s.owed += n
	give := s.owed
	if give < s.window/4 || s.closed || s.ended != nil {
		give = 0
	}
	s.owed, s.credit = s.owed-give, s.credit+give
	s.mu.Unlock()
	if give > 0 {
		go func() {
			if !s.x.credit(s.id, uint64(give)) {
				s.mu.Lock()
				s.owed, s.credit = s.owed+give, s.credit-give
				s.mu.Unlock()
				s.signal()
			}
		}()
	}
}

// Next implements skep.Session.
func (s *clientSession) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	if len(into) == 0 {
		return 0, skep.Invalidf("next", "room for chunks", 0, "at least 1")
	}
	for {
		s.mu.Lock()
		if s.closed || s.c.ctx.Err() != nil {
			s.mu.Unlock()
			s.signal()
			return 0, errSessionClosed
		}
		if n := copy(into, s.ready); n > 0 {
			clear(s.ready[:n])
			s.ready = s.ready[n:]
			s.mu.Unlock()
			s.signal()
			s.consumed(0)
			return n, nil
		}
		over := s.ended
		s.mu.Unlock()
		if over != nil {
			s.signal()
			return 0, s.released(ctx, over)
		}
		if ctx.Err() != nil {
			return 0, link.Ended(opRestore, ctx)
		}
		s.consumed(0) // for pieces of a chunk that is not whole yet
		select {
		case <-s.landed:
		case <-ctx.Done():
			return 0, link.Ended(opRestore, ctx)
		case <-s.c.ctx.Done():
		}
	}
}

// released is io.EOF once no drive of the server writes to the destinations any more: after the
// session's last entry of the ring that is so; after an error the server is asked to end it.
func (s *clientSession) released(ctx context.Context, why error) error {
	err := s.standing(opRestore) // of a try before the one that went well
	if s.ring != nil && !errors.Is(why, io.EOF) {
		err = s.release(ctx, opRestore, frames.TypeEnd, &frames.Number{N: s.id})
	}
	if err != nil {
		return err
	}
	return io.EOF
}

var errSessionClosed = &skep.Error{Op: "restore session", Kind: skep.Closed}

// ask carries out a call about the session on its connection.
func (s *clientSession) ask(ctx context.Context, t frames.Type, m frames.Message, out frames.Message) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	switch {
	case closed || s.c.ctx.Err() != nil:
		return errSessionClosed
	case ctx.Err() != nil: // nothing is claimed by who does not hear of it
		return link.Ended(t.String(), ctx)
	case s.x == nil:
		return link.ErrorOf(t.String(), skep.Unavailable)
	}
	within, cancel := context.WithTimeout(ctx, s.c.opt.Timeout)
	defer cancel()
	for try := 0; ; try++ {
		_, err := s.x.call(within, t, m, nil, out)
		if err == nil {
			return nil
		}
		wait, again := s.c.again(spec{}, err, true)
		// Who waits for a claim computes meanwhile.
		if !again || out != nil || try >= s.c.opt.Retries || !paused(within, wait) {
			return s.c.verdict(ctx, within, spec{op: t.String()}, err)
		}
	}
}

func (s *clientSession) checkChain(op string, chain int) error {
	if chain < 0 || chain >= len(s.chains) {
		return skep.Invalidf(op, "chain", chain, fmt.Sprintf("0 to %d", len(s.chains)-1))
	}
	return nil
}

// Stop implements skep.Session.
func (s *clientSession) Stop(ctx context.Context, chain int) error {
	const op = "stop"
	if chain != -1 {
		if err := s.checkChain(op, chain); err != nil {
			return err
		}
	}
	s.mu.Lock()
	for i := range s.stopped {
		s.stopped[i] = s.stopped[i] || chain == -1 || chain == i
	}
	over := s.closed || s.x == nil
	s.mu.Unlock()
	if over {
		return s.standing(op)
	}
	return s.release(ctx, op, frames.TypeStop, &frames.StopRequest{Session: s.id, Chain: chain})
}

// Close implements skep.Session.
func (s *clientSession) Close(ctx context.Context) error {
	const op = "close session"
	s.mu.Lock()
	was := s.closed
	s.closed = true
	for i := range s.ready {
		go s.ready[i].Release() // takes s.mu
	}
	s.ready = nil
	s.mu.Unlock()
	s.signal()
	if s.x == nil {
		return s.standing(op)
	}
	s.x.mu.Lock()
	listed := s.x.sessions[s.id] == s
	s.x.mu.Unlock()
	if was && !listed {
		return s.standing(op)
	}
	err := s.release(ctx, op, frames.TypeEnd, &frames.Number{N: s.id})
	if err == nil {
		s.forget()
	}
	if !was && s.ring != nil && skep.KindOf(err) == skep.NotReleased {
		go s.endLater()
	}
	return err
}

// endLater ends a session that its caller waits for no longer, so that what it was written to is lent again once the server
// is done with it. Where the connection breaks first, the next one settles that.
func (s *clientSession) endLater() {
	for !link.IsClosed(s.x.dead) && s.c.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(s.c.ctx, s.c.opt.Patience)
		_ = s.Close(ctx)
		said := ctx.Err() == nil
		if cancel(); said {
			return
		}
	}
}

// release carries out a call after which destinations are the caller's again. A connection that broke releases them
// too, once its reader has ended, unless drives of the server write to them.
func (s *clientSession) release(ctx context.Context, op string, t frames.Type, m frames.Message) error {
	for {
		_, err := s.x.call(ctx, t, m, nil, nil)
		switch k := skep.KindOf(err); {
		case err == nil, k == skep.Closed && s.c.ctx.Err() == nil && !link.IsClosed(s.x.dead): // or the server ended it
			if s.ring != nil && t == frames.TypeEnd {
				s.c.shared.over(s)
			}
			return s.standing(op)
		case ctx.Err() != nil:
			return &skep.Error{Op: op, Kind: skep.NotReleased, Err: ctx.Err()}
		case k == skep.Overloaded:
			select {
			case <-time.After(5 * time.Millisecond):
				continue
			case <-ctx.Done():
			}
		}
		select {
		case <-s.x.stopped:
			if s.ring != nil {
				return s.orphaned(op)
			}
			return s.standing(op)
		case <-s.x.dead:
			// Its reader ends at once: the socket is closed.
			select {
			case <-s.x.stopped:
				continue
			case <-ctx.Done():
			}
		case <-ctx.Done():
		default: // whatever else it is: the server has not said that it is done
			return &skep.Error{Op: op, Kind: skep.NotReleased, Err: err}
		}
		return &skep.Error{Op: op, Kind: skep.NotReleased, Err: ctx.Err()}
	}
}
