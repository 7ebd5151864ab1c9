package remote_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/unjudged"
	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/tools/internal/serve"
	"github.com/skepkv/skep/tools/leaks"
	"github.com/skepkv/skep/wire/httpapi"
)

func TestMain(m *testing.M) {
	unjudged.Drives()
	leaks.Main(m)
}

// said is what a server logs.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// server is a skep server of a test: where it listens, as --server names it, and how it is stopped.
type server struct {
	at   map[string]string // wire, resp, http, unix
	stop func()
}

// begin has a server run until the test ends. st is what it serves; nil: a store of its own, on a file.
func begin(t *testing.T, st skep.Store, change func(*serve.Config)) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "skep") // the path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := serve.Default()
	c.Dir = filepath.Join(dir, "d")
	c.Listen, c.RESP, c.HTTP = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.FileDevices, c.Store.CapacityBytes, c.Store.DRAMBytes, c.Store.IOBytes, c.Limits.MemoryBytes = 1, 256<<20, 32<<20, 64<<20, 64<<20
	if st != nil {
		c.Unix = filepath.Join(dir, "s")
	}
	if change != nil {
		change(c)
	}
	var log said
	ready := make(chan httpapi.ServerInfo, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- serve.Run(ctx, c, serve.Options{Version: "v0", Log: &log, Store: st, Ready: func(i httpapi.ServerInfo) { ready <- i }})
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done, "%s", log.String())
	})
	t.Cleanup(stop)
	s := &server{at: map[string]string{}, stop: stop}
	select {
	case i := <-ready:
		for _, l := range i.Listeners {
			if path, ok := strings.CutPrefix(l.Address, "unix:"); ok {
				s.at["unix"] = "unix://" + path
				continue
			}
			s.at[l.Protocol] = "skep://" + l.Address
		}
	case err := <-done:
		done <- nil
		t.Fatalf("it does not start: %v: %s", err, log.String())
	case <-time.After(2 * time.Minute):
		t.Fatal("it does not start")
	}
	return s
}

// memory is a store in memory that lasts as long as the test.
func memory(t *testing.T) *memstore.Store {
	st := memstore.New(memstore.Options{})
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	return st
}

// at runs skep on a server.
func at(t *testing.T, to string, args ...string) commandtest.Output {
	t.Helper()
	return commandtest.Run(t, &cli.Program, "", append(args, "--server", to)...)
}

// withInput runs skep with ctx and an input of its own.
func withInput(ctx context.Context, in io.Reader, args ...string) commandtest.Output {
	var out, errs bytes.Buffer
	code := cli.Program.Main(ctx, args, in, &out, &errs)
	return commandtest.Output{Code: code, Stdout: out.String(), Stderr: errs.String()}
}

// certificate writes one that signs itself, for 127.0.0.1, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "skep"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(t, err)
	return file(t, "cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), file(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

// file makes a file.
func file(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}
