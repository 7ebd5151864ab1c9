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
	number   int  // selected database
	db       *database
	proto    int // 2 or 3
	denied   int // AUTHs that failed
	quit     bool

	// The call being answered.
	outcome string
	bytes   int64
	taken   int64 // bytes of values read before their command is answered
	held    int64 // of them in memory of our own

	about about
}

// errQuit ends a connection in order.
var errQuit = errors.New("quit")

func (c *conn) serve() error {
	c.in, c.under = bufio.NewReaderSize(c.raw, readBuffer), near.GathererOf(c.raw)
	c.p = parser{r: c.in, stranger: true, take: c.receive}
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
	}
	return c.flush()
}

// greet completes TLS and finds out who speaks, where that shows without AUTH.
func (c *conn) greet() error {
	id, err := c.s.o.Auth.Anonymous()
	if t, ok := c.raw.(*tls.Conn); ok {
		ctx, cancel := context.WithTimeout(c.ctx, strangerTimeout)
		defer cancel()
		if herr := t.HandshakeContext(ctx); herr != nil {
			return herr
		}
		if st := t.ConnectionState(); len(st.PeerCertificates) > 0 {
			id, err = c.s.o.Auth.Certificate(st.PeerCertificates[0], st.VerifiedChains)
		}
	}
	if err == nil {
		return c.become(id)
	}
	return nil // AUTH may follow
}

// become makes the connection an identity's.
func (c *conn) become(id auth.Identity) error {
	if c.known {
		c.identity.Limits().Disconnect()
		c.known = false
	}
	if !id.Limits().Connect() {
		_ = c.fail(&tryAgain{time.Second, "the tenant has all its connections"})
		return errors.Join(errQuit, c.flush())
	}
	c.identity, c.known, c.p.stranger = id, true, false
	c.tenant = c.s.tenantOf(id.Tenant)
	c.db = nil
	c.about.set(func(a *aboutInfo) { a.name, a.tenant = id.Name, id.Tenant })
	return nil
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
			deadline = c.about.since.Add(strangerTimeout)
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
// since the server is draining.
func (c *conn) idle(waits bool) bool {
	c.about.mu.Lock()
	defer c.about.mu.Unlock()
	c.about.waits = waits
	return !c.s.draining.Load()
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
func (c *conn) expect() error { return c.raw.SetReadDeadline(time.Now().Add(c.s.o.IOTimeout)) }

// broken tells the peer of a protocol error before the connection is closed.
func (c *conn) broken(err error) error {
	var p protocolError
	if errors.As(err, &p) {
		c.out = redcon.AppendError(c.out, "ERR "+p.Error())
		return errors.Join(err, c.flush())
	}
	if err == io.EOF {
		return errors.Join(errQuit, c.flush())
	}
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
		c.held = 0
		c.s.o.Watch.Record(watch.Call{Protocol: "resp", Name: label(name, d), Tenant: c.identity.Tenant, Outcome: c.outcome,
			Start: start, Duration: c.s.o.Clock().Sub(start), Keys: keys, Bytes: c.bytes})
	}()
	if err := c.permitted(d, name, len(cmd.args)); err != nil {
		c.dropValues(cmd.values)
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
		return auth.ErrDenied
	}
	if d == nil {
		return unknownCommand(name)
	}
	if args < d.min || d.max > 0 && args > d.max || d.even && args%2 == 0 {
		return wrongArgs(name)
	}
	if c.known {
		if err := c.identity.Check(c.s.o.Clock(), d.need); err != nil {
			return err
		}
		if wait, ok := c.identity.Limits().Admit(1, 0); !ok {
			return &tryAgain{wait, "over the tenant's rate"}
		}
	}
	return nil
}

// database is the selected one, opened when first used.
func (c *conn) database() (*database, error) {
	if c.db == nil {
		ctx, cancel := context.WithTimeout(c.ctx, c.s.o.OpTimeout)
		defer cancel()
		db, err := c.s.database(ctx, c.tenant, c.number)
		if err != nil {
			return nil, err
		}
		c.db = db
	}
	return c.db, nil
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
	if c.proto == 3 {
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
	case skep.KindOf(err) == skep.NoMemory, skep.KindOf(err) == skep.Deadline:
		c.outcome = watch.Shed
		text = "TRYAGAIN " + err.Error()
	case skep.KindOf(err) == skep.ReadOnly:
		text = "READONLY You can't write against a read only store."
	default:
		text = "ERR " + err.Error()
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
