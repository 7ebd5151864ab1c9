package server

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/epoch"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/recall"
)

// serverConn is one client's connection.
type serverConn struct {
	s      *Server
	l      *link.Link
	ctx    context.Context // ends with the connection
	cancel context.CancelCauseFunc

	who      auth.Identity
	memory   *auth.Held // its tenant's, as files
	files    *auth.Held
	client   clientID
	name     string // of the client, as it calls itself
	known    bool   // counted in Server.clients
	features uint32
	inVain   uint32      // the newest map that a request has waited for, and that did not come
	polite   atomic.Bool // the client said goodbye
	unwatch  func()      // ends the watch over the identity; nil: there is none yet

	answers chan struct{} // a token each: the calls whose answers are not written, twice Limits.Calls at most
	payload chan struct{} // one token: which session writes a frame of payload
	late    atomic.Bool   // the last such frame outlasted its turn

	wait  sync.WaitGroup // calls, sessions, streams
	under atomic.Int64   // frames being carried out, until their answers are written

	mu       sync.Mutex
	calls    map[uint64]context.CancelFunc // under way, by number
	sessions map[uint64]*serverSession
	streams  map[uint64]*serverStream
	writers  map[uint64]openBlock
	next     uint64 // number of the next writer
	region   *region
}

func newServerConn(s *Server, c net.Conn) *serverConn {
	x := &serverConn{s: s, l: link.New(c, s.opt.Limits.Stall, s.opt.Limits.Rate),
		calls:    map[uint64]context.CancelFunc{},
		sessions: map[uint64]*serverSession{}, streams: map[uint64]*serverStream{}, writers: map[uint64]openBlock{}}
	x.l.Files = link.NewFileReader(c)
	x.answers = make(chan struct{}, 2*s.opt.Limits.Calls)
	x.payload = make(chan struct{}, 1)
	x.payload <- struct{}{}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	return x
}

// run is the connection's reader, and its owner.
func (x *serverConn) run() {
	defer x.s.forget(x)
	err := x.greet()
	if err == nil {
		for err == nil {
			err = x.frame()
		}
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && x.ctx.Err() == nil {
		x.s.log.Debug("connection", "peer", x.l.Conn.RemoteAddr(), "tenant", x.who.Tenant, "error", err)
	}
	x.end(link.Gone("connection", err))
	if x.unwatch != nil {
		x.unwatch()
	}
	x.wait.Wait()
	x.mu.Lock()
	writers, r := x.writers, x.region
	x.writers, x.region = nil, nil
	x.mu.Unlock()
	for _, w := range writers {
		ctx, cancel := context.WithTimeout(context.Background(), x.s.opt.Limits.Stall)
		_ = w.Abort(ctx)
		cancel()
	}
	if r != nil {
		r.release()
	}
	x.l.Files.Drop()
	if x.known {
		x.memory.Give(int64(len(writers)) * writerBytes)
		x.files.Give(int64(filesOf(x.l.Conn)))
		x.who.Limits().Disconnect()
	}
}

// end cuts the connection off; its reader does the rest.
func (x *serverConn) end(why error) {
	x.cancel(why)
	x.l.Conn.Close()
}

// revokedGrace is how long a connection stays whose identity may do nothing any more, to be told so.
const revokedGrace = time.Second

// revoked ends what lasts longer than a call once the identity may do nothing any more, and then the connection. Calls
// are refused already.
func (x *serverConn) revoked() {
	denied := &skep.Error{Op: "connection", Kind: skep.Denied, Err: auth.ErrDenied}
	x.mu.Lock()
	for _, s := range x.sessions {
		s.cancel(denied)
	}
	for _, st := range x.streams {
		st.cancel(denied)
	}
	x.mu.Unlock()
	late := time.AfterFunc(revokedGrace, func() { x.end(denied) })
	context.AfterFunc(x.ctx, func() { late.Stop() })
}

// cutShort is why the context of a session or a stream ended, where its client is to be told.
func cutShort(ctx context.Context) error {
	if why := context.Cause(ctx); skep.KindOf(why) == skep.Denied {
		return why
	}
	return nil
}

// idle says that nothing is under way.
func (x *serverConn) idle() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.under.Load() == 0 && len(x.sessions) == 0
}

func (x *serverConn) sayGoodbye(after time.Duration) {
	_ = x.send(frames.Header{Type: frames.TypeGoodbye}, &frames.Goodbye{After: after, Reason: "shutting down"}, nil)
}

// greet reads the Hello and answers it. Until it has, nothing larger is read and nothing
// else is done.
func (x *serverConn) greet() error {
	lim := &x.s.opt.Limits
	late := time.AfterFunc(lim.Hello, func() { x.l.Conn.Close() }) // however it trickles in
	defer late.Stop()
	shown := auth.Presented{Protocol: "wire", Peer: x.l.Conn.RemoteAddr()}
	if t := tlsOf(x.l.Conn); t != nil {
		t.SetDeadline(time.Now().Add(lim.Hello))
		if err := t.HandshakeContext(x.ctx); err != nil {
			if d, ok := x.s.opt.Auth.(*auth.Directory); ok {
				d.DenyHandshake(shown.Protocol, shown.Peer, err)
			}
			return err
		}
		t.SetDeadline(time.Time{})
		st := t.ConnectionState()
		shown.TLS = &st
	}
	h, err := x.l.Header(lim.Hello)
	if err != nil {
		return err
	}
	if h.Type != frames.TypeHello || h.Body > frames.MaxHello || h.Payload != 0 {
		return frames.Broken("first frame", h.Type, "a hello of at most 8 KiB")
	}
	body := make([]byte, h.Body)
	if err := x.l.Body(&h, body); err != nil {
		return err
	}
	var m frames.Hello
	if err := frames.Decode(frames.TypeHello, body, &m); err != nil {
		return x.refuse(&h, err)
	}
	if m.Min > frames.Version || m.Max < frames.Version {
		return x.refuse(&h, &skep.Error{Op: "hello", Kind: skep.Version, Field: "protocol version",
			Value: skep.Range{From: int(m.Min), To: int(m.Max)}, Limit: frames.Version})
	}
	shown.Token = m.Token
	x.who, err = x.s.opt.Auth.Identify(x.ctx, shown)
	if err != nil {
		return x.refuse(&h, link.ErrorOf("hello", skep.Denied)) // why is nobody's business
	}
	if !x.who.Limits().Connect() {
		x.s.count.refused.Add(1)
		return x.refuse(&h, link.Overloaded("connections of the tenant", time.Second))
	}
	x.memory, x.files = x.s.memory.Of(x.who.Limits()), x.s.files.Of(x.who.Limits())
	if !x.files.Take(int64(filesOf(x.l.Conn))) {
		x.who.Limits().Disconnect()
		x.s.count.refused.Add(1)
		return x.refuse(&h, link.Overloaded("connections of the server, of which other tenants have a share",
			time.Second))
	}
	x.client, x.known = clientID{x.who.Tenant, m.Client}, true
	x.s.mu.Lock()
	x.s.clients[x.client]++
	x.s.mu.Unlock()
	x.unwatch = x.who.Until(x.revoked)
	x.name, x.features = m.Name, m.Features&frames.Features
	if x.s.cluster.Load() == nil {
		x.features &^= frames.FeatureEpoch
	}
	if x.s.opt.Node == "" {
		x.features &^= frames.FeatureNode
	}
	if x.s.opt.Cluster == "" {
		x.features &^= frames.FeatureCluster
	}
	x.l.Epochs = x.features&frames.FeatureEpoch != 0
	link.PassRights(x.l.Conn, true)
	if !late.Stop() {
		return link.ErrorOf("hello", skep.Deadline)
	}
	return x.send(frames.Header{Type: frames.TypeHello | frames.Answer, Call: h.Call},
		&frames.Welcome{Version: frames.Version, Features: x.features,
			Server: x.s.id, MaxBody: uint32(lim.Body), MaxPayload: uint32(lim.Payload), MaxKeys: uint32(lim.Keys),
			MaxCalls: uint32(lim.Calls), MaxWindow: uint64(lim.Window), Tenant: x.who.Tenant, Rights: uint8(x.who.Rights),
			Name: x.s.opt.Name, Node: x.s.opt.Node, Cluster: x.s.opt.Cluster,
			NodeID: x.s.nodeID()}, nil)
}

// refuse answers the Hello with an error and ends the connection.
func (x *serverConn) refuse(h *frames.Header, err error) error {
	_ = x.fail(h, err)
	return err
}

// send writes one frame, in memory of its own.
func (x *serverConn) send(h frames.Header, m frames.Message, payload net.Buffers) error {
	b, err := frames.AppendFrame(nil, h, m)
	if err != nil {
		return err
	}
	return x.l.Send(context.Background(), b, payload)
}

// reply answers a call.
func (x *serverConn) reply(h *frames.Header, m frames.Message) error {
	return x.send(frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, m, nil)
}

// fail answers a call with an error.
func (x *serverConn) fail(h *frames.Header, err error) error {
	b := frames.BodyOf(err)
	return x.send(frames.Header{Type: frames.TypeError, Call: h.Call}, &b, nil)
}

// request is one frame as it came.
type request struct {
	x       *serverConn
	h       frames.Header
	body    []byte
	began   time.Time // the last byte of its header had been read
	charged int64
	holds   bool // a token of answers
	pooled  *[]byte
	ctx     context.Context // the connection's, with the call's span
	span    trace.Span      // nil: none, or a session's by now
}

// bodies are for calls that are answered before the next frame is read.
var bodies = sync.Pool{New: func() any { b := make([]byte, 0, 80<<10); return &b }}

// frame reads a frame and has it carried out. An error ends the connection.
func (x *serverConn) frame() error {
	lim := &x.s.opt.Limits
	h, err := x.l.Header(lim.Idle)
	if err != nil {
		return err
	}
	x.under.Add(1)
	defer x.under.Add(-1)
	if int64(h.Body) > int64(lim.Body) || int64(h.Payload) > int64(lim.Payload) {
		// Reading on would mean reading it all; whoever sends this knows the limits.
		_ = x.fail(&h, skep.Invalidf(h.Type.String(), "frame", skep.Range{From: int(h.Body), To: int(h.Payload)},
			skep.Range{From: lim.Body, To: lim.Payload}))
		return frames.Broken("frame size", h.Body, lim.Body)
	}
	r := &request{x: x, h: h, began: x.l.Filled}
	r.trace()
	op, known := operations[h.Type]
	if !known {
		if err := x.skip(&h, uint64(h.Body)); err != nil {
			return err
		}
		return x.fail(&h, &skep.Error{Op: h.Type.String(), Kind: skep.Unsupported, Field: "frame type", Value: uint8(h.Type)})
	}
	if int(h.Body) > op.most(lim) || h.Payload > 0 && !op.payload {
		_ = x.fail(&h, skep.Invalidf(h.Type.String(), "frame length", h.Body, op.most(lim)))
		return frames.Broken("frame length", h.Body, op.most(lim))
	}
	err = x.allowed(op)
	if err == nil && op.placed && h.Epoch != 0 {
		err = x.s.byEpoch(x.ctx, op.name, h.Epoch, &x.inVain)
	}
	if err != nil {
		return errors.Join(x.refused(r, op, err), x.skip(&h, uint64(h.Body)))
	}
	if op.told && h.Epoch != 0 { // the rest of the request may come when the map is another one
		r.ctx = epoch.Came(r.ctx, h.Epoch)
	}
	if x.features&frames.FeatureUncounted != 0 {
		r.ctx = counting(r.ctx, h.Flags)
	}
	r.ctx = recall.Came(r.ctx, x.features, h.Flags)
	// Once for the body, once for what the Store and the answer make of its keys; lists are
	// charged as they are made (spend). What is very short is free: it is most often about
	// giving something back, which must not need memory.
	cost := 2 * int64(h.Body)
	if h.Body <= freeBody {
		cost = 0
	}
	if !op.inline && !op.back {
		cost = max(cost, callBytes)
	}
	if err := x.charge(op.name, "the body", 0, cost); err != nil {
		return errors.Join(x.refused(r, op, err), x.skip(&h, uint64(h.Body)))
	}
	r.charged = cost
	if op.inline && int(h.Body) <= 80<<10 {
		r.pooled = bodies.Get().(*[]byte)
		r.body = (*r.pooled)[:h.Body]
	} else {
		r.body = make([]byte, h.Body)
	}
	if err := x.l.Body(&h, r.body); err != nil {
		r.done()
		return err
	}
	if op.inline {
		err := op.run(r)
		r.done()
		return err
	}
	return x.start(r, op)
}

// counting is ctx for a lookup with flags.
func counting(ctx context.Context, flags uint16) context.Context {
	switch {
	case flags&frames.FlagUncounted != 0:
		return skep.Uncounted(ctx)
	case flags&frames.FlagContinued != 0:
		return skep.Continued(ctx)
	}
	return ctx
}

// freeBody is the longest body that is not charged.
const freeBody = 256

// Spend charges n bytes of the body's lists to the request.
func (r *request) Spend(n int64) error { return r.spendOn("the body and its lists", n) }

// spendOn charges n bytes to the request, or says that the server is overloaded, or that they never fit.
func (r *request) spendOn(what string, n int64) error {
	if err := r.x.charge(r.h.Type.String(), what, r.charged, n); err != nil {
		return err
	}
	r.charged += n
	return nil
}

// done gives back what the request held.
func (r *request) done() {
	if r.charged != 0 {
		r.x.memory.Give(r.charged)
	}
	r.charged = 0
	if r.holds {
		<-r.x.answers
		r.holds = false
	}
	if r.pooled != nil {
		bodies.Put(r.pooled)
		r.pooled, r.body = nil, nil
	}
}

// skip reads what is left of a frame that is refused.
func (x *serverConn) skip(h *frames.Header, body uint64) error {
	return x.l.Discard(body + uint64(h.Payload))
}

// allowed checks the identity against what the operation needs. Who may do nothing any more still gives back what it has:
// it is told by the answer that nobody writes to its memory.
func (x *serverConn) allowed(op *operation) error {
	now := time.Now()
	if err := x.who.Check(now, op.need); err != nil && !op.back {
		if op.nodes && x.who.Tenant == auth.AnyTenant && x.who.Check(now, auth.Write) == nil {
			return nil
		}
		return &skep.Error{Op: op.name, Kind: skep.Denied, Err: err}
	}
	return nil
}

// refused answers a request that was not begun, before what is left of it is read. Frames without
// an answer get none.
func (x *serverConn) refused(r *request, op *operation, err error) error {
	if op.files {
		x.l.Files.Drop() // else the next call that takes any would have these
	}
	if op.silent {
		x.observe(r, err)
		return nil
	}
	return r.answer(nil, err)
}

// answer writes the answer to a call: m, or err. The call took until then.
func (r *request) answer(m frames.Message, err error) error {
	var lost error
	if err != nil {
		lost = r.x.fail(&r.h, err)
	} else {
		lost = r.x.reply(&r.h, m)
	}
	r.x.observe(r, err)
	return lost
}

func (x *serverConn) observe(r *request, err error) {
	x.s.count.calls.Add(1)
	r.traced(err)
	if o := x.s.opt.Observe; o != nil {
		o(Call{Type: r.h.Type, Tenant: x.who.Tenant, Client: x.name, Began: r.began, Took: time.Since(r.began),
			Bytes: int64(r.h.Payload), Err: err})
	}
}

// start runs a call that may wait on a goroutine of its own. What the frame still holds
// (a payload) is read here first.
func (x *serverConn) start(r *request, op *operation) error {
	shed := func(err error, left uint64) error {
		defer r.done()
		return errors.Join(x.refused(r, op, err), x.l.Discard(left))
	}
	left := uint64(r.h.Payload)
	if op.payload && left == 0 { // what lies in shared memory is charged when it is known
		if wait, ok := x.who.Limits().Solvent(); !ok {
			return shed(link.Overloaded("rate of the tenant", wait), left)
		}
	}
	if op.back { // what a call took is given back, whatever the rate
		x.who.Limits().Owe(1)
	} else if wait, ok := x.who.Limits().Admit(1, int64(left)); !ok {
		return shed(link.Overloaded("rate of the tenant", wait), left)
	}
	// Where so many answers wait, half of them are made, and wait for the client to read.
	select {
	case x.answers <- struct{}{}:
		r.holds = true
	case <-x.ctx.Done():
		r.done()
		return context.Cause(x.ctx)
	}
	ctx, cancel := x.within(r)
	x.mu.Lock()
	_, twice := x.calls[r.h.Call]
	full := len(x.calls) >= x.s.opt.Limits.Calls
	if !twice && !full {
		x.calls[r.h.Call] = cancel
	}
	x.mu.Unlock()
	switch {
	case twice:
		cancel()
		r.done()
		return frames.Broken("call number", r.h.Call, "one that is not in use")
	case full:
		cancel()
		return shed(link.Overloaded("calls of the connection", x.s.comeBack()), left)
	}
	finish := func() {
		cancel()
		x.mu.Lock()
		delete(x.calls, r.h.Call)
		x.mu.Unlock()
	}
	carry, err := op.prepare(r)
	if err != nil {
		finish()
		var c *cutOff
		if errors.As(err, &c) {
			r.traced(c.error)
			r.done()
			return c.error
		}
		r.done()
		return x.refused(r, op, err)
	}
	x.wait.Add(1)
	x.under.Add(1)
	go func() {
		defer x.wait.Done()
		defer x.under.Add(-1)
		m, err := carry(ctx)
		finish()
		err = r.answer(m, err)
		r.done()
		if err != nil {
			x.end(err)
		}
	}()
	return nil
}

// cutOff is an error of the connection, not of a call.
type cutOff struct{ error }

// within is the time the caller gives a call, at most Limits.Call.
func (x *serverConn) within(r *request) (context.Context, context.CancelFunc) {
	d := x.s.opt.Limits.Call
	if h := &r.h; h.Deadline > 0 {
		d = min(d, time.Duration(h.Deadline)*time.Millisecond)
	}
	return context.WithTimeout(r.ctx, d)
}
