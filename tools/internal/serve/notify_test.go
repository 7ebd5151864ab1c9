//go:build !windows

package serve

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// manager is a service manager that reads what it is told.
type manager struct {
	t    *testing.T
	told chan string
}

func newManager(t *testing.T) *manager {
	dir, err := os.MkdirTemp("", "n") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Setenv("NOTIFY_SOCKET", path)
	m := &manager{t, make(chan string, 1024)}
	go func() {
		defer close(m.told)
		for b := make([]byte, 4096); ; {
			n, err := l.Read(b)
			if err != nil {
				return
			}
			m.told <- string(b[:n])
		}
	}()
	t.Cleanup(func() { l.Close() })
	return m
}

// next is what is told next, but for what is told again and again.
func (m *manager) next(again string) string {
	for {
		select {
		case s := <-m.told:
			if again == "" || !strings.HasPrefix(s, again) {
				return s
			}
		case <-time.After(2 * time.Minute):
			m.t.Fatal("nothing is told")
		}
	}
}

// The service manager hears that a server serves, reads its settings again and stops, each when it is so.
//
// Alone: the environment is the process's.
func TestServiceManagerIsTold(t *testing.T) {
	m := newManager(t)
	c := local(t)
	again := make(chan os.Signal)
	r := start(t, c, Options{Reload: func() (*Config, error) { return c, nil }, Again: again})
	const longer = "EXTEND_TIMEOUT_USEC="
	require.Contains(t, m.next(""), longer, "the store is being opened")
	require.Equal(t, "READY=1", m.next(longer))
	again <- os.Interrupt
	require.Regexp(t, `^RELOADING=1\nMONOTONIC_USEC=\d+\n?$`, m.next(longer))
	require.Equal(t, "READY=1", m.next(longer))
	require.NoError(t, r.stop())
	require.Equal(t, "STOPPING=1", m.next(longer))
	require.Contains(t, m.next(""), longer, "calls under way are waited for")
	require.Contains(t, m.next(""), longer, "the store is being closed")
	http.DefaultClient.CloseIdleConnections()
}

// A server that waits for a cluster to take it in asks for more time.
//
// Alone: the environment is the process's.
func TestServiceManagerIsToldOfAJoin(t *testing.T) {
	m := newManager(t)
	c := joining(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &server{c: c, log: slog.New(slog.DiscardHandler)}
	require.ErrorIs(t, s.become(ctx), skep.Deadline)
	require.Contains(t, m.next(""), "EXTEND_TIMEOUT_USEC=")
}

// stuckStore is one whose Stats may hang.
type stuckStore struct {
	skep.Store
	stuck atomic.Bool
}

func (s *stuckStore) Stats(ctx context.Context) (skep.Stats, error) {
	if s.stuck.Load() {
		<-ctx.Done()
		return skep.Stats{}, ctx.Err()
	}
	return s.Store.Stats(ctx)
}

// The watchdog is told as long as the store answers, and not any more when it does not.
//
// Alone: the environment is the process's.
func TestWatchdogIsToldWhileTheStoreAnswers(t *testing.T) {
	m := newManager(t)
	t.Setenv("WATCHDOG_USEC", "300000")
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), DeviceCount: 1, CapacityBytes: 64 << 20, IOBytes: 64 << 20, CacheBytes: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	s := &stuckStore{Store: st}
	r := start(t, local(t), Options{Store: s})
	require.Equal(t, "READY=1", m.next("EXTEND_TIMEOUT_USEC="))
	require.Equal(t, "WATCHDOG=1", m.next(""))
	require.Equal(t, "WATCHDOG=1", m.next(""))
	s.stuck.Store(true)
	require.Eventually(t, func() bool { return strings.Count(r.log.String(), "does not answer") >= 2 }, time.Minute, time.Millisecond)
	for len(m.told) > 0 {
		<-m.told // before it was stuck
	}
	require.Eventually(t, func() bool { return strings.Count(r.log.String(), "does not answer") >= 4 }, time.Minute, time.Millisecond)
	require.Empty(t, m.told)
	s.stuck.Store(false)
	require.Equal(t, "WATCHDOG=1", m.next(""))
	require.NoError(t, r.stop())
}
