//go:build unix

package books

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/skepkv/skep/tools/internal/self"
	"github.com/skepkv/skep/tools/internal/serve"
	"github.com/skepkv/skep/wire/httpapi"
)

// Caps of the server: what its memory may come to with these settings, and its descriptors.
const (
	capacity    = "384MiB"
	mostMemory  = 1 << 30
	mostFiles   = 600
	startWithin = 2 * time.Minute
)

// runServer serves in this process, with a clock that a file moves.
func runServer(jump string) int {
	var offset atomic.Int64
	go func() {
		for { // ends with the process
			if b, err := os.ReadFile(jump); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
					offset.Store(n)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := serve.Load("", os.Environ(), nil)
	if err == nil {
		err = serve.Run(ctx, c, serve.Options{
			Version: "books", Log: os.Stderr,
			Clock: func() time.Time { return time.Now().Add(time.Duration(offset.Load())) },
			Ready: func(i httpapi.ServerInfo) { _ = json.NewEncoder(os.Stdout).Encode(i) },
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// server is the one that is played with: one process after another.
type server struct {
	dir, books string
	binary     string // "": this one
	life       int
	cmd        *exec.Cmd
	ended      chan error // of cmd.Wait
	log        *tail
	at         map[string]string // addresses, by protocol, of all its lives
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 1<<20 {
		t.b = append([]byte(nil), t.b[len(t.b)-(1<<19):]...)
	}
	return len(p), nil
}

func (t *tail) last(n int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(t.b), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}

func (s *server) env() []string {
	env := append(os.Environ(), "SKEP_DIR="+s.dir, "SKEP_FILE_DEVICES=3", "SKEP_STORE_CAPACITY_BYTES="+capacity, "SKEP_STORE_DRAM_BYTES=16MiB", "SKEP_STORE_IO_BYTES=128MiB",
		"SKEP_LIMITS_MEMORY_BYTES=128MiB", "SKEP_STORE_BLOCK_BYTES=256KiB", "SKEP_REDIS_COPIES=2")
	at := map[string]string{"wire": "127.0.0.1:0", "resp": "127.0.0.1:0", "http": "127.0.0.1:0"}
	if s.at != nil {
		at = s.at // the addresses stay
	}
	return append(env, "SKEP_LISTEN="+at["wire"], "SKEP_RESP="+at["resp"], "SKEP_HTTP="+at["http"], "SKEP_UNIX="+filepath.Join(s.books, "s"))
}

// start starts it and waits until it serves.
func (s *server) start() error {
	s.life++
	// Clients that see this know that no call of theirs to the one before is carried out any more.
	if err := os.WriteFile(filepath.Join(s.books, "life.new"), []byte(strconv.Itoa(s.life)), 0o600); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(s.books, "life.new"), filepath.Join(s.books, "life")); err != nil {
		return err
	}
	s.cmd = exec.Command(s.binary, "serve", "--json", "--log", "info")
	s.cmd.Env = s.env()
	if s.binary == "" {
		s.cmd = exec.Command(os.Args[0])
		s.cmd.Env = append(s.env(), roleEnv+"=server", "SKEP_BOOKS_JUMP="+filepath.Join(s.books, "jump"))
	}
	s.cmd.Stderr = s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	ready := make(chan error, 1)
	s.ended = make(chan error, 1)
	go func() {
		r := bufio.NewReader(out)
		var said struct {
			Listeners []struct{ Protocol, Address string }
		}
		err := json.NewDecoder(r).Decode(&said)
		if err == nil && s.at == nil {
			s.at = map[string]string{"unix": "unix:" + filepath.Join(s.books, "s")}
			for _, l := range said.Listeners {
				if !strings.HasPrefix(l.Address, "unix:") {
					s.at[l.Protocol] = l.Address
				}
			}
		}
		ready <- err
		_, _ = r.WriteTo(&tail{})
		s.ended <- s.cmd.Wait()
	}()
	select {
	case err := <-ready:
		if err != nil {
			return fmt.Errorf("the server does not start (%w): %s", errors.Join(err, <-s.ended), s.log.last(12))
		}
		return nil
	case <-time.After(startWithin):
		_ = s.cmd.Process.Kill()
		return fmt.Errorf("the server is not ready after %v: %s", startWithin, s.log.last(12))
	}
}

// kill ends it at once.
func (s *server) kill() error {
	select {
	case err := <-s.ended:
		return fmt.Errorf("the server ended by itself (%w): %s", errors.Join(err), s.log.last(30))
	default:
	}
	_ = s.cmd.Process.Kill()
	<-s.ended
	return nil
}

// stop ends it in order.
func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-s.ended:
		if err != nil {
			return fmt.Errorf("a server that was asked to stop: %w: %s", err, s.log.last(30))
		}
		return nil
	case <-time.After(startWithin):
		_ = s.cmd.Process.Kill()
		return fmt.Errorf("the server does not stop: %s", s.log.last(30))
	}
}

// within looks whether the server keeps to its caps.
func (s *server) within() error {
	dir := fmt.Sprintf("/proc/%d", s.cmd.Process.Pid)
	files, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return nil // between two lives
	}
	if len(files) > mostFiles {
		return fmt.Errorf("the server has %d descriptors", len(files))
	}
	b, err := os.ReadFile(dir + "/statm")
	var size, pages int64
	if err == nil {
		_, _ = fmt.Sscan(string(b), &size, &pages)
	}
	if n := pages * int64(os.Getpagesize()); n > mostMemory {
		return fmt.Errorf("the server has %d bytes of memory, of %d", n, mostMemory)
	}
	return nil
}

// skep runs a command of skep in a process of its own.
func (s *server) skep(ctx context.Context, args ...string) (code int, out string, err error) {
	cmd, err := self.Command(ctx, nil, args...)
	if err != nil {
		return 0, "", err
	}
	if s.binary != "" {
		cmd.Path, cmd.Args[0] = s.binary, s.binary
	}
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), text.String(), nil
	}
	return 0, text.String(), err
}
