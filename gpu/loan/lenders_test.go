//go:build linux

package loan_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/gpu/sim"
)

// A lender in a process of its own: this test binary, run again. It moves its border as its
// standard input says, writes to all that is its own after each move, and says where it stands.

const (
	lenderEnv   = "SKEP_TEST_LENDER"
	childsUnits = 24 // twelve for each of two borrowers: all of their chain
)

func runLender(socket string) error {
	so := sim.H20()
	so.Devices, so.MemoryBytes = 1, 16<<20
	w, err := sim.New(so)
	if err != nil {
		return err
	}
	lease := patience
	if d := os.Getenv(lenderEnv + "_LEASE"); d != "" {
		if lease, err = time.ParseDuration(d); err != nil {
			return err
		}
	}
	l, err := loan.Lend(loan.LenderOptions{Socket: socket, Name: "model", Device: w.Device(0), Unit: unit, Units: childsUnits, Borrowers: 2, Lease: lease, Reclaim: lease})
	if err != nil {
		return err
	}
	s, err := w.Device(0).NewStream()
	if err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		border := 0
		if _, err := fmt.Sscanf(in.Text(), "border %d", &border); err != nil {
			return err
		}
		if err := l.Move(context.Background(), border); err != nil {
			return err
		}
		own := bytes.Repeat([]byte{0x77}, border*int(unit.Bytes))
		s.CopyIn(gpu.Place{Memory: l.Memory()}, own)
		if err := s.Sync(context.Background()); err != nil {
			return err
		}
		fmt.Printf("holds %d hits %d\n", border, border)
	}
	return l.Close()
}

// clean says that a borrower whose lenders have ended has nothing of theirs any more.
func (c *child) clean(t *testing.T) {
	t.Helper()
	pid := c.cmd.Process.Pid
	soon(t, func() bool { return sharedOf(pid) == 0 && descriptorsOf(pid) == 0 }, "no mapping, no descriptor stays")
}

// A lender that is killed takes its memory along and nothing else: its borrowers get the same
// bytes from behind, keep nothing of it, and borrow from whoever lends there next.
func TestLenderKilled(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "lender")
	lender := func(border int) *child {
		l := spawnAs(t, lenderEnv, socket)
		l.order(fmt.Sprint("border ", border))
		l.holding(border)
		return l
	}
	l := lender(childsUnits)
	a, b := spawn(t, socket), spawn(t, socket)
	l.order("border 0")
	a.hitting(chainBlocks)
	b.hitting(chainBlocks)
	require.NoError(t, l.cmd.Process.Kill())
	for _, c := range []*child{a, b} {
		c.over()
		c.hitting(0)
		c.clean(t)
	}
	_ = l.wait()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for range rounds { // whatever it was about
		for _, c := range []*child{a, b} {
			c.order("again")
		}
		l = lender(rng.IntN(childsUnits + 1))
		for range rng.IntN(4) {
			l.order(fmt.Sprint("border ", rng.IntN(childsUnits+1)))
			time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
		}
		require.NoError(t, l.cmd.Process.Kill())
		_ = l.wait()
	}
	l = lender(0)
	for _, c := range []*child{a, b} {
		c.order("again")
		c.hitting(chainBlocks)
		require.Equal(t, 1, sharedOf(c.cmd.Process.Pid), "only what it borrows now")
	}
	l.quit()
	for _, c := range []*child{a, b} {
		c.hitting(0)
		c.clean(t)
		c.quit() // it compared every byte of every round
	}
}

// A lender that is stopped for longer than its leases is believed no more, and when it goes on
// it ends nobody: what its borrowers had they find again.
//
// Alone: the environment is the process's.
func TestLenderStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for leases, which are long on a loaded machine")
	}
	socket := filepath.Join(t.TempDir(), "lender")
	t.Setenv(lenderEnv+"_LEASE", "1500ms")
	l := spawnAs(t, lenderEnv, socket)
	l.order("border 0")
	l.holding(0)
	b := spawn(t, socket)
	b.hitting(chainBlocks)
	l.stop()
	b.hitting(0)
	time.Sleep(5 * time.Second) // all of lease, reclaim, and the time a silent connection has
	require.NoError(t, l.cmd.Process.Signal(syscall.SIGCONT))
	b.hitting(chainBlocks)
	b.quit()
	l.quit()
}
