package wire

import (
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// proxy is a network that misbehaves between a client and a server.
type proxy struct {
	addr string
	to   string

	silent atomic.Bool  // bytes go nowhere, and nobody is told (a half-open connection)
	delay  atomic.Int64 // of every piece, in nanoseconds
	jitter atomic.Int64 // a random delay of every piece, below so many nanoseconds: connections overtake each other
	flip   atomic.Int64 // bytes from the server until one is flipped; 0 none
	down   atomic.Bool  // new connections are refused
	stall  atomic.Int64 // bytes from the server until nothing more comes, which closes stalled; 0: none

	stalled, goesOn chan struct{} // goesOn: what has stalled goes on when it is closed

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t testing.TB, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{addr: l.Addr().String(), to: to}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if p.down.Load() {
				c.Close()
				continue
			}
			wait.Go(func() { p.serve(c, &wait) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.cut()
		wait.Wait()
	})
	return p
}

func (p *proxy) serve(c net.Conn, wait *sync.WaitGroup) {
	network := "tcp"
	to, unix := strings.CutPrefix(p.to, "unix:")
	if unix {
		network = "unix"
	}
	s, err := net.Dial(network, to)
	if err != nil {
		c.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, c, s)
	p.mu.Unlock()
	wait.Go(func() { p.copy(s, c, false) })
	p.copy(c, s, true)
}

func (p *proxy) copy(to, from net.Conn, fromServer bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if d := p.delay.Load(); d > 0 {
			time.Sleep(time.Duration(d))
		}
		if j := p.jitter.Load(); j > 0 {
			time.Sleep(time.Duration(rand.Int64N(j)))
		}
		for p.silent.Load() {
			if _, err := from.Read(b); err != nil {
				return
			}
		}
		if left := p.flip.Load(); fromServer && left > 0 {
			if left <= int64(n) {
				b[left-1] ^= 0x40
			}
			p.flip.Store(max(left-int64(n), 0))
		}
		off := 0
		if left := p.stall.Load(); fromServer && left > 0 {
			if p.stall.Store(max(left-int64(n), 0)); left <= int64(n) {
				off = int(left)
				if _, err := to.Write(b[:off]); err != nil {
					return
				}
				close(p.stalled)
				<-p.goesOn
			}
		}
		if n > off {
			if _, err := to.Write(b[off:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut ends every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}
