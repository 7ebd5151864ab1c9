package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/near"
)

// secured is the two ends of a connection under TLS that has no buffers.
func secured(t *testing.T) (client, server *tls.Conn) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	require.NoError(t, err)
	a, b := net.Pipe()
	client = tls.Client(near.Gather(a), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	server = tls.Server(b, &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	hands := make(chan error, 1)
	go func() { hands <- server.Handshake() }()
	require.NoError(t, client.Handshake())
	require.NoError(t, <-hands)
	return client, server
}

// A context that ends while a frame is written under TLS does not end the connection, as long as the other side takes
// the frame soon. Where it does not, the caller waits little longer than its context, and the connection is over.
func TestAContextThatEndsAsAWriteBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := secured(t)
		l := New(client, time.Minute, 1<<20)
		frame := make([]byte, 4096)
		send := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return l.Send(ctx, frame, nil)
		}
		go func() {
			for range 2 {
				time.Sleep(time.Second + grace/2)
				_, _ = io.ReadFull(server, make([]byte, len(frame)))
			}
		}()
		require.NoError(t, send())
		require.NoError(t, send())

		over, cancel := context.WithCancel(t.Context())
		cancel()
		for range 8 { // whether it has the turn or its context's end first is left to chance
			var u *Unsent
			require.ErrorAs(t, l.Send(over, frame, nil), &u)
		}
		began := time.Now()
		require.ErrorIs(t, send(), skep.Deadline)
		require.Equal(t, time.Second+grace, time.Since(began))
		require.Error(t, send())
		_ = server.Close()
	})
}

// A frame of which a part was written has as much more time than its context, under TLS or not. One that was not begun
// has none.
func TestAFrameThatWasBegunIsFinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		l := New(here, time.Minute, 1<<20)
		frame := make([]byte, 4096)
		write := func(begun bool) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			due := time.Now().Add(time.Minute)
			l.Conn.SetWriteDeadline(due)
			defer l.cutOff(ctx, due, begun)()
			_, err := l.Conn.Write(frame)
			return err
		}
		go func() {
			time.Sleep(time.Second + grace/2)
			_, _ = io.ReadFull(there, frame)
		}()
		require.NoError(t, write(true))
		for begun, takes := range map[bool]time.Duration{false: time.Second, true: time.Second + grace} {
			began := time.Now()
			require.Error(t, write(begun))
			require.Equal(t, takes, time.Since(began))
		}
		require.NoError(t, here.Close())
		require.NoError(t, there.Close())
	})
}
