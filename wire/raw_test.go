package wire

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

// rawConn is a connection on which a test does what no client would.
type rawConn struct {
	net.Conn
	l *link.Link
}

func rawDial(t testing.TB, addr string) *rawConn {
	t.Helper()
	network := "tcp"
	if len(addr) > 5 && addr[:5] == "unix:" {
		network, addr = "unix", addr[5:]
	}
	c, err := net.Dial(network, addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return &rawConn{c, link.New(c, time.Minute, frames.SlowestRate)}
}

// send writes a frame; a server that has closed is not an error.
func (c *rawConn) send(t testing.TB, h frames.Header, m frames.Message, payload string) {
	t.Helper()
	h.Payload = uint32(len(payload))
	b, err := frames.AppendFrame(nil, h, m)
	assert.NoError(t, err)
	_, _ = c.Write(append(b, payload...))
}

func (c *rawConn) next() (frames.Header, []byte, error) {
	h, err := c.l.Header(time.Minute)
	if err != nil {
		return h, nil, err
	}
	body := make([]byte, h.Body)
	if err := c.l.Body(&h, body); err != nil {
		return h, nil, err
	}
	return h, body, c.l.Discard(uint64(h.Payload))
}

// hello authenticates and requires the welcome.
func (c *rawConn) hello(t testing.TB, token string) frames.Welcome {
	t.Helper()
	c.send(t, frames.Header{Type: frames.TypeHello}, &frames.Hello{Min: 1, Max: 1, Features: frames.FeatureXXH3,
		Token: token}, "")
	h, body, err := c.next()
	require.NoError(t, err)
	require.Equal(t, frames.TypeHello|frames.Answer, h.Type)
	var w frames.Welcome
	require.NoError(t, frames.Decode(h.Type, body, &w))
	return w
}

func payloadOf(s string) net.Buffers {
	if s == "" {
		return nil
	}
	return net.Buffers{[]byte(s)}
}

func listenTLS(t testing.TB, conf *tls.Config) (net.Listener, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return tls.NewListener(l, conf), l.Addr().String()
}
