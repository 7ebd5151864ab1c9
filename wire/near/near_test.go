package near

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever the connection, bytes go through it as before.
func TestTunedConnectionsCarryBytes(t *testing.T) {
	t.Parallel()
	local := func(t *testing.T, wrap func(net.Conn) net.Conn) (net.Conn, net.Conn) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		a, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		b, err := l.Accept()
		require.NoError(t, err)
		Tune(wrap(a))
		return a, b
	}
	for name, pair := range map[string]func(t *testing.T) (net.Conn, net.Conn){
		"tcp": func(t *testing.T) (net.Conn, net.Conn) { return local(t, func(c net.Conn) net.Conn { return c }) },
		"under tls": func(t *testing.T) (net.Conn, net.Conn) {
			return local(t, func(c net.Conn) net.Conn { return tls.Client(c, &tls.Config{ServerName: "x"}) })
		},
		"a pipe": func(t *testing.T) (net.Conn, net.Conn) {
			a, b := net.Pipe()
			Tune(a)
			return a, b
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			defer b.Close()
			want := bytes.Repeat([]byte("0123456789abcdef"), 8*sendBuffer/16)
			go func() {
				_, _ = a.Write(want)
				a.Close()
			}()
			got, err := io.ReadAll(b)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		})
	}
}
