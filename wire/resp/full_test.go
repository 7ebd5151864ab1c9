package resp

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
)

// A full server under TLS hangs up on who comes, and does not wait for a handshake with it: those after it
// would wait as long as it is silent.
func TestAFullServerUnderTLSWaitsForNobody(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	d, err := auth.New(nil, nil, nil)
	require.NoError(t, err)
	s, err := New(st, Options{Auth: d, Connections: 1})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{{}}})) }()
	var open []net.Conn
	for i := range 4 {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		open = append(open, c)
		if i > 0 {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
			_, err := c.Read(make([]byte, 1))
			assert.ErrorIs(t, err, io.EOF, "connection %d", i)
		}
	}
	for _, c := range open {
		require.NoError(t, c.Close())
	}
	require.NoError(t, s.Shutdown(t.Context()))
	require.NoError(t, <-ended)
	require.NoError(t, st.Close())
}
