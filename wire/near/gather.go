package near

import (
	"crypto/tls"
	"net"
	"sync"
)

// gatherBytes is what goes to the kernel, or comes from it, in one call: eight TLS records of 16 KiB
// with what they add. Larger ones have left the caches by the time they are copied.
const gatherBytes = 8 * (16<<10 + 256)

var gathers = sync.Pool{New: func() any { return new([gatherBytes]byte) }}

// Gatherer is a connection under TLS whose records go to the kernel, and come from it, several at a
// time. crypto/tls makes one call a record, and on a near connection a call costs as much as
// the record's encryption.
//
// Writes go out at once, unless Hold was called before. Reads take memory only while bytes come
// faster than they are read. It is as safe for concurrent use as the connection in it.
type Gatherer struct {
	net.Conn

	mu   sync.Mutex
	free sync.Cond // broadcast when busy ends
	busy bool      // a write is under way, without the lock: what comes meanwhile waits in out
	held bool
	room *[gatherBytes]byte // nil: not held
	out  []byte             // to be written: in room, unless it came late
	err  error              // of a write; the connection is of no use after it

	// The reader's.
	ahead    *[gatherBytes]byte // nil: nothing is read ahead
	from, to int
	more     bool // the last read was filled: there is more, probably
}

// Gather is c with writes to be gathered. TLS goes on top of it.
func Gather(c net.Conn) *Gatherer {
	g := &Gatherer{Conn: c}
	g.free.L = &g.mu
	return g
}

// GathererOf is what lies under c's TLS, or nil, whose methods Hold and Flush do nothing.
func GathererOf(c net.Conn) *Gatherer {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	g, _ := c.(*Gatherer)
	return g
}

// NetConn is the connection itself.
func (g *Gatherer) NetConn() net.Conn { return g.Conn }

// Hold keeps what is written from here on until there is enough for one call, or until Flush.
func (g *Gatherer) Hold() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held {
		return
	}
	g.held, g.room = true, gathers.Get().(*[gatherBytes]byte)
	g.out = append(g.room[:0], g.out...)
}

// Flush ends Hold and writes what is left. It returns the first error of what was written.
func (g *Gatherer) Flush() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.held {
		return nil
	}
	g.writeLocked()
	gathers.Put(g.room)
	g.held, g.room = false, nil
	for len(g.out) > 0 && g.err == nil {
		g.writeLocked() // came late, and is not in room
	}
	g.out = nil
	return g.err
}

// writeLocked writes what is in out, with the lock given up meanwhile: who closes the connection is
// not to wait for a peer that reads nothing.
func (g *Gatherer) writeLocked() {
	for g.busy {
		g.free.Wait()
	}
	b := g.out
	g.out = nil
	if g.err == nil && len(b) > 0 {
		g.busy = true
		g.mu.Unlock()
		_, err := g.Conn.Write(b)
		g.mu.Lock()
		g.busy = false
		g.free.Broadcast()
		if g.err == nil {
			g.err = err
		}
	}
	if g.room != nil && len(g.out) == 0 {
		g.out = g.room[:0]
	}
}

// Write implements net.Conn.
func (g *Gatherer) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held && !g.busy && len(g.out)+len(p) > gatherBytes {
		g.writeLocked()
	}
	if g.err != nil {
		return 0, g.err
	}
	if g.held || g.busy {
		g.out = append(g.out, p...)
		return len(p), nil
	}
	g.out = p
	g.writeLocked()
	for len(g.out) > 0 && !g.held && !g.busy && g.err == nil {
		g.writeLocked() // came late: nobody else writes it
	}
	if g.err != nil {
		return 0, g.err
	}
	return len(p), nil
}

// Read implements net.Conn.
func (g *Gatherer) Read(p []byte) (int, error) {
	if g.ahead == nil {
		if !g.more || len(p) >= gatherBytes {
			n, err := g.Conn.Read(p)
			g.more = n == len(p) && n > 0
			return n, err
		}
		room := gathers.Get().(*[gatherBytes]byte)
		n, err := g.Conn.Read(room[:])
		g.more = n == gatherBytes
		if n == 0 {
			gathers.Put(room)
			return 0, err
		}
		g.ahead, g.from, g.to = room, 0, n // an error comes again with the next read
	}
	n := copy(p, g.ahead[g.from:g.to])
	if g.from += n; g.from == g.to {
		gathers.Put(g.ahead)
		g.ahead = nil
	}
	return n, nil
}

// Listener gathers on the connections that l accepts.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Gather(c), nil
}
