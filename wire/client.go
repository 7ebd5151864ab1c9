package wire

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/breaker"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/heap"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/whose"
)

// Options of Dial. Only Addr is needed.
type Options struct {
	// Addr is "host:port", or "unix:" and the path of a socket. Package replication takes several, with commas between them.
	Addr  string
	TLS   *tls.Config // nil: none. With a client certificate it is also the credential
	Token string
	Name  string // for the server's log
	// Credentials, in place of TLS and Token, is asked at every call what is shown to the server; not with SharedMemory.
	// What it points to does not change: others are another pointer. Then calls go to new connections, and one that has
	// shown what was there before is closed when nothing is under way on it.
	Credentials func() *Credentials

	Conns int // connections at most; 4

	// Timeout is how long a call that does no I/O waits for its answer (lookup, lease,
	// want, hint, claim), Patience how long one that does (put, commit, flush, delete,
	// begin a restore), when the context says nothing nearer; 2 s and 1 min.
	Timeout  time.Duration
	Patience time.Duration
	// Silence is how long the server may say nothing while something is under way. It is
	// pinged meanwhile; past it the connection is given up. 5 s.
	Silence time.Duration

	// Retries is how often a call is sent again where that is safe; 3, negative for never.
	Retries int

	Window       int64 // bytes a restore may send ahead of its reader; 16 MiB
	Memory       int64 // bytes Alloc lends; 1 GiB
	SharedMemory int64 // bytes of memory shared with a server on the same machine, which Alloc lends first; 0 none

	// Strict returns errors of kind Unavailable and Overloaded where the default is a
	// miss: for callers who can go elsewhere.
	Strict bool

	CRC    bool                                        // have every checksum made as CRC-32 by the server
	Dialer func(ctx context.Context) (net.Conn, error) // replaces the network
	// DialContext connects to the server's address; nil: as net.Dialer does. TLS goes on top.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
	Log         *slog.Logger // discarded when nil
}

// Credentials is what a client shows a server. With a client certificate, TLS is a credential, too.
type Credentials struct {
	TLS   *tls.Config // nil: none
	Token string
}

// Client is a skep.Store on the other end of a connection. What a server promises of its Store, the Client promises
// too; on top of that, no call outlives its context, or Options.Timeout and Patience.
//
// When the server is slow, full or gone, a Lookup finds nothing, a Want wants nothing, a Restore delivers misses of
// kind Unavailable, and a Put that was not begun declines its blocks with the reason Unavailable or Overloaded. A call
// whose fate is unknown (it was sent, and no answer came) returns an error of kind Unavailable.
type Client struct {
	skep.UnsupportedStore // of what no frame asks for

	opt    Options
	shows  func() *Credentials
	log    *slog.Logger
	id     [16]byte
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	slots  []slot
	turn   atomic.Uint32
	guard  *breaker.Breaker
	memory heap.Pool
	shared *sharedMemory // nil: none
	leave  time.Duration // how long Close waits to say goodbye, and for the server to close

	spacesMu sync.RWMutex
	spaces   map[skep.NamespaceID]skep.NamespaceInfo
	server   ServerID // of the connections; guarded by spacesMu, as what follows
	tenant   string
	rights   auth.Rights
	node     string // of the cluster; "": none, or the server does not say

	wait   sync.WaitGroup // readers, pinger, who looks for the server
	misses atomic.Int64   // calls answered with a miss for want of a server
	strict atomic.Bool    // Options.Strict, or SetStrict
	meant  whose.Meant
}

var _ skep.Store = (*Client)(nil)

// slot is one connection of the pool, made when it is needed.
type slot struct {
	turn chan struct{} // one token: who has it uses conn
	conn *clientConn
	full time.Time // the server wants no further connection until then
}

// take waits for the slot's turn until done is closed.
func (s *slot) take(done <-chan struct{}) bool {
	select {
	case <-s.turn:
		return true
	default:
	}
	select {
	case <-s.turn:
		return true
	case <-done:
		return false
	}
}

func (s *slot) give() { s.turn <- struct{}{} }

// Dial makes a client and one connection, so that wrong credentials and addresses are found at once.
func Dial(ctx context.Context, o Options) (*Client, error) {
	c, err := NewClient(o)
	if err != nil {
		return nil, err
	}
	if _, err := c.conn(ctx, 0); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// NewClient is Dial without the connection: the first call makes it. For servers that may not be there.
func NewClient(o Options) (*Client, error) {
	o.Conns = cmp.Or(o.Conns, 4)
	o.Timeout = cmp.Or(o.Timeout, 2*time.Second)
	o.Patience = cmp.Or(o.Patience, time.Minute)
	o.Silence = cmp.Or(o.Silence, 5*time.Second)
	o.Retries = cmp.Or(o.Retries, 3)
	o.Window = cmp.Or(o.Window, 16<<20)
	o.Memory = cmp.Or(o.Memory, 1<<30)
	const op = "dial"
	switch {
	case o.Addr == "" && o.Dialer == nil:
		return nil, skep.Invalidf(op, "addr", "empty", "host:port, or unix:path")
	case strings.Contains(o.Addr, ",") && !strings.HasPrefix(o.Addr, "unix:"):
		return nil, skep.Invalidf(op, "addr", o.Addr, "one server's: replication.Connect takes several of a cluster")
	case o.Conns < 1 || o.Conns > 1024:
		return nil, skep.Invalidf(op, "conns", o.Conns, "1 to 1024")
	case o.Timeout < 0 || o.Patience < 0 || o.Silence < 0:
		return nil, skep.Invalidf(op, "timeout, patience and silence", o.Timeout, "0 or more")
	case o.Window < frames.LeastWindow:
		return nil, skep.Invalidf(op, "window", o.Window, frames.LeastWindow)
	case o.Credentials != nil && (o.TLS != nil || o.Token != "" || o.SharedMemory > 0):
		return nil, skep.Invalidf(op, "credentials", "set", "unset, with TLS, a token or shared memory")
	case o.SharedMemory < 0 || o.SharedMemory > 0 && !strings.HasPrefix(o.Addr, "unix:"):
		return nil, skep.Invalidf(op, "shared memory", o.SharedMemory, "set for a Unix socket only")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Client{opt: o, shows: o.Credentials, log: o.Log, leave: leaving, slots: make([]slot, o.Conns), guard: breaker.New(),
		spaces: map[skep.NamespaceID]skep.NamespaceInfo{}}
	for i := range c.slots {
		c.slots[i].turn = make(chan struct{}, 1)
		c.slots[i].give()
	}
	if own := (&Credentials{o.TLS, o.Token}); o.Credentials == nil {
		c.shows = func() *Credentials { return own }
	}
	c.memory.Limit = o.Memory
	c.strict.Store(o.Strict)
	if _, err := rand.Read(c.id[:]); err != nil {
		return nil, err
	}
	if o.SharedMemory > 0 {
		var err error
		if c.shared, err = newSharedMemory(o.SharedMemory); err != nil {
			return nil, err
		}
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.wait.Add(1)
	go c.ping()
	c.wait.Go(func() { c.guard.Watch(c.ctx, c.reach) }) // so that no call has to wait for a server that is not there
	return c, nil
}

// Close ends every session, stream and call with Closed, and returns when no byte that is on its way to this process
// will be written to a destination any more. What lies in memory that the server maps is between the server and its
// drives: Close waits for the server to close, a second at most, and for nothing after that.
//
// Errors: NotReleased where a server may still use memory that it was lent: it may write to destinations there, and
// read what was put from there. That memory must not be used anew, freed by who attached it included, as long as the
// server runs; what Alloc lent stays mapped. The client is closed all the same, and closing it twice is not an error.
func (c *Client) Close() error {
	c.cancel()
	var conns []*clientConn
	for i := range c.slots {
		s := &c.slots[i]
		s.take(nil) // who dials in it gives up now
		if x := s.conn; x != nil {
			x.goodbye()
			conns = append(conns, x)
		}
		s.give()
	}
	// Closing a socket with bytes unread throws away what was written to it, so the server closes first.
	late := time.After(c.leave)
	for _, x := range conns {
		select {
		case <-x.stopped:
		case <-late:
			late = time.After(0)
		}
		x.end(errClosed)
	}
	c.wait.Wait()
	if c.shared != nil {
		return c.shared.close()
	}
	return nil
}

// leaving is how long Close waits for the server to close. A server that is busier keeps the
// leases of a client that is gone until they run out.
const leaving = time.Second

var errClosed = &skep.Error{Op: "client", Kind: skep.Closed}

// conn gives the connection of a slot, dialling when there is none.
func (c *Client) conn(ctx context.Context, i int) (*clientConn, error) {
	s := &c.slots[i]
	if !s.take(ctx.Done()) {
		return nil, link.Ended("dial", ctx)
	}
	defer s.give()
	if c.ctx.Err() != nil {
		return nil, errClosed
	}
	shows := c.shows()
	if x := s.conn; x != nil && x.alive() {
		if x.shown == shows {
			return x, nil
		}
		x.retire()
	}
	if i > 0 && time.Now().Before(s.full) {
		return c.conn(ctx, 0)
	}
	if err := c.guard.Allow(); err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, c.opt.Timeout)
	defer cancel()
	stop := context.AfterFunc(c.ctx, cancel)
	defer stop()
	began := time.Now()
	x, err := dialConn(within, c, i, shows)
	if err != nil {
		switch {
		case i > 0 && skep.KindOf(err) == skep.Overloaded: // a tenant with all its connections: the first does
			s.full = time.Now().Add(time.Second)
			return c.conn(ctx, 0)
		case c.ctx.Err() != nil:
			return nil, errClosed
		case ctx.Err() != nil && time.Since(began) < c.opt.Timeout/2: // not what a call of ours has
			c.guard.GaveUp()
		case within.Err() != nil:
			c.guard.Silent()
		default:
			c.guard.Failed(err)
		}
		switch k := skep.KindOf(err); {
		case ctx.Err() != nil:
			return nil, &skep.Error{Op: "dial", Kind: skep.Deadline, Err: err}
		case k != skep.Other && k != skep.Deadline:
			return nil, err
		}
		return nil, &skep.Error{Op: "dial", Kind: skep.Unavailable, Err: err}
	}
	x.begin(within)
	c.guard.Worked()
	s.conn = x
	return x, nil
}

// reach makes a connection, and says why there is none.
func (c *Client) reach() error {
	ctx, cancel := context.WithTimeout(c.ctx, c.opt.Timeout)
	defer cancel()
	x, err := dialConn(ctx, c, 0, c.shows())
	if err != nil {
		return err
	}
	s := &c.slots[0]
	if !s.take(ctx.Done()) {
		x.l.Conn.Close()
		return nil
	}
	defer s.give()
	if old := s.conn; c.ctx.Err() != nil || old != nil && old.alive() {
		x.l.Conn.Close()
		return nil
	}
	x.begin(ctx)
	s.conn = x
	return nil
}

// pick is a connection for the next call: in turn, so that one that is busy with a large
// frame holds up a share of the calls only.
func (c *Client) pick(ctx context.Context) (*clientConn, error) {
	return c.conn(ctx, int(c.turn.Add(1)-1)%len(c.slots))
}

func (c *Client) pickAs(ctx context.Context, first bool) (*clientConn, error) {
	if first {
		return c.conn(ctx, 0)
	}
	return c.pick(ctx)
}

// ping asks connections on which something is under way for a sign of life, and gives up those that give none.
func (c *Client) ping() {
	defer c.wait.Done()
	tick := time.NewTicker(max(c.opt.Silence/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		for i := range c.slots {
			s := &c.slots[i]
			select {
			case <-s.turn:
			default: // being dialled
				continue
			}
			x := s.conn
			s.give()
			if x != nil && x.alive() {
				x.checkLife(c.opt.Silence)
			}
		}
	}
}

// Misses is how many calls were answered with a miss because the server was slow, full or gone.
func (c *Client) Misses() int64 { return c.misses.Load() }

// Away says whether the server has not been there at the last looks, or another node was (SetNode): calls fail at once
// until it is.
func (c *Client) Away() bool { return c.guard.Open() || c.meant.Another() }

// SetNode has the calls from now on be for that node: where another one answers, but for ClusterMap, they are not sent,
// and Unavailable, with whose.ErrAnother. refused is told of each, and must not block.
func (c *Client) SetNode(n whose.Node, refused func()) { c.meant.Set(n, refused) }

// SetStrict has the calls that begin from now on treat a server that is slow, full or gone as Options.Strict says: for a
// Store of many nodes, which goes to another one then.
func (c *Client) SetStrict() { c.strict.Store(true) }

// forgiven says whether err is to be a miss.
func (c *Client) forgiven(ctx context.Context, err error) bool {
	if c.strict.Load() || ctx.Err() != nil {
		return false
	}
	switch skep.KindOf(err) {
	case skep.Unavailable, skep.Overloaded:
		c.misses.Add(1)
		return true
	}
	return false
}

// spec says how a call may be carried out.
type spec struct {
	t     frames.Type
	op    string
	again bool   // doing it twice is as good as once
	long  bool   // it waits for I/O
	first bool   // it goes to the connection the shared memory is attached to
	needs uint32 // features that the server must know, or the call is Unsupported
	// lent is memory of the caller's that the server reads where it is, so the call is over only when it has answered. Else
	// the call is NotReleased.
	lent [][]byte
}

// open is the first of a call, once what it asks was checked: ctx has not ended, and the client is not closed.
func (c *Client) open(ctx context.Context, op string) error {
	if ctx.Err() != nil {
		return link.Ended(op, ctx)
	}
	if c.ctx.Err() != nil {
		return errClosed
	}
	return nil
}

// do carries a call out on some connection.
func (c *Client) do(ctx context.Context, s spec, m frames.Message, payload net.Buffers, out frames.Message) error {
	if err := c.open(ctx, s.op); err != nil {
		return err
	}
	d := c.opt.Timeout
	if s.long {
		d = c.opt.Patience
	}
	within, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for try := 0; ; try++ {
		x, err := c.pickAs(within, s.first)
		sent := false
		switch {
		case err != nil:
		case s.lent != nil && !c.shared.attachedTo(x): // it is to a server that has not taken the memory
			err = link.Overloaded("shared memory", time.Millisecond)
		case s.lent != nil:
			l := c.shared.lend(x, s.lent)
			sent, err = x.carry(within, s, m, payload, out)
			c.shared.back(l, skep.KindOf(err) == skep.NotReleased)
		default:
			sent, err = x.carry(within, s, m, payload, out)
		}
		if err == nil {
			return nil
		}
		wait, again := c.again(s, err, sent)
		if !again || try >= c.opt.Retries || !paused(within, wait) {
			return c.verdict(ctx, within, s, err)
		}
	}
}

// again says whether a call that failed may be sent once more, and after how long.
func (c *Client) again(s spec, err error, sent bool) (time.Duration, bool) {
	switch skep.KindOf(err) {
	case skep.Overloaded: // the server did nothing
		var e *skep.Error
		errors.As(err, &e)
		return min(max(e.RetryAfter, time.Millisecond), time.Second), true
	case skep.Unavailable:
		return time.Millisecond, (!sent || s.again) && !errors.Is(err, ErrRestarted) && !errors.Is(err, whose.ErrAnother)
	}
	return 0, false
}

// paused waits; false: ctx has ended.
func paused(ctx context.Context, wait time.Duration) bool {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// verdict is what a caller is told of a failed call: its own context's end, when that is
// what ended it; else, when our own timeout did, that the server is not available.
func (c *Client) verdict(ctx, within context.Context, s spec, err error) error {
	switch {
	case s.lent != nil && skep.KindOf(err) == skep.NotReleased:
		return err
	case ctx.Err() != nil:
		return link.Ended(s.op, ctx)
	case c.ctx.Err() != nil:
		return errClosed
	case within.Err() != nil && skep.KindOf(err) != skep.Overloaded:
		c.guard.Failed(nil)
		return &skep.Error{Op: s.op, Kind: skep.Unavailable, Field: "answer", Value: "none", Limit: "in time"}
	}
	return err
}

// Stats implements skep.Observer.
func (c *Client) Stats(ctx context.Context) (st skep.Stats, err error) {
	var m frames.Document
	if err := c.do(ctx, spec{t: frames.TypeStats, op: "stats", again: true, long: true}, nil, nil, &m); err != nil {
		return st, err
	}
	err = json.Unmarshal(m.Bytes, &st)
	return st, err
}

// ClusterMap is the map of the cluster that the server's Store is a node of, as package replication reads it.
//
// Errors: Unsupported (it is of none).
func (c *Client) ClusterMap(ctx context.Context) ([]byte, error) {
	var m frames.Document
	err := c.do(ctx, spec{t: frames.TypeClusterMap, op: "cluster map", again: true}, nil, nil, &m)
	return m.Bytes, err
}

// Node is which node of a cluster the server is, by the name that its map has: "" where it is of none, or does not say.
//
// Errors: those of a connection, where there is none yet.
func (c *Client) Node(ctx context.Context) (string, error) {
	if _, err := c.conn(ctx, 0); err != nil {
		return "", err
	}
	c.spacesMu.RLock()
	defer c.spacesMu.RUnlock()
	return c.node, nil
}

// Admin carries out an administrative call of the server: what calls there are, and what they take, the server says.
func (c *Client) Admin(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error) {
	var m frames.Document
	err := c.do(ctx, spec{t: frames.TypeAdmin, op: "admin " + name, long: true},
		&frames.AdminRequest{Name: name, JSON: in}, nil, &m)
	return m.Bytes, err
}
