package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/epoch"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/near"
	"github.com/skepkv/skep/wire/recall"
	"github.com/skepkv/skep/wire/reuse"
)

// clientConn is one connection to a server.
type clientConn struct {
	c    *Client
	slot int
	l    *link.Link
	hi   frames.Welcome

	shown *Credentials
	taken *reuse.Attach // the server took the shared memory; nil: not with this connection. Guarded by that memory's mu

	dead    chan struct{} // closed by end
	stopped chan struct{} // closed by the reader as its last act: it writes to no destination any more

	heard   atomic.Int64 // when something came last, in nanoseconds of the pinger's clock
	leaving atomic.Bool  // it is retired: no new calls

	readers readers

	mu       sync.Mutex
	next     uint64
	err      error // why it ended
	moved    int64 // bytes, when it was looked at last
	looked   int64 // when that was; as heard
	pending  map[uint64]*pendingCall
	sessions map[uint64]*clientSession
	streams  map[uint64]*clientStream
}

type pendingCall struct {
	t     frames.Type
	reply chan reply
}

type reply struct {
	body []byte
	err  error
	lost bool // the connection broke: the server gave no answer
}

var started = time.Now()

func nanos() int64 { return int64(time.Since(started)) }

// maxReply is the longest body a client reads.
const maxReply = 64 << 20

// dialConn makes a connection, up to where the server has said hello.
func dialConn(ctx context.Context, c *Client, slot int, shows *Credentials) (*clientConn, error) {
	raw, err := c.dialRaw(ctx, shows.TLS)
	if err != nil {
		return nil, err
	}
	x := &clientConn{c: c, slot: slot, shown: shows, l: link.New(raw, c.opt.Patience, frames.SlowestRate),
		dead: make(chan struct{}), stopped: make(chan struct{}), pending: map[uint64]*pendingCall{},
		sessions: map[uint64]*clientSession{}, streams: map[uint64]*clientStream{}}
	// Numbers of two connections differ, so that what one left in the ring is not taken for the other's.
	x.readers.init()
	x.next = rand.Uint64() &^ (1<<32 - 1) >> 1
	if err := x.greet(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return x, nil
}

// begin reads what the server says from now on. The caller has the slot's turn.
func (x *clientConn) begin(ctx context.Context) {
	c := x.c
	c.met(&x.hi)
	x.heard.Store(nanos())
	c.wait.Add(1)
	go x.read()
	if c.shared != nil && x.slot == 0 {
		err := c.shared.attach(ctx, x)
		c.shared.noteWhy(err)
		if err != nil {
			c.log.Warn("shared memory not attached: restores go through the socket", "error", err)
		} else {
			c.shared.offerFiles(ctx, x)
		}
	}
}

func (c *Client) dialRaw(ctx context.Context, secure *tls.Config) (net.Conn, error) {
	if c.opt.Dialer != nil {
		return c.opt.Dialer(ctx)
	}
	dial := c.opt.DialContext
	if dial == nil {
		dial = near.Dial
	}
	if path, ok := strings.CutPrefix(c.opt.Addr, "unix:"); ok {
		return dial(ctx, "unix", path)
	}
	raw, err := dial(ctx, "tcp", c.opt.Addr)
	if err != nil {
		return nil, err
	}
	near.Tune(raw)
	if secure == nil {
		return raw, nil
	}
	conf := secure.Clone()
	if conf.ServerName == "" {
		conf.ServerName, _, _ = net.SplitHostPort(c.opt.Addr)
	}
	conf.MinVersion = tls.VersionTLS13
	t := tls.Client(near.Gather(raw), conf)
	if err := t.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return t, nil
}

// greet says hello and takes the answer.
func (x *clientConn) greet(ctx context.Context) error {
	// Not by the context's deadline, as near.Dial: the server would be to blame.
	defer x.l.Conn.SetDeadline(time.Time{})
	defer context.AfterFunc(ctx, func() { x.l.Conn.SetDeadline(time.Unix(1, 0)) })()
	m := &frames.Hello{Min: frames.Version, Max: frames.Version, Features: frames.Features, Client: x.c.id,
		Name: x.c.opt.Name, Token: x.shown.Token}
	if x.c.opt.CRC {
		m.Features &^= frames.FeatureXXH3
	}
	b, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeHello}, m)
	if err != nil {
		return err
	}
	if _, err := x.l.Conn.Write(b); err != nil {
		return err
	}
	h, err := x.l.HeaderWithin(ctx)
	var silent net.Error
	if errors.As(err, &silent) && silent.Timeout() && !errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("no answer to the hello (is this the port of the binary protocol?): %w", err)
	}
	if err != nil {
		return err
	}
	if h.Body > frames.MaxHello*4 || h.Payload != 0 {
		return frames.Broken("welcome length", h.Body, frames.MaxHello*4)
	}
	body := make([]byte, h.Body)
	if err := x.l.BodyWithin(ctx, &h, body); err != nil {
		return err
	}
	switch h.Type {
	case frames.TypeError:
		var e frames.ErrorBody
		if err := frames.Decode(h.Type, body, &e); err != nil {
			return err
		}
		return e.Err()
	case frames.TypeHello | frames.Answer:
		if err := frames.Decode(h.Type, body, &x.hi); err != nil {
			return err
		}
		if x.hi.MaxBody < frames.MaxHello || x.hi.MaxPayload < frames.PageSize {
			return frames.Broken("limits of the welcome", fmt.Sprint(x.hi.MaxBody, " ", x.hi.MaxPayload),
				fmt.Sprintf("at least %d and %d", frames.MaxHello, frames.PageSize))
		}
		return nil
	case frames.TypeGoodbye: // it was accepted just before the server began to stop
		return frames.ErrDraining
	}
	return frames.Broken("answer to the hello", h.Type, "a welcome")
}

func (x *clientConn) alive() bool {
	return !link.IsClosed(x.dead) && !x.leaving.Load()
}

// retire has a connection get no new calls, and end when nothing has been under way at two looks. No slot may have it
// any more, so it is looked after here.
func (x *clientConn) retire() {
	if x.leaving.Swap(true) {
		return
	}
	x.c.wait.Go(func() {
		look := time.NewTicker(max(x.c.opt.Silence/4, time.Millisecond))
		defer look.Stop()
		for quiet := false; ; x.checkLife(x.c.opt.Silence) {
			select {
			case <-look.C:
			case <-x.dead:
				return
			case <-x.c.ctx.Done():
				x.end(errClosed)
				return
			}
			x.mu.Lock()
			before := quiet
			quiet = x.quietLocked()
			x.mu.Unlock()
			if before && quiet {
				x.end(link.Gone("connection", errors.New("it is used no more")))
				return
			}
		}
	})
}

// end cuts the connection off: what waits for it is told err.
func (x *clientConn) end(err error) {
	x.mu.Lock()
	if x.err != nil {
		x.mu.Unlock()
		return
	}
	x.err = err
	pending := x.pending
	x.pending = map[uint64]*pendingCall{}
	for id := range pending { // a session without an answer may be begun again, elsewhere
		delete(x.sessions, id)
	}
	close(x.dead)
	x.mu.Unlock()
	x.l.Conn.Close()
	for _, p := range pending {
		p.reply <- reply{err: err, lost: true}
	}
}

// goodbye tells the server that this client needs its leases no more. It does not wait for the server.
func (x *clientConn) goodbye() {
	ctx, cancel := context.WithTimeout(context.Background(), x.c.leave)
	defer cancel()
	if b, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeGoodbye}, &frames.Goodbye{}); err == nil {
		_ = x.l.Send(ctx, b, nil)
		x.rouse() // the server closes
	}
}

// checkLife ends the connection when something is under way and the server has said
// nothing for too long, and pings it before that.
func (x *clientConn) checkLife(silence time.Duration) {
	x.mu.Lock()
	busy, now := !x.quietLocked(), nanos()
	// This process was stopped, and has read nothing.
	late := x.looked != 0 && time.Duration(now-x.looked) > max(silence/2, time.Second)
	x.looked = now
	if n := x.l.Progress(); n != x.moved || late { // in the middle of a long frame, too
		x.moved = n
		x.heard.Store(now)
	}
	x.mu.Unlock()
	quiet := time.Duration(now - x.heard.Load())
	switch {
	case !busy:
		// So that the first ping of a new call has its time.
		if quiet > silence/2 {
			x.heard.Store(nanos())
		}
	case quiet > silence:
		x.end(link.Gone("connection", errors.New("the server says nothing")))
		if !x.leaving.Load() { // else another one may answer
			x.c.guard.Silent()
		}
	case quiet > silence/4:
		go func() {
			ctx, cancel := context.WithTimeout(x.c.ctx, silence)
			defer cancel()
			_, _ = x.call(ctx, frames.TypePing, nil, nil, nil)
		}()
	}
}

var frameBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// call sends a call and waits for its answer. sent says that the server may have seen it.
func (x *clientConn) call(ctx context.Context, t frames.Type, m frames.Message, payload net.Buffers,
	out frames.Message) (sent bool, err error) {
	return x.carry(ctx, spec{t: t}, m, payload, out)
}

// carry is call as a spec says.
func (x *clientConn) carry(ctx context.Context, s spec, m frames.Message, payload net.Buffers,
	out frames.Message) (sent bool, err error) {
	t := s.t
	if x.hi.Features&s.needs != s.needs {
		return false, &skep.Error{Op: s.op, Kind: skep.Unsupported, Field: "server", Value: x.hi.Name,
			Limit: "one that knows the frame"}
	}
	p := &pendingCall{t: t, reply: make(chan reply, 1)}
	id, err := x.enlist(p)
	if err != nil {
		return false, err
	}
	if err := x.post(ctx, frames.Header{Type: t, Call: id, Deadline: deadlineOf(ctx)}, m, payload); err != nil {
		x.delist(id)
		var u *link.Unsent
		if errors.As(err, &u) {
			return false, u.Err
		}
		if skep.KindOf(err) == skep.Unavailable {
			x.end(err)
		}
		return skep.KindOf(err) != skep.Invalid, err
	}
	if readsOnly(t) {
		x.readOwn(ctx, p)
	}
	var r reply
	select {
	case r = <-p.reply:
	case <-ctx.Done():
		if s.lent == nil {
			x.delist(id)
			go x.cancelCall(id)
			return true, link.Ended(t.String(), ctx)
		}
		go x.cancelCall(id)
		late := time.NewTimer(x.c.opt.Patience)
		defer late.Stop()
		select {
		case r = <-p.reply:
		case <-late.C:
			x.delist(id)
			return true, notReleased(s.op)
		}
	}
	if r.err != nil {
		if s.lent != nil && r.lost {
			return true, notReleased(s.op)
		}
		return true, r.err
	}
	return true, frames.Decode(t|frames.Answer, r.body, out)
}

// enlist gives a call its number.
func (x *clientConn) enlist(p *pendingCall) (uint64, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		return 0, x.err
	}
	x.next++
	x.pending[x.next] = p
	return x.next, nil
}

// delist forgets a call, and the session that it began.
func (x *clientConn) delist(id uint64) {
	x.mu.Lock()
	delete(x.pending, id)
	delete(x.sessions, id)
	x.mu.Unlock()
}

// countingOf are the flags of a lookup that not all of Stats count.
func countingOf(ctx context.Context, t frames.Type) uint16 {
	switch {
	case skep.Counts(ctx), t != frames.TypeLookup && t != frames.TypeLookupRuns:
		return 0
	case skep.Reuses(ctx):
		return frames.FlagContinued
	}
	return frames.FlagUncounted
}

// post writes a frame, for whose answer the reader reads unless its caller does.
func (x *clientConn) post(ctx context.Context, h frames.Header, m frames.Message, payload net.Buffers) error {
	n := 0
	for _, p := range payload {
		n += len(p)
	}
	if n > int(x.hi.MaxPayload) { // what was cut for a server that maps it, or takes more
		return &link.Unsent{Err: link.Overloaded("length of the payload", time.Millisecond)}
	}
	h.Payload = uint32(n)
	if err := x.meant(ctx, h.Type); err != nil {
		return err
	}
	if x.hi.Features&frames.FeatureEpoch != 0 || epoch.IsBound(ctx) {
		if err := mark(ctx, &h); err != nil {
			return err
		}
	}
	if x.hi.Features&frames.FeatureUncounted != 0 {
		h.Flags |= countingOf(ctx, h.Type)
	}
	h.Flags |= recall.Flags(ctx, h.Type, x.hi.Features)
	buf := frameBuffers.Get().(*[]byte)
	defer frameBuffers.Put(buf)
	b, err := frames.AppendFrame((*buf)[:0], h, m)
	if err != nil {
		return err
	}
	if cap(b) <= 1<<20 {
		*buf = b
	}
	if len(b)-frames.HeaderSize > int(x.hi.MaxBody) {
		return skep.Invalidf(h.Type.String(), "request length in bytes", len(b)-frames.HeaderSize, x.hi.MaxBody)
	}
	err = x.l.Send(ctx, b, payload)
	if !readsOnly(h.Type) {
		x.rouse()
	}
	return err
}

// credit gives the server credit for a session or a stream, or 0: the ring. False: it was not sent, and is owed yet. It
// takes up to Options.Timeout where the socket is full: no caller's context cuts it off, which may end the connection.
func (x *clientConn) credit(id, n uint64) bool {
	ctx, cancel := context.WithTimeout(context.Background(), x.c.opt.Timeout)
	defer cancel()
	return x.post(ctx, frames.Header{Type: frames.TypeCredit}, &frames.Credit{Session: id, Amount: n}, nil) == nil
}

func (x *clientConn) cancelCall(id uint64) {
	ctx, cancel := context.WithTimeout(x.c.ctx, x.c.opt.Timeout)
	defer cancel()
	_ = x.post(ctx, frames.Header{Type: frames.TypeCancel}, &frames.Number{N: id}, nil)
}

// deadlineOf is what is left of ctx in milliseconds, rounded up; 0 when it has no end.
func deadlineOf(ctx context.Context) uint32 {
	t, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	ms := int64(time.Until(t)/time.Millisecond) + 1
	return uint32(min(max(ms, 1), math.MaxUint32))
}

// read takes frames until the connection ends.
func (x *clientConn) read() {
	defer x.c.wait.Done()
	var err error
	for err == nil {
		<-x.readers.turn
		err = x.frame()
		short := x.readers.short
		x.readers.turn <- struct{}{}
		if short && err == nil {
			x.rest()
		}
	}
	x.end(x.broke(err))
	x.mu.Lock()
	sessions, streams, why := x.sessions, x.streams, x.err
	x.sessions, x.streams = map[uint64]*clientSession{}, map[uint64]*clientStream{}
	x.mu.Unlock()
	close(x.stopped)
	for _, s := range sessions {
		s.lost(why)
	}
	for _, s := range streams {
		s.lost(why)
	}
}

// broke is what calls are told when reading failed with err.
func (x *clientConn) broke(err error) error {
	switch {
	case x.c.ctx.Err() != nil:
		return errClosed
	case skep.KindOf(err) == skep.Other:
		return link.Gone("connection", err)
	}
	return &skep.Error{Op: "connection", Kind: skep.Unavailable, Err: err}
}

// frame reads a frame and hands it to whom it belongs. REQUIRES: the turn (see readers).
func (x *clientConn) frame() error {
	h, err := x.l.Header(0)
	if err != nil {
		return err
	}
	x.heard.Store(nanos())
	if h.Body > maxReply {
		return frames.Broken("body length", h.Body, maxReply)
	}
	body := make([]byte, h.Body)
	if err := x.l.Body(&h, body); err != nil {
		return err
	}
	// A frame is judged before it takes its call off the list: end tells only those that are there.
	var e frames.ErrorBody
	switch {
	case h.Payload != 0 && h.Type != frames.TypeChunks:
		return frames.Broken("payload of "+h.Type.String(), h.Payload, 0)
	case h.Type == frames.TypeError:
		if err := frames.Decode(h.Type, body, &e); err != nil {
			return err
		}
	}
	x.mu.Lock()
	ses, str := x.sessions[h.Call], x.streams[h.Call]
	p := x.pending[h.Call]
	if p != nil && (h.Type == p.t|frames.Answer || h.Type == frames.TypeError) {
		delete(x.pending, h.Call)
	}
	x.mu.Unlock()
	x.readers.short = p != nil && readsOnly(p.t)
	switch {
	case h.Type == frames.TypeChunks:
		if ses == nil { // it was closed meanwhile
			return x.l.Discard(uint64(h.Payload))
		}
		if p != nil {
			return frames.Broken("chunks", h.Call, "behind the answer")
		}
		return ses.take(x.l, &h, body)
	case h.Type == frames.TypeEventBatch:
		if str == nil {
			return nil
		}
		return str.take(body)
	case h.Type == frames.TypeGoodbye:
		x.retire()
		return nil
	case h.Type == frames.TypeError:
		switch {
		case p != nil:
			p.reply <- reply{err: e.Err()}
		case ses != nil:
			ses.lost(e.Err())
		case str != nil:
			str.lost(e.Err())
		}
		return nil
	case p != nil && h.Type == p.t|frames.Answer:
		p.reply <- reply{body: body}
		return nil
	case h.Type&frames.Answer != 0:
		return nil // the call was given up
	}
	return frames.Broken("frame", h.Type, "an answer")
}
