//go:build unix

package cli_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/redistest"
	"github.com/skepkv/skep/tools/internal/self"
)

// served is a server in a process of its own.
type served struct {
	t   *testing.T
	cmd *exec.Cmd
	at  map[string]string // address by protocol
	log spoken
}

// spoken is what a process says while it runs.
type spoken struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *spoken) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *spoken) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serveUnder starts skep serve from a shell that was told first first, with ports of its own choice.
func serveUnder(t *testing.T, first string, args ...string) *served {
	s := &served{t: t, at: map[string]string{}}
	all := append([]string{"-c", first + `; exec "$0" "$@"`, os.Args[0], "serve", "--json", "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--dram", "16MiB"}, args...)
	s.cmd = exec.Command("/bin/sh", all...)
	s.cmd.Env = append(os.Environ(), self.Env+"=1", "SKEP_STORE_IO_BYTES=128MiB", "SKEP_LIMITS_MEMORY_BYTES=64MiB")
	s.cmd.Stderr = &s.log
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	var said struct {
		Listeners []struct{ Protocol, Address string }
	}
	if err := json.NewDecoder(out).Decode(&said); err != nil {
		_ = s.cmd.Wait()
		require.NoError(t, err, "the server ended: %s", s.log.String())
	}
	for _, l := range said.Listeners {
		if s.at[l.Protocol] == "" {
			s.at[l.Protocol] = l.Address
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	return s
}

// stop ends it in order.
func (s *served) stop() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(s.t, s.cmd.Wait(), "%s", s.log.String())
}

// However many connections come, and say nothing, the store has the descriptors it needs, and each other
// protocol has its share.
func TestIdleConnectionsLeaveTheStoreItsFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	s := serveUnder(t, "ulimit -n 256", "--dir", dir, "--capacity", "256MiB", "--file-devices", "2", "--unix", "none")
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	for _, protocol := range []string{"http", "resp", "wire"} {
		for range 400 {
			c, err := net.DialTimeout("tcp", s.at[protocol], 10*time.Second)
			require.NoError(t, err, protocol)
			idle = append(idle, c)
		}
		if protocol == "resp" { // the last ones were told
			_ = idle[len(idle)-1].SetReadDeadline(time.Now().Add(10 * time.Second))
			line, err := bufio.NewReader(idle[len(idle)-1]).ReadString('\n')
			require.NoError(t, err)
			assert.Contains(t, line, "max number of clients")
		}
		if protocol == "http" {
			rc := redistest.New(redistest.Options{Addr: s.at["resp"], Timeout: 20 * time.Second})
			for i := range 40 {
				require.NoError(t, rc.Set(t.Context(), fmt.Sprint("k", i), bytes.Repeat([]byte{byte(i)}, 1<<20), 0), "RESP has its share: %s", s.log.String())
			}
			for i := range 40 {
				var b []byte
				require.Eventually(t, func() bool { // a drive that a busy machine kept waiting is a miss for a while
					var err error
					b, err = rc.Get(t.Context(), fmt.Sprint("k", i))
					return err == nil
				}, time.Minute, 20*time.Millisecond, "it is there")
				require.True(t, bytes.Equal(b, bytes.Repeat([]byte{byte(i)}, 1<<20)))
			}
			require.NoError(t, rc.Close())
		}
	}
	for _, c := range idle {
		c.Close()
	}
	idle = nil
	web := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var body []byte
	require.Eventually(t, func() bool {
		res, err := web.Get("http://" + s.at["http"] + "/metrics")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		body, err = io.ReadAll(res.Body)
		return err == nil
	}, time.Minute, 20*time.Millisecond, "its places are free again")
	assert.Regexp(t, `skep_http_connections_total\{result="refused"\} [1-9]`, string(body))
	assert.Contains(t, string(body), `skep_connection_files_limit{protocol="all"}`)
	s.stop()
	assert.NotContains(t, s.log.String(), "too many open files")
}

// Too few descriptors to serve with end a start at once, with what to do.
func TestTooFewFilesEndAStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	cmd := exec.Command("/bin/sh", "-c", `ulimit -n 100; exec "$0" "$@"`, os.Args[0], "serve", "--dir", dir, "--listen", "127.0.0.1:0", "--resp", "none", "--http", "none")
	cmd.Env = append(os.Environ(), self.Env+"=1")
	said, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 2, exit.ExitCode())
	assert.Contains(t, string(said), "LimitNOFILE")
	assert.NoDirExists(t, dir, "nothing was made")
}
