// Package gate bounds how many connections there are, over all listeners together.
//
// Whoever connects has not said who it is, and takes a descriptor of the process all the same. Where these
// run out, the store cannot open its next file: so listeners take theirs from what is left when the store
// has its own, and no protocol can take all of that.
package gate

import (
	"net"
	"sync"
	"sync/atomic"
)

// Gate counts descriptors of connections up to a limit.
type Gate struct {
	within *Gate // its limit holds, too; nil: none
	limit  int64
	used   atomic.Int64

	accepted, refused atomic.Int64
}

// New makes a gate for limit descriptors, which are taken from within's as well, if that is not nil.
func New(limit int, within *Gate) *Gate { return &Gate{within: within, limit: int64(limit)} }

// Enter takes n descriptors for a connection; false when they are not there. Every true is to be followed by
// one Leave.
func (g *Gate) Enter(n int) bool {
	if !g.take(int64(n)) {
		g.refused.Add(1)
		return false
	}
	g.accepted.Add(1)
	return true
}

func (g *Gate) take(n int64) bool {
	if g.used.Add(n) > g.limit || g.within != nil && !g.within.take(n) {
		g.used.Add(-n)
		return false
	}
	return true
}

// Leave gives back what Enter took.
func (g *Gate) Leave(n int) {
	for ; g != nil; g = g.within {
		g.used.Add(-int64(n))
	}
}

// Limit is how many descriptors there are.
func (g *Gate) Limit() int { return int(g.limit) }

// Used is how many are taken.
func (g *Gate) Used() int { return int(g.used.Load()) }

// Accepted is how many connections came in.
func (g *Gate) Accepted() int64 { return g.accepted.Load() }

// Refused is how many connections did not come in.
func (g *Gate) Refused() int64 { return g.refused.Load() }

// Listener is l, whose connections take a descriptor each. One too many is closed before anything is read
// from it. It is for servers that do not count for themselves.
func (g *Gate) Listener(l net.Listener) net.Listener { return &listener{l, g} }

type listener struct {
	net.Listener
	g *Gate
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.g.Enter(1) {
			return &conn{Conn: c, g: l.g}, nil
		}
		_ = c.Close()
	}
}

// conn leaves its gate when it is closed, once.
type conn struct {
	net.Conn
	g    *Gate
	once sync.Once
}

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.g.Leave(1) })
	return err
}

// NetConn is the connection itself.
func (c *conn) NetConn() net.Conn { return c.Conn }
