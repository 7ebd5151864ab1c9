package near

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// counted counts the calls that reach the kernel.
type counted struct {
	net.Conn
	writes, reads atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) { c.writes.Add(1); return c.Conn.Write(p) }
func (c *counted) Read(p []byte) (int, error)  { c.reads.Add(1); return c.Conn.Read(p) }

// pair is a server's and a client's end of a TLS connection, with the connections under them.
func pair(t *testing.T) (server, client *tls.Conn, under [2]*counted) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"x"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, err := l.Accept()
	require.NoError(t, err)
	under = [2]*counted{{Conn: b}, {Conn: a}}
	server = tls.Server(Gather(under[0]), &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	client = tls.Client(Gather(under[1]), &tls.Config{InsecureSkipVerify: true})
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return server, client, under
}

// What is held arrives whole and in order, in fewer calls than records; what is not held arrives
// at once.
func TestGatheredRecordsArriveInOrder(t *testing.T) {
	t.Parallel()
	server, client, under := pair(t)
	want := make([]byte, 3<<20)
	_, _ = rand.Read(want)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer server.Close()
		g := GathererOf(server)
		for rest := want; len(rest) > 0; {
			_, _ = server.Write(rest[:1]) // not held
			g.Hold()
			for _, n := range []int{1, 100_000, 700_000} {
				n = min(n, len(rest[1:]))
				_, _ = server.Write(rest[1 : 1+n])
				rest = rest[n:]
			}
			_ = g.Flush()
			rest = rest[1:]
		}
	})
	got, err := io.ReadAll(client)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	wg.Wait()
	records := int64(len(want) / (16 << 10))
	require.Less(t, under[0].writes.Load(), records/3)
}

// Closing does not wait for a peer that takes nothing.
func TestClosingEndsAFlushThatIsStuck(t *testing.T) {
	t.Parallel()
	server, client, _ := pair(t)
	var wg sync.WaitGroup
	wg.Go(func() { _ = client.Handshake() })
	require.NoError(t, server.Handshake())
	wg.Wait()
	g := GathererOf(server)
	stuck := make(chan error)
	go func() {
		for {
			g.Hold()
			_, err := server.Write(make([]byte, 100_000))
			if err = errors.Join(err, g.Flush()); err != nil {
				stuck <- err
				return
			}
		}
	}()
	require.NoError(t, ignoreReset(server.Close()))
	require.Error(t, <-stuck)
}

// ignoreReset passes over what a close says of a write it cut off.
func ignoreReset(err error) error {
	if _, ok := err.(net.Error); ok {
		return nil
	}
	return err
}

// Without TLS there is nothing to gather.
func TestNothingUnderAPlainConnection(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	g := GathererOf(a)
	require.Nil(t, g)
	g.Hold()
	require.NoError(t, g.Flush())
}
