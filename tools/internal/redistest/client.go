// Package redistest is the little of a Redis client that tests of servers need, so that the module an embedder
// requires has no Redis client among its requirements. What clients of others make of a server is tested with
// those clients, in tools/integration.
package redistest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrNil says that a value is not there.
var ErrNil = errors.New("redis: nil")

// Error is an error that the server answered with.
type Error string

func (e Error) Error() string { return string(e) }

// Options of New.
type Options struct {
	Addr     string
	Password string
	TLS      *tls.Config   // nil: plain
	Timeout  time.Duration // of connecting, and of each call; a minute by default
	Retries  int           // how often a call that the server refuses for now is made again
}

// Client has one connection, which it makes when it needs it, and anew after an error of it. Calls on any
// goroutine are made one after the other.
type Client struct {
	o    Options
	mu   sync.Mutex
	conn net.Conn
	r    *bufio.Reader
}

// New makes a client. It connects with the first call.
func New(o Options) *Client {
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	return &Client{o: o}
}

// Close closes the connection; the next call would make another.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hangUp()
}

func (c *Client) hangUp() error {
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn = nil
	return err
}

// Do gives a command and returns its reply: a string of a simple one, an int64, the []byte of a value, nil where
// there is none, or a list of these.
func (c *Client) Do(ctx context.Context, args ...any) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for again := 0; ; again++ {
		reply, err := c.once(ctx, args)
		var said Error
		if again >= c.o.Retries || !errors.As(err, &said) || !strings.HasPrefix(string(said), "TRYAGAIN") && !strings.HasPrefix(string(said), "LOADING") {
			return reply, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond << again):
		}
	}
}

// once makes a call, over a new connection where there is none.
func (c *Client) once(ctx context.Context, args []any) (reply any, err error) {
	if c.conn == nil {
		if err := c.dial(ctx); err != nil {
			return nil, err
		}
	}
	reply, err = c.exchange(ctx, args)
	var said Error
	if err != nil && !errors.As(err, &said) {
		_ = c.hangUp() // nobody knows where in a reply it is
	}
	return reply, err
}

func (c *Client) dial(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	if c.o.TLS != nil {
		c.conn, err = (&tls.Dialer{Config: c.o.TLS}).DialContext(ctx, "tcp", c.o.Addr)
	} else {
		c.conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", c.o.Addr)
	}
	if err != nil {
		c.conn = nil
		return err
	}
	c.r = bufio.NewReader(c.conn)
	if c.o.Password == "" {
		return nil
	}
	if _, err := c.exchange(ctx, []any{"AUTH", c.o.Password}); err != nil {
		_ = c.hangUp()
		return err
	}
	return nil
}

func (c *Client) exchange(ctx context.Context, args []any) (any, error) {
	conn := c.conn
	_ = conn.SetDeadline(time.Now().Add(c.o.Timeout))
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write(encode(args)); err != nil {
		return nil, err
	}
	return c.read()
}

func encode(args []any) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		v, ok := a.([]byte)
		if !ok {
			v = fmt.Append(nil, a)
		}
		fmt.Fprintf(&b, "$%d\r\n", len(v))
		b.Write(v)
		b.WriteString("\r\n")
	}
	return b.Bytes()
}

// read reads one reply.
func (c *Client) read() (any, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("an empty line is no reply")
	}
	switch rest := line[1:]; line[0] {
	case '+':
		return rest, nil
	case '-':
		return nil, Error(rest)
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return nil, err
		}
		v := make([]byte, n+2)
		_, err = io.ReadFull(c.r, v)
		return v[:n], err
	case '*':
		n, err := strconv.Atoi(rest)
		list := make([]any, 0, max(n, 0))
		for ; err == nil && n > 0; n-- {
			var x any
			x, err = c.read()
			list = append(list, x)
		}
		return list, err
	}
	return nil, fmt.Errorf("%q is no reply", line)
}

// Set sets a value, for as long as given, or for good.
func (c *Client) Set(ctx context.Context, key string, value any, ttl time.Duration) error {
	args := []any{"SET", key, value}
	if ttl > 0 {
		args = append(args, "PX", ttl.Milliseconds())
	}
	_, err := c.Do(ctx, args...)
	return err
}

// Get gives a value, or ErrNil.
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	v, err := c.Do(ctx, "GET", key)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, ErrNil
	}
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("GET: %v is no value", v)
	}
	return b, nil
}

// Int gives a command whose reply is a number.
func (c *Client) Int(ctx context.Context, args ...any) (int64, error) {
	v, err := c.Do(ctx, args...)
	if err != nil {
		return 0, err
	}
	n, ok := v.(int64)
	if !ok {
		return 0, fmt.Errorf("%v: %v is no number", args[0], v)
	}
	return n, nil
}

// Ping asks whether the server is there.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.Do(ctx, "PING")
	return err
}
