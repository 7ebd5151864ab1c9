package integration

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/serve"
	"github.com/skepkv/skep/wire/httpapi"
)

// local is a configuration on free ports.
func local(t *testing.T) *serve.Config {
	c := serve.Default()
	c.Dir = filepath.Join(t.TempDir(), "d")
	c.Unix = serve.None
	c.Listen, c.RESP, c.HTTP = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.FileDevices, c.Store.CapacityBytes, c.Store.DRAMBytes, c.Store.IOBytes, c.Limits.MemoryBytes = 2, 256<<20, 32<<20, 64<<20, 64<<20
	return c
}

// start has a server run until the test ends, and says where it listens, by protocol.
func start(t *testing.T, c *serve.Config) (at map[string]string) {
	t.Helper()
	at, _ = startStoppable(t, c)
	return at
}

// startStoppable is start, with what stops it.
func startStoppable(t *testing.T, c *serve.Config) (at map[string]string, stop func()) {
	t.Helper()
	var log said
	ready := make(chan httpapi.ServerInfo, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- serve.Run(ctx, c, serve.Options{Version: "v0", Log: &log, Ready: func(i httpapi.ServerInfo) { ready <- i }})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done, "%s", log.String())
	})
	t.Cleanup(stop)
	at = map[string]string{}
	select {
	case i := <-ready:
		for _, l := range i.Listeners {
			at[l.Protocol] = l.Address
		}
	case err := <-done:
		done <- nil
		t.Fatalf("it does not start: %v: %s", err, log.String())
	case <-time.After(2 * time.Minute):
		t.Fatal("it does not start")
	}
	return at, stop
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

// write makes a file.
func write(t *testing.T, name string, text []byte) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

const token = "a-token-of-good-length"
