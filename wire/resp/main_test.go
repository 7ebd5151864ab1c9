package resp

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/leaks"
	"github.com/skepkv/skep/wire/auth"
)

func TestMain(m *testing.M) {
	machineClock = storetest.MachineClock()
	leaks.Main(m)
}

// fakeClock is a time that tests move.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *fakeClock { return &fakeClock{now: time.UnixMilli(1_700_000_000_000)} }

func (c *fakeClock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	c.mu.Unlock()
}

// fixture is a server in front of a memory store.
type fixture struct {
	t      testing.TB
	store  skep.Store
	server *Server
	addr   string
}

// serve starts a server; o may leave Auth out for an open one.
func serve(t testing.TB, st skep.Store, o Options) *fixture {
	t.Helper()
	if st == nil {
		st = memstore.New(memstore.Options{PoisonReleased: true})
		t.Cleanup(func() { require.NoError(t, st.Close()) })
	}
	if o.Auth == nil {
		d, err := auth.New(nil, nil, nil)
		require.NoError(t, err)
		o.Auth = d
	}
	if o.OpTimeout == 0 {
		o.OpTimeout = 5 * time.Minute // a busy machine is not a late store
	}
	s, err := New(st, o)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = s.Shutdown(ctx)
		require.NoError(t, <-done)
	})
	return &fixture{t, st, s, l.Addr().String()}
}

// database is the default tenant's database 0, which a SET has made.
func (f *fixture) database() *database {
	f.t.Helper()
	db := f.server.database(f.server.tenantOf("default"), 0)
	assert.True(f.t, db.made.Load())
	return db
}

// client is a connection that sends what it is told and reads replies whole.
type client struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func (f *fixture) dial() *client {
	f.t.Helper()
	c, err := net.Dial("tcp", f.addr)
	require.NoError(f.t, err)
	require.NoError(f.t, c.SetDeadline(time.Now().Add(5*time.Minute)))
	f.t.Cleanup(func() { c.Close() })
	return &client{f.t, c, bufio.NewReader(c)}
}

// encode is a command as clients send it.
func encode(args ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.Bytes()
}

func (c *client) send(args ...string) {
	c.t.Helper()
	_, err := c.Write(encode(args...))
	require.NoError(c.t, err)
}

// do sends a command and gives its reply as text: bulk strings in quotes, arrays in
// brackets, nil, numbers, +simple, -errors.
func (c *client) do(args ...string) string {
	c.t.Helper()
	c.send(args...)
	return c.reply()
}

// words is do for a command without blanks in its arguments.
func (c *client) words(line string) string {
	c.t.Helper()
	return c.do(strings.Fields(line)...)
}

func (c *client) reply() string {
	c.t.Helper()
	s, err := c.tryReply()
	require.NoError(c.t, err)
	return s
}

func (c *client) tryReply() (string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	var n int
	switch line[0] {
	case '+', '-':
		return line, nil
	case ':':
		return line[1:], nil
	case '_':
		return "null", nil
	case '$':
		fmt.Sscan(line[1:], &n)
		if n < 0 {
			return "nil", nil
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, b); err != nil {
			return "", err
		}
		return quoted(b[:n]), nil
	case '*', '%', '~':
		fmt.Sscan(line[1:], &n)
		if line[0] == '%' {
			n *= 2
		}
		parts := make([]string, n)
		for i := range parts {
			if parts[i], err = c.tryReply(); err != nil {
				return "", err
			}
		}
		return string(line[0]) + "[" + strings.Join(parts, " ") + "]", nil
	}
	return "", fmt.Errorf("odd reply %q", line)
}

// quoted is how reply shows a bulk string: large ones by size and checksum.
func quoted(b []byte) string {
	if len(b) <= 1024 {
		return fmt.Sprintf("%q", b)
	}
	return fmt.Sprintf("%d bytes, %x", len(b), xxh3.Hash(b))
}
