//go:build linux

package apart

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// jobEnv makes the test binary a client.
const jobEnv = "SKEP_APART_JOB"

func TestMain(m *testing.M) {
	if text := os.Getenv(jobEnv); text != "" {
		var j job
		err := json.Unmarshal([]byte(text), &j)
		if err == nil {
			err = j.play()
		}
		if err != nil {
			fmt.Printf("%s, seed %d: %v\n", j.Name, j.Seed, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if file := os.Getenv(clockEnv); file != "" {
		os.Exit(serveByClock(file))
	}
	if os.Getenv(self.Env) != "" {
		os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// worker is a client's process.
type worker struct {
	job
	host  *host
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // what it says; closed when it has ended
	ended error
}

func (c *cluster) worker(h *host, j job) *worker {
	w := &worker{job: j, host: h, lines: make(chan string, 100)}
	text, err := json.Marshal(j)
	require.NoError(c.t, err)
	line := h.inside(os.Args[0])
	w.cmd = exec.Command(line[0], line[1:]...)
	w.cmd.Env = append(os.Environ(), jobEnv+"="+string(text))
	w.cmd.SysProcAttr = self.EndWithParent()
	log, err := os.OpenFile(filepath.Join(c.dir, j.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(c.t, err)
	w.cmd.Stderr = log
	w.in, err = w.cmd.StdinPipe()
	require.NoError(c.t, err)
	out, err := w.cmd.StdoutPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, w.cmd.Start())
	c.t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			w.lines <- s.Text()
		}
		w.ended = errors.Join(w.cmd.Wait(), log.Close())
		close(w.lines)
	}()
	return w
}

// tell tells it something, and waits until it has been done.
func (w *worker) tell(what string) (said string, err error) {
	_, _ = io.WriteString(w.in, what+"\n") // where it has ended, its last line says why
	select {
	case line := <-w.lines:
		if said, ok := strings.CutPrefix(line, what+" "); ok {
			return said, nil
		}
		return "", fmt.Errorf("%s, told to %s: %q", w.Name, what, line)
	case <-time.After(2 * patience):
		return "", fmt.Errorf("%s, told to %s, does not answer", w.Name, what)
	}
}

// found is what it found wrong by itself.
func (w *worker) found() error {
	select {
	case line := <-w.lines:
		return fmt.Errorf("%s: %q", w.Name, line)
	default:
		return nil
	}
}

// finish waits for its end.
func (w *worker) finish() error {
	_ = w.in.Close()
	for line := range w.lines {
		return fmt.Errorf("%s: %q", w.Name, line)
	}
	return w.ended
}

// life is one run.
type life struct {
	*cluster
	r       *rand.Rand
	workers []*worker
	counts  map[string]int
}

// TestApart plays some rounds.
func TestApart(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("minutes")
	}
	rounds := number(t, "SKEP_APART_ROUNDS", 3)
	seed := number(t, "SKEP_SEED", rand.Uint64()>>1)
	l := &life{r: rand.New(rand.NewPCG(seed, 4)), counts: map[string]int{}}
	builds := []string{""}
	if other := os.Getenv("SKEP_APART_OTHER"); other != "" {
		builds = append(builds, other)
	}
	downAfter := []string{"never", "10s"}[l.r.IntN(2)]
	t.Logf("SKEP_SEED=%d SKEP_APART_ROUNDS=%d, nodes are down by themselves after: %s", seed, rounds, downAfter)
	n := newNetwork(t)
	l.cluster = newCluster(t, n, 3, builds, downAfter)
	token, err := os.ReadFile(l.token("engine"))
	require.NoError(t, err)
	for i, at := range l.nodes {
		name := fmt.Sprint("c", i)
		j := job{Name: name, Addr: at.addr(), Token: string(token), Seed: seed + uint64(i),
			Book: filepath.Join(l.dir, name+".book")}
		l.workers = append(l.workers, l.worker(n.host(name), j))
	}
	for round := range rounds {
		require.NoError(t, l.round(), "round %d, seed %d", round, seed)
	}
	for _, w := range l.workers {
		require.NoError(t, w.finish(), "seed %d", seed)
	}
	for i, w := range l.workers {
		j := w.job
		j.Check, j.Clear, j.Addr = true, true, l.nodes[(i+1)%len(l.nodes)].addr()
		require.NoError(t, l.worker(w.host, j).finish(), "seed %d, read by a client that knows nothing", seed)
	}
	l.whole()
	l.empty()
	t.Log(l.counts)
}

func number(t *testing.T, env string, otherwise uint64) uint64 {
	text := os.Getenv(env)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, env)
	return n
}

// all tells every client, at once.
func (l *life) all(what string) error {
	errs := make(chan error, len(l.workers))
	for _, w := range l.workers {
		go func() {
			said, err := w.tell(what)
			if err == nil && what == toldCheck {
				fmt.Println(w.Name, said)
			}
			errs <- err
		}()
	}
	var all []error
	for range l.workers {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// round is a storm and a calm.
func (l *life) round() error {
	if err := l.all(toldStorm); err != nil {
		return err
	}
	for range 1 + l.r.IntN(4) {
		if err := l.event(); err != nil {
			return err
		}
		if err := l.goOn(time.Duration(200+l.r.IntN(1500)) * time.Millisecond); err != nil {
			return err
		}
	}
	l.net.heal()
	for _, n := range l.nodes {
		if !n.runs() {
			if err := n.start(); err != nil {
				return err
			}
		}
	}
	l.whole()
	if err := l.goOn(doubt); err != nil {
		return err
	}
	l.whole()
	if err := l.all(toldCalm); err != nil {
		return err
	}
	if err := l.goOn(3 * time.Second); err != nil {
		return err
	}
	return l.all(toldCheck)
}

// goOn has clients go on that long.
func (l *life) goOn(d time.Duration) error {
	time.Sleep(d)
	for _, w := range l.workers {
		if err := w.found(); err != nil {
			return err
		}
	}
	for _, n := range l.nodes {
		if err := n.alive(); err != nil {
			return err
		}
	}
	return nil
}

// event makes one thing wrong. At most one node is without a process.
func (l *life) event() error {
	n := l.nodes[l.r.IntN(len(l.nodes))]
	events := []struct {
		name string
		do   func(*node) error
	}{
		{"killed", l.kill},
		{"killed", l.kill},
		{"stopped", func(n *node) error { return errors.Join(n.stop(), n.start()) }},
		{"cut off", func(n *node) error { return l.cut(n, true, true, true) }},
		{"deaf", func(n *node) error { return l.cut(n, true, true, false) }},
		{"mute", func(n *node) error { return l.cut(n, true, false, true) }},
		{"cut off from nodes", func(n *node) error { return l.cut(n, false, true, true) }},
		{"slow", l.slow},
		{"rolling", l.rolling},
	}
	e := events[l.r.IntN(len(events))]
	l.counts[e.name]++
	fmt.Println(time.Now().Format("15:04:05"), n.name, e.name)
	return e.do(n)
}

func (l *life) pause(most int) { time.Sleep(time.Duration(l.r.IntN(most)) * time.Millisecond) }

func (l *life) kill(n *node) error {
	n.kill()
	l.pause(3000)
	return n.start()
}

// cut has a node hear nothing, or nobody hear it, for a while.
func (l *life) cut(n *node, clients, deaf, mute bool) error {
	for _, h := range l.net.hosts {
		isNode := h == l.op
		for _, other := range l.nodes {
			isNode = isNode || h == other.host
		}
		if h == n.host || !isNode && !clients {
			continue
		}
		if deaf {
			n.host.deaf(h)
		}
		if mute {
			h.deaf(n.host)
		}
	}
	l.pause(15_000)
	l.net.heal()
	return nil
}

func (l *life) slow(n *node) error {
	n.host.slow("4mbit")
	l.pause(5000)
	l.net.heal()
	return nil
}

// rolling stops and starts all nodes, one after another, each with the next build.
func (l *life) rolling(*node) error {
	l.whole()
	for i, n := range l.nodes {
		if err := n.stop(); err != nil {
			return err
		}
		for at, b := range l.builds {
			if b == n.build {
				n.build = l.builds[(at+1)%len(l.builds)]
				break
			}
		}
		if err := n.start(); err != nil {
			return err
		}
		if i < len(l.nodes)-1 || l.r.IntN(2) == 0 {
			l.whole()
		}
	}
	return nil
}

// empty waits until no node has a block: a deletion is answered when all nodes have carried it out.
func (l *life) empty() {
	l.t.Helper()
	var out string
	l.eventually("no node has a block", func() bool {
		var code int
		var list struct {
			Namespaces []struct{ Blocks int64 }
		}
		code, out = l.skep(append([]string{"ns", "list"}, l.nodes[0].to()...)...)
		if code != 0 || json.Unmarshal([]byte(out), &list) != nil {
			return false
		}
		sum := int64(0)
		for _, ns := range list.Namespaces {
			sum += ns.Blocks
		}
		return sum == 0 && len(list.Namespaces) >= len(spaces)
	}, &out)
}
