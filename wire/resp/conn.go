package resp

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tidwall/redcon"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/near"
	"github.com/skepkv/skep/wire/watch"
)

// conn is one connection. Everything of it belongs to its one goroutine but what
// Server.conns shows of it.
type conn struct {
	s     *Server
	id    int64
	raw   net.Conn
	under *near.Gatherer // of TLS; else nil
	in    *bufio.Reader
	out   []byte // replies not sent
	p     parser
	ctx   context.Context // ends when the connection is to be cut

	identity auth.Identity
	tenant   *tenant
	known    bool // the identity is somebody
	place    *auth.Held
	lockstep bool          // see ServeLockstep
	waited   time.Duration // for memory and rate, of this command
	due      time.Time     // what the peer sends of this command must be here
	nobody   time.Time     // since when it was not
	unwatch  func()
	expelled atomic.Bool
	number   int // selected database
	db       *database
	proto    int // 2 or 3
	denied   int // AUTHs that failed
	quit     bool

	// The call being answered.
	outcome string
	bytes   int64
	taken   int64 // bytes of values read before their command is answered
	held    int64 // of them in memory of our own
	keys    int64 // bytes of keys kept from one command of a run to the next

	claimed   int64 // of what all receive into, for what is held of commands
	claimedOf *auth.Held

	about about
	stuck stuck
}

// errQuit ends a connection in order.
var errQuit = errors.New("quit")

func (c *conn) serve() error {
	c.in, c.under = bufio.NewReaderSize(inlet{c}, readBuffer), near.GathererOf(c.raw)
	defer c.settle()
	c.p = parser{r: c.in, stranger: true, take: c.receive, may: c.mayReceive}
	c.p.most = int(max(heldBytes, min(MaxArgBytes, c.s.o.ReceiveBytes/4)))
	c.proto = 2
	if err := c.greet(); err != nil {
		return err
	}
	for !c.quit {
		if err := c.await(); err != nil {
			return err
		}
		cmd, err := c.p.read()
		if err != nil {
			c.dropValues(cmd.values)
			return c.broken(err)
		}
		if len(cmd.args) == 0 {
			continue
		}
		if err := c.dispatch(cmd); err != nil {
			return errors.Join(err, c.flush()) // replies before a value that is cut off are whole
		}
		c.settle()
		if err := c.flushIfLarge(); err != nil { // what comes next may begin in what has arrived, for ever
			return err
		}
	}
	return c.flush()
}

// greet completes TLS and finds out who speaks, where that shows without AUTH.
func (c *conn) greet() error {
	if t, ok := c.raw.(*tls.Conn); ok {
		ctx, cancel := context.WithTimeout(c.ctx, strangerTimeout)
		defer cancel()
		if err := t.HandshakeContext(ctx); err != nil {
			c.s.o.Auth.DenyHandshake(protocol, c.raw.RemoteAddr(), err)
			return err
		}
	}
	shown := c.shown("", "")
	if shown.TLS == nil || len(shown.TLS.PeerCertificates) == 0 {
		shown.Protocol = "" // AUTH may follow: it is not denied yet
	}
	if id, err := c.s.o.Auth.Identify(c.ctx, shown); err == nil {
		return c.become(id)
	}
	return nil
}

// shown is that, and a certificate where there is one.
func (c *conn) shown(user, token string) auth.Presented {
	p := auth.Presented{Protocol: protocol, Token: token, User: user, Peer: c.raw.RemoteAddr()}
	if t, ok := c.raw.(*tls.Conn); ok {
		st := t.ConnectionState()
		p.TLS = &st
	}
	return p
}

// protocol is what denials are counted by.
const protocol = "resp"

// become makes the connection an identity's.
func (c *conn) become(id auth.Identity) error {
	c.leave()
	refuse := func(why string) error {
		c.s.stats.refused.Add(1)
		_ = c.fail(&tryAgain{time.Second, why})
		return errors.Join(errQuit, c.flush())
	}
	if !id.Limits().Connect() {
		return refuse("the tenant has all its connections")
	}
	if c.place = c.s.places.Of(id.Limits()); !c.place.Take(1) {
		id.Limits().Disconnect()
		return refuse("the tenant has its share of the connections")
	}
	c.identity, c.known, c.p.stranger = id, true, false
	c.unwatch = id.Until(c.expel)
	c.tenant = c.s.tenantOf(id.Tenant)
	c.db = nil
	c.about.set(func(a *aboutInfo) { a.name, a.tenant = id.Name, id.Tenant })
	return nil
}

// leave makes the connection nobody's.
func (c *conn) leave() {
	if c.known {
		c.unwatch()
		c.identity.Limits().Disconnect()
		c.place.Give(1)
		c.identity, c.known, c.p.stranger = auth.Identity{}, false, true
		c.nobody = time.Now()
	}
}

// expelGrace is how long a connection stays whose identity may do nothing any more, for the replies that say so.
const expelGrace = time.Second

// expel ends the connection: when it waits for a command at once, else soon. Commands are refused already.
func (c *conn) expel() {
	c.expelled.Store(true)
	c.wake()
	late := time.AfterFunc(expelGrace, func() { c.raw.Close() })
	context.AfterFunc(c.ctx, func() { late.Stop() })
}

// strangerTimeout is how long a peer may take to say who it is.
const strangerTimeout = 10 * time.Second

// await returns when a command begins to arrive. Everything answered is sent first,
// unless more is there already.
func (c *conn) await() error {
	if c.in.Buffered() == 0 {
		if err := c.flush(); err != nil {
			return err
		}
		deadline := time.Time{}
		switch {
		case !c.known:
			deadline = c.until(strangerTimeout)
		case c.s.o.IdleTimeout > 0:
			deadline = time.Now().Add(c.s.o.IdleTimeout)
		}
		if err := c.raw.SetReadDeadline(deadline); err != nil {
			return err
		}
		if !c.idle(true) {
			return errQuit
		}
		_, err := c.in.Peek(1)
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) || err == io.EOF {
				return errQuit
			}
			return err
		}
		c.idle(false)
	}
	return c.expect()
}

// idle says whether the connection waits for a command; false when it should not,
// since the server is draining or the identity may do nothing any more.
func (c *conn) idle(waits bool) bool {
	c.about.mu.Lock()
	defer c.about.mu.Unlock()
	c.about.waits = waits
	return !c.s.draining.Load() && !c.expelled.Load()
}

// wake ends the wait for a command, if the connection is in one.
func (c *conn) wake() {
	c.about.mu.Lock()
	defer c.about.mu.Unlock()
	if c.about.waits {
		_ = c.raw.SetReadDeadline(time.Now())
	}
}

// expect gives the peer IOTimeout for what it sends next: a command without its values,
// or one piece of a value.
func (c *conn) expect() error {
	c.due = time.Now().Add(c.s.o.IOTimeout)
	return c.raw.SetReadDeadline(c.until(c.s.o.IOTimeout))
}

// expectMore gives the peer more time for n bytes of a value, as much as they are of a MiB: a command of many little
// values has its time as a whole. What the server itself took since then is given back.
func (c *conn) expectMore(n int64, own time.Duration) error {
	now := time.Now()
	if latest := now.Add(c.s.o.IOTimeout); c.due.Add(own).Before(latest) {
		c.due = c.due.Add(own)
	} else {
		c.due = latest
	}
	c.due = c.due.Add(time.Duration(float64(n) / pieceBytes * float64(c.s.o.IOTimeout)))
	return c.raw.SetReadDeadline(c.until(c.due.Sub(now)))
}

// until is a deadline d from now, at most the one by which a peer must have said who it is.
func (c *conn) until(d time.Duration) time.Time {
	at := time.Now().Add(d)
	if last := c.nobody.Add(strangerTimeout); !c.known && at.After(last) {
		at = last
	}
	return at
}

// broken tells the peer of a protocol error, or that there is no memory for its command, before the connection is
// closed.
func (c *conn) broken(err error) error {
	var p protocolError
	var wait *tryAgain
	if c.lockstep && (errors.As(err, &p) || errors.As(err, &wait)) {
		return errors.Join(c.hangUp(err), c.flush())
	}
	if errors.As(err, &p) {
		c.out = redcon.AppendError(c.out, "ERR "+p.Error())
		return errors.Join(err, c.flush(), c.linger())
	}
	if errors.As(err, &wait) {
		return errors.Join(err, c.fail(err), c.flush(), c.linger())
	}
	if err == io.EOF {
		return errors.Join(errQuit, c.flush())
	}
	return err
}

// lingerTimeout is how long what a peer goes on sending is read and dropped after it was told why it is hung up on.
const lingerTimeout = 2 * time.Second

// linger ends what is sent to the peer, and waits until it has hung up. A connection that is closed while bytes of the peer
// lie unread takes what it was told away from it.
func (c *conn) linger() error {
	half, ok := c.raw.(interface{ CloseWrite() error })
	if !ok {
		return nil
	}
	if err := errors.Join(half.CloseWrite(), c.raw.SetReadDeadline(c.until(lingerTimeout))); err != nil || !c.idle(true) {
		return err
	}
	_, err := io.Copy(io.Discard, c.raw)
	return err
}

// dropValues gives up values whose command did not come whole.
func (c *conn) dropValues(values []*value) {
	for _, v := range values {
		_ = v.wait()
		if v.piece != 0 && c.db != nil {
			c.db.doom(v.head(nil, 0))
		}
	}
}

// dispatch answers a command, and with it the commands behind it that are of the same
// kind and have arrived whole.
func (c *conn) dispatch(cmd command) error {
	name := upper(cmd.args[0])
	d := commands[name]
	c.outcome, c.bytes, c.taken = watch.OK, c.taken, 0
	start := c.s.o.Clock()
	keys := 0
	defer func() {
		c.s.o.Watch.Record(watch.Call{Protocol: "resp", Name: label(name, d), Tenant: c.identity.Tenant, Outcome: c.outcome,
			Start: start, Duration: c.s.o.Clock().Sub(start), Keys: keys, Bytes: c.bytes})
	}()
	if err := c.permitted(d, name, len(cmd.args)); err != nil {
		c.dropValues(cmd.values)
		if name == "EXISTS" {
			return c.noOnes(err, 1)
		}
		return c.fail(err)
	}
	c.about.set(func(a *aboutInfo) { a.command, a.last = name, start })
	var span trace.Span
	ctx := c.ctx
	if c.s.o.Tracer != nil {
		ctx, span = c.s.o.Tracer.Start(ctx, "resp "+name)
		defer func() {
			span.SetAttributes(attribute.String("skep.tenant", c.identity.Tenant), attribute.String("skep.outcome", c.outcome),
				attribute.Int("skep.keys", keys), attribute.Int64("skep.bytes", c.bytes))
			span.End()
		}()
	}
	switch {
	case d.run == nil:
		op, cancel := context.WithTimeout(ctx, c.s.o.OpTimeout)
		defer cancel()
		keys = d.keys(len(cmd.args))
		return d.do(c, op, cmd)
	default:
		var err error
		keys, err = d.run(c, ctx, cmd)
		return err
	}
}

// span begins a span under the command's, and gives what ends it.
func (c *conn) span(ctx context.Context, name string) (end func()) {
	if c.s.o.Tracer == nil {
		return func() {}
	}
	_, span := c.s.o.Tracer.Start(ctx, name)
	return func() { span.End() }
}

func label(name string, d *definition) string {
	if d == nil {
		return "unknown"
	}
	return name
}

// permitted says why the command may not be done.
func (c *conn) permitted(d *definition, name string, args int) error {
	if !c.known && (d == nil || !d.stranger) {
		c.s.o.Auth.Deny(auth.Denial{Protocol: protocol, Reason: auth.Missing, Peer: c.raw.RemoteAddr()})
		return auth.ErrDenied
	}
	if d == nil {
		return unknownCommand(name)
	}
	if args < d.min || d.max > 0 && args > d.max || d.even && args%2 == 0 {
		return wrongArgs(name)
	}
	if c.known {
		if err := c.identity.Check(c.s.o.Wall(), d.need); err != nil {
			return err
		}
		if name == "EXISTS" {
			c.waited = max(c.waited, c.s.o.lockstepWait) // it has an answer at once
		}
		return c.allow(1, 0)
	}
	return nil
}

// database is the selected one. It may not be there: it is empty then, and no reader makes it.
func (c *conn) database() (*database, error) { return c.selected((*database).find) }

// databaseToSet is the selected one, made if need be.
func (c *conn) databaseToSet() (*database, error) { return c.selected((*database).make) }

func (c *conn) selected(open func(*database, context.Context) error) (*database, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.s.o.OpTimeout)
	defer cancel()
	if c.db == nil {
		c.db = c.s.database(c.tenant, c.number)
	}
	var err error
	c.db, err = c.s.opened(ctx, c.db, open)
	return c.db, err
}

// Replies.

func (c *conn) ok()             { c.out = redcon.AppendOK(c.out) }
func (c *conn) int(n int64)     { c.out = redcon.AppendInt(c.out, n) }
func (c *conn) bulk(b []byte)   { c.out = redcon.AppendBulk(c.out, b); c.bytes += int64(len(b)) }
func (c *conn) text(s string)   { c.out = redcon.AppendBulkString(c.out, s) }
func (c *conn) simple(s string) { c.out = redcon.AppendString(c.out, s) }
func (c *conn) array(n int)     { c.out = redcon.AppendArray(c.out, n) }

func (c *conn) null() {
	if c.outcome == watch.OK {
		c.outcome = watch.Miss
	}
	if c.proto == 3 && !c.lockstep {
		c.out = append(c.out, "_\r\n"...)
	} else {
		c.out = redcon.AppendNull(c.out)
	}
}

// fields is a map of n pairs; in RESP2 an array of twice as many.
func (c *conn) fields(n int) {
	if c.proto == 3 {
		c.out = append(strconv.AppendInt(append(c.out, '%'), int64(n), 10), '\r', '\n')
	} else {
		c.array(2 * n)
	}
}

// words is a set of words; in RESP2 an array.
func (c *conn) words(w []string) {
	if c.proto == 3 {
		c.out = append(strconv.AppendInt(append(c.out, '~'), int64(len(w)), 10), '\r', '\n')
	} else {
		c.array(len(w))
	}
	for _, s := range w {
		c.simple(s)
	}
}

// speak changes the protocol's version.
func (c *conn) speak(proto int) {
	c.proto = proto
	c.about.set(func(a *aboutInfo) { a.proto = proto })
}

// fail replies with an error, in words Redis clients know.
func (c *conn) fail(err error) error {
	var wait *tryAgain
	var said replyError
	text := ""
	c.outcome = watch.Error
	switch {
	case errors.As(err, &said):
		text = string(said)
	case errors.Is(err, auth.ErrDenied):
		text = "NOAUTH Authentication required."
	case errors.Is(err, auth.ErrForbidden):
		text = "NOPERM this user has no permissions to run this command"
	case errors.As(err, &wait):
		c.outcome = watch.Shed
		ms := max(wait.after.Milliseconds(), 1)
		text = "TRYAGAIN " + wait.why + ", retry after " + strconv.FormatInt(ms, 10) + " ms"
	case skep.KindOf(err) == skep.Full, skep.KindOf(err) == skep.Quota, skep.KindOf(err) == skep.Admission:
		text = "OOM command not allowed: " + err.Error()
	case skep.KindOf(err) == skep.NoMemory, skep.KindOf(err) == skep.Deadline, skep.KindOf(err) == skep.Overloaded:
		c.outcome = watch.Shed
		text = "TRYAGAIN " + err.Error()
	case skep.KindOf(err) == skep.ReadOnly:
		text = "READONLY You can't write against a read only store."
	default:
		text = "ERR " + err.Error()
	}
	if c.lockstep {
		return c.hangUp(err)
	}
	c.out = redcon.AppendError(c.out, text)
	return c.flushIfLarge()
}

// replyError is an error's text as the peer gets it, its first word a code.
type replyError string

func (e replyError) Error() string { return string(e) }

func (c *conn) flushIfLarge() error {
	if len(c.out) < 64<<10 {
		return nil
	}
	return c.flush()
}

// flush sends what is queued.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	return c.write(nil)
}
