//go:build unix

package books

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/self"
)

// roleEnv makes the test binary a server or a client.
const roleEnv = "SKEP_BOOKS_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "server":
		os.Exit(runServer(os.Getenv("SKEP_BOOKS_JUMP")))
	case "client":
		var j job
		if err := json.Unmarshal([]byte(os.Getenv("SKEP_BOOKS_JOB")), &j); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(client(&j))
	}
	if os.Getenv(self.Env) != "" {
		os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// worker is a client's process.
type worker struct {
	job
	cmd   *exec.Cmd
	in    interface{ Close() error }
	ended chan error
	out   bytes.Buffer
	said  *tail
}

func (w *worker) start(life int) error {
	j := w.job
	j.Seed += uint64(life) << 32 // one that was killed does not do the same again
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	w.cmd = exec.Command(os.Args[0])
	w.cmd.Env = append(os.Environ(), roleEnv+"=client", "SKEP_BOOKS_JOB="+string(text))
	w.out.Reset()
	w.cmd.Stdout, w.cmd.Stderr = &w.out, w.said
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := w.cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	w.ended = ended
	go func(cmd *exec.Cmd) { ended <- cmd.Wait() }(w.cmd)
	return nil
}

// found says what a client found wrong, if it has ended.
func (w *worker) found() error {
	select {
	case err := <-w.ended:
		w.ended <- err
		return fmt.Errorf("a client ended (%w): %s%s", errors.Join(err), w.out.String(), w.said.last(20))
	default:
		return nil
	}
}

// finish waits until it has looked at everything.
func (w *worker) finish() error {
	_ = w.in.Close()
	select {
	case err := <-w.ended:
		if err != nil {
			return fmt.Errorf("%w: %s%s", err, w.out.String(), w.said.last(20))
		}
		return nil
	case <-time.After(5 * time.Minute):
		_ = w.cmd.Process.Kill()
		return fmt.Errorf("%s does not end: %s", w.Name, w.said.last(20))
	}
}

// soak is one run.
type soak struct {
	t       *testing.T
	rng     *rand.Rand
	s       *server
	workers []*worker
	added   int
	counts  map[string]int
	tmpfs   bool
}

// TestBooks plays with a server for 10 seconds, or SKEP_SOAK_TIME.
func TestBooks(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("10 seconds")
	}
	length := 10 * time.Second
	if v := os.Getenv("SKEP_SOAK_TIME"); v != "" {
		var err error
		length, err = time.ParseDuration(v)
		require.NoError(t, err)
	}
	seed, err := strconv.ParseUint(os.Getenv("SKEP_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("SKEP_SEED=%d SKEP_SOAK_TIME=%v", seed, length)
	dir, err := os.MkdirTemp(os.Getenv("SKEP_SOAK_DIR"), "books")
	require.NoError(t, err)
	k := &soak{t: t, rng: rand.New(rand.NewPCG(seed, 1)), counts: map[string]int{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("books, log and store are kept in %s", dir)
			return
		}
		k.unmount(dir)
		require.NoError(t, os.RemoveAll(dir))
	})
	k.mount(dir)
	books := filepath.Join(dir, "books")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "fs"), 0o700))
	require.NoError(t, os.Mkdir(books, 0o700))
	k.s = &server{dir: filepath.Join(dir, "fs", "store"), books: books, binary: os.Getenv("SKEP_SOAK_BINARY"), log: &tail{}}
	t.Cleanup(func() {
		if k.s.cmd != nil && k.s.cmd.Process != nil {
			_ = k.s.cmd.Process.Kill()
		}
		for _, w := range k.workers {
			_ = w.cmd.Process.Kill()
		}
		if t.Failed() {
			_ = os.WriteFile(filepath.Join(dir, "server.log"), k.s.log.b, 0o600)
		}
	})
	require.NoError(t, k.s.start())
	for i, protocol := range []string{"tcp", "unix", "shm", "resp", "http"} {
		w := &worker{job: job{Name: protocol, Protocol: protocol, Dir: books, At: k.s.at, Seed: seed + uint64(i)}, said: &tail{}}
		require.NoError(t, w.start(0))
		k.workers = append(k.workers, w)
	}
	for end := time.Now().Add(length); time.Now().Before(end); {
		time.Sleep(time.Duration(50+k.rng.IntN(400)) * time.Millisecond) // life goes on meanwhile
		require.NoError(t, k.event(), "seed %d", seed)
		require.NoError(t, k.s.within(), "seed %d", seed)
		for _, w := range k.workers {
			require.NoError(t, w.found(), "seed %d", seed)
		}
	}
	for _, w := range k.workers {
		require.NoError(t, w.finish(), "seed %d; server: %s", seed, k.s.log.last(5))
		t.Log(w.said.last(1))
	}
	require.NoError(t, k.s.stop())
	code, out, err := k.s.skep(t.Context(), "verify", "--deep", "--dir", k.s.dir)
	require.NoError(t, err)
	require.Zero(t, code, "seed %d: verify: %s", seed, out)
	require.NoError(t, k.s.start())
	for _, w := range k.workers {
		w.Check = true
		require.NoError(t, w.start(1<<20))
		require.NoError(t, w.finish(), "seed %d, after the last start", seed)
	}
	require.NoError(t, k.s.stop())
	t.Log(k.counts)
}

// event does one thing to the server, its drives, its disk, its clock or its clients.
func (k *soak) event() error {
	events := []struct {
		name   string
		weight int
		do     func() error
	}{
		{"kill", 4, k.kill},
		{"stop", 1, func() error { return errors.Join(k.s.stop(), k.s.start()) }},
		{"client killed", 3, k.killClient},
		{"lie", 3, k.lie},
		{"drive added", 2, k.add},
		{"drive removed", 2, k.remove},
		{"drive drained and kept", 1, k.drain},
		{"clock", 3, k.clock},
		{"disk full", 2, k.fill},
	}
	sum := 0
	for _, e := range events {
		sum += e.weight
	}
	n := k.rng.IntN(sum)
	for _, e := range events {
		if n -= e.weight; n < 0 {
			k.counts[e.name]++
			if err := e.do(); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			return nil
		}
	}
	return nil
}

func (k *soak) kill() error {
	if err := k.s.kill(); err != nil {
		return err
	}
	return k.s.start()
}

func (k *soak) killClient() error {
	w := k.workers[k.rng.IntN(len(k.workers))]
	if err := w.found(); err != nil {
		return err
	}
	_ = w.cmd.Process.Kill()
	<-w.ended
	return w.start(k.counts["client killed"])
}

// drives are the paths of those in use.
func (k *soak) drives() (paths []string, indices []int, err error) {
	code, out, err := k.s.skep(k.t.Context(), "device", "list", "--json", "--dir", k.s.dir)
	if err != nil || code != 0 {
		return nil, nil, fmt.Errorf("device list: %d %s: %w", code, out, errors.Join(err))
	}
	var list struct {
		Devices []struct {
			Index   int
			Path    string
			State   string
			Present bool
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, nil, fmt.Errorf("device list: %w: %s", err, out)
	}
	for _, d := range list.Devices {
		if d.Present && d.State != "removed" {
			paths, indices = append(paths, d.Path), append(indices, d.Index)
		}
	}
	return paths, indices, nil
}

// lie overwrites part of a drive, and has the store find and mend that before anything else may lie.
func (k *soak) lie() error {
	paths, _, err := k.drives()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(paths[k.rng.IntN(len(paths))], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	noise := make([]byte, 4096<<k.rng.IntN(9))
	for i := range noise {
		noise[i] = byte(k.rng.Uint32())
	}
	const first = 128 << 10 // superblocks are another story
	at := first + k.rng.Int64N(st.Size()-first-int64(len(noise)))
	if _, err := f.WriteAt(noise, at&^4095); err != nil {
		return err
	}
	if k.rng.IntN(3) == 0 { // and meets what it finds at the start
		if err := k.kill(); err != nil {
			return err
		}
	}
	return k.scrub()
}

func (k *soak) scrub() error {
	code, out, err := k.s.skep(k.t.Context(), "scrub", "--dir", k.s.dir)
	if err != nil || code != 0 {
		return fmt.Errorf("scrub: exit code %d: %s: %w", code, out, errors.Join(err))
	}
	return nil
}

// beside runs a command that changes drives; now and then the server is killed meanwhile.
func (k *soak) beside(args ...string) error {
	ctx, cancel := context.WithTimeout(k.t.Context(), 3*time.Minute)
	defer cancel()
	type result struct {
		code int
		out  string
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		code, out, err := k.s.skep(ctx, append(args, "--dir", k.s.dir)...)
		ended <- result{code, out, err}
	}()
	killed := k.rng.IntN(3) == 0
	if killed {
		time.Sleep(time.Duration(k.rng.IntN(300)) * time.Millisecond)
		if err := k.s.kill(); err != nil {
			return err
		}
	}
	r := <-ended
	if killed {
		// The command may have found the store closed, and opened it itself: that is over now.
		return k.s.start()
	}
	if r.code == 2 && strings.Contains(r.out, "devices left in working order") {
		k.counts["refused: too few drives"]++ // one is slow on this machine, or still being emptied
		return nil
	}
	if r.err != nil || r.code != 0 {
		return fmt.Errorf("%v: exit code %d: %s: %w", args, r.code, r.out, errors.Join(r.err))
	}
	return nil
}

func (k *soak) add() error {
	paths, _, err := k.drives()
	if err != nil || len(paths) >= 5 {
		return err
	}
	k.added++
	return k.beside("device", "add", filepath.Join(k.s.dir, fmt.Sprint("more-", k.added)))
}

func (k *soak) remove() error {
	_, indices, err := k.drives()
	if err != nil || len(indices) <= 3 {
		return err
	}
	return k.beside("device", "remove", strconv.Itoa(indices[k.rng.IntN(len(indices))]))
}

func (k *soak) drain() error {
	_, indices, err := k.drives()
	if err != nil || len(indices) < 3 {
		return err
	}
	name := strconv.Itoa(indices[k.rng.IntN(len(indices))])
	if err := k.beside("device", "drain", name); err != nil {
		return err
	}
	code, out, err := k.s.skep(k.t.Context(), "device", "drain", name, "--cancel", "--dir", k.s.dir)
	if err != nil || code != 0 {
		return fmt.Errorf("drain --cancel: %d %s: %w", code, out, errors.Join(err))
	}
	return nil
}

// clock moves the server's clock by up to 400 days, either way.
func (k *soak) clock() error {
	by := time.Duration(k.rng.Int64N(int64(800*24*time.Hour))) - 400*24*time.Hour
	if k.rng.IntN(3) == 0 {
		by = 0
	}
	return os.WriteFile(filepath.Join(k.s.books, "jump"), []byte(strconv.FormatInt(int64(by), 10)), 0o600)
}
