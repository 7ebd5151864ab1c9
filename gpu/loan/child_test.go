//go:build linux

package loan_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// A borrower is this test binary, run again: a Store with simulated GPU memory in front that
// restores one chain again and again, compares every byte, and says after each round how many
// blocks are in lent memory and how many came from there.

const (
	borrowerEnv = "SKEP_TEST_BORROWER"
	blockBytes  = 32 << 10
	chainBlocks = 24
)

func runBorrower(socket string) error {
	o := sim.H20()
	o.Devices, o.MemoryBytes, o.Seed = 2, 16<<20, uint64(os.Getpid())
	w, err := sim.New(o)
	if err != nil {
		return err
	}
	s, err := gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: w.Device(0), BlockBytes: blockBytes, Timeout: patience})
	if err != nil {
		return err
	}
	sc, keys, err := fill(s)
	if err != nil {
		return err
	}
	bo := loan.BorrowerOptions{Socket: socket, Name: "borrower", Device: w.Device(1), Tier: s}
	l, err := loan.Borrow(bo)
	if err != nil {
		return err
	}
	orders := make(chan string)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			orders <- in.Text()
		}
		orders <- "quit" // the test has ended
	}()
	mem := make([]byte, len(keys)*blockBytes)
	for again := false; ; {
		if again && l.Err() != nil {
			if err := l.Close(); err != nil {
				return err
			}
			if next, err := loan.Borrow(bo); err == nil {
				l = next
			}
		}
		hits, err := restore(s, sc, keys, mem)
		if err != nil {
			return err
		}
		over := ""
		if err := l.Err(); err != nil {
			over = " over"
		}
		fmt.Printf("holds %d hits %d%s\n", s.Usage().Lent, hits, over)
		select {
		case order := <-orders:
			switch order {
			case "fail":
				w.Device(0).Fail(&skep.Error{Op: "GPU", Kind: skep.DeviceFailed})
				continue
			case "again": // from now on, of whoever lends there next when its lender has ended
				again = true
				continue
			}
			if err := l.Close(); err != nil {
				return err
			}
			return s.Close()
		case <-time.After(time.Millisecond):
		}
	}
}

func content(i int) []byte {
	b := make([]byte, blockBytes)
	for j := range b {
		b[j] = byte(j*7 + i*13 + 1)
	}
	return b
}

func fill(s skep.Store) (sc skep.Scope, keys []skep.Key, err error) {
	shape := skep.Shape{Kind: skep.Attention, Layers: 4, KVHeads: 2, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}
	ns, err := s.OpenNamespace(context.Background(), skep.NamespaceSpec{Tenant: "t", Name: "n", Model: "m", Shape: shape, Copies: 1, Chained: true})
	if err != nil {
		return sc, nil, err
	}
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	for i := range chainBlocks {
		keys = append(keys, skep.KeyOf([]byte{byte(i)}))
		r.Blocks = append(r.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: content(i)}}})
	}
	_, err = s.Put(context.Background(), r)
	return r.Scope, keys, err
}

var errWrong = errors.New("wrong bytes")

func restore(s skep.Store, sc skep.Scope, keys []skep.Key, mem []byte) (hits int, err error) {
	ctx := context.Background()
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: mem}}}})
	if err != nil {
		return 0, err
	}
	defer ses.Close(ctx)
	for into := make([]skep.Chunk, 8); ; {
		n, err := ses.Next(ctx, into)
		for _, c := range into[:n] {
			if c.Err != nil {
				return hits, c.Err
			}
			if c.Tier == skep.TierGPU {
				hits++
			}
			if at := c.Block * blockBytes; string(mem[at:at+blockBytes]) != string(content(c.Block)) {
				return hits, fmt.Errorf("%w in block %d", errWrong, c.Block)
			}
			c.Release()
		}
		if errors.Is(err, io.EOF) {
			return hits, nil
		}
		if err != nil {
			return hits, err
		}
	}
}

// child is a borrower's process.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan error

	mu     sync.Mutex
	rounds int
	holds  int
	hits   int
	said   string
	stderr strings.Builder
}

func spawn(t testing.TB, socket string) *child { return spawnAs(t, borrowerEnv, socket) }

func spawnAs(t testing.TB, role, socket string) *child {
	c := &child{t: t, cmd: exec.Command(os.Args[0]), ended: make(chan error, 1)}
	c.cmd.Env = append(os.Environ(), role+"="+socket)
	c.cmd.Stderr = &c.stderr
	var err error
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for in := bufio.NewScanner(out); in.Scan(); {
			c.mu.Lock()
			c.rounds++
			c.said = in.Text()
			_, _ = fmt.Sscanf(c.said, "holds %d hits %d", &c.holds, &c.hits)
			c.mu.Unlock()
		}
	}()
	go func() { <-read; c.ended <- c.cmd.Wait() }()
	t.Cleanup(func() { _ = c.cmd.Process.Kill(); c.in.Close() })
	return c
}

// holding waits until a round ends with n blocks in lent memory, all of them used if that is
// the chain.
func (c *child) holding(n int) {
	c.t.Helper()
	soon(c.t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.rounds > 0 && c.holds == n && (n < chainBlocks || c.hits == n)
	}, "the borrower has %d blocks in GPU memory", n)
}

// hitting waits until a round finds n blocks in GPU memory.
func (c *child) hitting(n int) {
	c.t.Helper()
	soon(c.t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.rounds > 0 && c.hits == n
	}, "%d blocks come out of GPU memory", n)
}

// order tells it something.
func (c *child) order(what string) {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, what)
	require.NoError(c.t, err)
}

// over waits until it says that its loan is.
func (c *child) over() {
	c.t.Helper()
	soon(c.t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return strings.HasSuffix(c.said, "over")
	}, "the borrower knows that its lender is gone")
}

// stop stops it, and waits until none of its threads runs any more.
func (c *child) stop() {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(syscall.SIGSTOP))
	soon(c.t, func() bool {
		list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.cmd.Process.Pid))
		for _, name := range list {
			if b, err := os.ReadFile(name); err == nil && !strings.Contains(string(b), ") T ") {
				return false
			}
		}
		return true // it may have been ended already
	}, "it stops")
}

// quit has it end in order, and requires that it does.
func (c *child) quit() {
	c.t.Helper()
	c.in.Close()
	require.NoError(c.t, c.wait(), "the borrower ends in order: %s", c.stderr.String())
}

func (c *child) wait() error {
	select {
	case err := <-c.ended:
		return err
	case <-time.After(patience):
		require.FailNow(c.t, "the borrower does not end")
		return nil
	}
}

// patience is how long a test waits for what must happen.
const patience = time.Minute

func soon(t testing.TB, ok func() bool, what string, args ...any) {
	t.Helper()
	storetest.Eventually(t, fmt.Sprintf(what, args...), ok)
}
