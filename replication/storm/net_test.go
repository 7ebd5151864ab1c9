package storm

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// network is machines that reach each other through memory. What one sends another arrives in the order of its
// connection, some time later; of two connections either may be ahead. All of it is driven by one source of numbers.
type network struct {
	mu    sync.Mutex
	r     *rand.Rand
	at    map[string]*listener
	conns map[*conn]bool
	cut   map[way]bool          // nothing gets there, until it is healed
	slow  map[way]time.Duration // what is sent takes so long besides
	dark  map[string]bool       // machines without power: they do not even refuse
	moved chan struct{}         // closed and made anew when cut or dark changes
}

// way is the one direction between two machines.
type way struct{ from, to string }

const (
	fastest    = 50 * time.Microsecond
	usual      = 2 * time.Millisecond
	inFlight   = 1 << 18          // bytes of one connection, one way
	dialGives  = 20 * time.Second // who connects gives up then, as a machine's own patience ends
	stallGives = 20 * time.Second // as who has sent something that does not arrive
)

func newNetwork(seed uint64) *network {
	return &network{r: rand.New(rand.NewPCG(seed, 3)), at: map[string]*listener{}, conns: map[*conn]bool{},
		cut: map[way]bool{}, slow: map[way]time.Duration{}, dark: map[string]bool{}, moved: make(chan struct{})}
}

// change changes which ways there are, and wakes who waits for one.
func (n *network) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	close(n.moved)
	n.moved = make(chan struct{})
	for c := range n.conns {
		c.in.tell()
	}
}

// heal has everybody reach everybody.
func (n *network) heal() {
	n.change(func() { clear(n.cut); clear(n.slow) })
}

// sever cuts connections, each with a chance of share, wherever a frame is.
func (n *network) sever(share float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if n.r.Float64() < share {
			n.resetLocked(c)
		}
	}
}

// resetLocked ends a connection for both sides: of what is on the way any number of bytes arrive.
func (n *network) resetLocked(c *conn) {
	for _, p := range []*pipe{c.in, c.out} {
		if p.broken {
			continue
		}
		p.broken = true
		left := 0
		if p.size > 0 {
			left = n.r.IntN(p.size + 1)
		}
		p.trim(left)
		p.tell()
	}
	delete(n.conns, c)
	delete(n.conns, c.other)
}

// machine is a machine from one start to the next. What it had open ends with it.
type machine struct {
	n    *network
	name string
	dead bool // guarded by n
}

func (n *network) boot(name string) *machine {
	n.change(func() {
		for c := range n.conns { // what was sent to it meanwhile is for nobody
			if c.name == name || c.other.name == name {
				n.resetLocked(c)
			}
		}
		delete(n.dark, name)
	})
	return &machine{n: n, name: name}
}

// crash ends a machine, so that nothing leaves it from here on. Without power nobody is told so.
func (m *machine) crash(power bool) {
	m.n.change(func() {
		m.dead = true
		m.n.dark[m.name] = !power
		for a, l := range m.n.at {
			if l.m == m {
				delete(m.n.at, a)
				l.end()
			}
		}
		for c := range m.n.conns {
			switch {
			case c.m != m:
			case power:
				m.n.resetLocked(c)
			default: // the other side hears nothing more
				c.in.lost, c.out.lost = true, true
			}
		}
	})
}

// listener is where a machine is reached.
type listener struct {
	m    *machine
	addr string
	c    chan *conn
	over chan struct{}
	once sync.Once
}

func (m *machine) listen(addr string) *listener {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	l := &listener{m: m, addr: addr, c: make(chan *conn, 64), over: make(chan struct{})}
	if !m.dead {
		m.n.at[addr] = l
	}
	return l
}

func (l *listener) end() { l.once.Do(func() { close(l.over) }) }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.over:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.m.n.mu.Lock()
	defer l.m.n.mu.Unlock()
	if l.m.n.at[l.addr] == l {
		delete(l.m.n.at, l.addr)
	}
	l.end()
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return place(l.addr) }

type place string

func (place) Network() string  { return "memory" }
func (p place) String() string { return string(p) }

// dial connects to an address: the name of a machine, a colon and a port.
func (m *machine) dial(ctx context.Context, addr string) (net.Conn, error) {
	to, _, _ := net.SplitHostPort(addr)
	ctx, cancel := context.WithTimeout(ctx, dialGives)
	defer cancel()
	for {
		m.n.mu.Lock()
		away := m.n.cut[way{m.name, to}] || m.n.cut[way{to, m.name}] || m.n.dark[to]
		moved, wait := m.n.moved, m.n.delay(way{m.name, to})+m.n.delay(way{to, m.name})
		m.n.mu.Unlock()
		if !away {
			if err := sleep(ctx, wait); err != nil {
				return nil, err
			}
			break
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: "memory", Addr: place(addr), Err: os.ErrDeadlineExceeded}
		}
	}
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "memory", Addr: place(addr), Err: syscall.ECONNREFUSED}
	l := m.n.at[addr]
	if l == nil || m.dead {
		return nil, refused
	}
	there, back := &pipe{n: m.n, way: way{m.name, to}}, &pipe{n: m.n, way: way{to, m.name}}
	there.woken, back.woken = make(chan struct{}), make(chan struct{})
	a := &conn{n: m.n, m: m, name: m.name, in: back, out: there, here: place(m.name + ":0"), there: place(addr)}
	b := &conn{n: m.n, m: l.m, name: to, in: there, out: back, here: place(addr), there: a.here, other: a}
	a.other = b
	select {
	case l.c <- b:
	default:
		return nil, refused
	}
	m.n.conns[a], m.n.conns[b] = true, true
	return a, nil
}

// connect is dial as wire.Options has it.
func (m *machine) connect(ctx context.Context, _, addr string) (net.Conn, error) {
	return m.dial(ctx, addr)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// delay is how long something takes now. mu is held.
func (n *network) delay(w way) time.Duration {
	d := fastest + time.Duration(n.r.Int64N(int64(usual)))
	if n.r.IntN(50) == 0 {
		d *= 10
	}
	return d + n.slow[w]
}

// pipe is one direction of a connection. The network guards it.
type pipe struct {
	n      *network
	way    way
	q      []packet
	size   int
	last   time.Time
	shut   bool          // its writer has closed it: its reader reads what there is
	gone   bool          // its reader has closed it
	broken bool          // it was cut
	lost   bool          // of a machine without power: nothing of it arrives any more
	woken  chan struct{} // closed and made anew when something changed
}

type packet struct {
	at, sent time.Time
	b        []byte
}

func (p *pipe) tell() {
	close(p.woken)
	p.woken = make(chan struct{})
}

// trim leaves the first bytes of what is on its way, at once.
func (p *pipe) trim(left int) {
	p.size = left
	for i := range p.q {
		p.q[i].at = time.Time{}
		if len(p.q[i].b) >= left {
			p.q[i].b = p.q[i].b[:left]
			p.q = p.q[:i+1]
			return
		}
		left -= len(p.q[i].b)
	}
}

// conn is one end of a connection.
type conn struct {
	n           *network
	m           *machine
	name        string
	in, out     *pipe
	other       *conn
	here, there place
	closed      bool
	reads       time.Time
	writes      time.Time
}

func failure(op string, err error) error { return &net.OpError{Op: op, Net: "memory", Err: err} }

// await waits until something changes about a pipe, or a time that is not zero. It is called, and returns, with the
// network's mutex held.
func (p *pipe) await(until ...time.Time) {
	woken := p.woken
	var first time.Time
	for _, t := range until {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	p.n.mu.Unlock()
	defer p.n.mu.Lock()
	if first.IsZero() {
		<-woken
		return
	}
	t := time.NewTimer(time.Until(first))
	defer t.Stop()
	select {
	case <-woken:
	case <-t.C:
	}
}

func past(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for p := c.in; ; {
		open := !c.n.cut[p.way] && !p.lost
		switch {
		case c.closed:
			return 0, failure("read", net.ErrClosed)
		case c.m.dead:
			return 0, failure("read", syscall.ECONNRESET)
		case past(c.reads):
			return 0, failure("read", os.ErrDeadlineExceeded)
		case len(b) == 0:
			return 0, nil
		case len(p.q) > 0 && len(p.q[0].b) == 0:
			p.q = p.q[1:]
			continue
		case len(p.q) > 0 && (p.broken || open && past(p.q[0].at)):
			k := copy(b, p.q[0].b)
			p.q[0].b = p.q[0].b[k:]
			p.size -= k
			p.tell()
			return k, nil
		case p.broken && len(p.q) == 0:
			return 0, failure("read", syscall.ECONNRESET)
		case p.shut && open && len(p.q) == 0:
			return 0, io.EOF
		case len(p.q) > 0 && past(p.q[0].sent.Add(stallGives)):
			c.n.resetLocked(c)
			continue
		}
		var arrives, stalls time.Time
		if len(p.q) > 0 && open {
			arrives = p.q[0].at
		}
		if len(p.q) > 0 && !open {
			stalls = p.q[0].sent.Add(stallGives)
		}
		p.await(c.reads, arrives, stalls)
	}
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (n int, err error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for p := c.out; len(b) > 0; {
		switch {
		case c.closed:
			return n, failure("write", net.ErrClosed)
		case p.broken || c.m.dead:
			return n, failure("write", syscall.ECONNRESET)
		case p.gone:
			return n, failure("write", syscall.EPIPE)
		case past(c.writes):
			return n, failure("write", os.ErrDeadlineExceeded)
		case p.size >= inFlight:
			p.await(c.writes)
			continue
		}
		k := min(len(b), inFlight-p.size, 1+c.n.r.IntN(4096))
		now := time.Now()
		if at := now.Add(c.n.delay(p.way)); at.After(p.last) {
			p.last = at
		}
		p.q = append(p.q, packet{p.last, now, append([]byte(nil), b[:k]...)})
		p.size += k
		b, n = b[k:], n+k
		p.tell()
	}
	return n, nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed, c.out.shut, c.in.gone = true, true, true
	c.in.tell()
	c.out.tell()
	if c.other.closed {
		delete(c.n.conns, c)
		delete(c.n.conns, c.other)
	}
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.here }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.there }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error { return c.until(&t, &t) }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.until(&t, nil) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.until(nil, &t) }

func (c *conn) until(reads, writes *time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if reads != nil {
		c.reads = *reads
		c.in.tell()
	}
	if writes != nil {
		c.writes = *writes
		c.out.tell()
	}
	return nil
}
