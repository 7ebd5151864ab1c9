//go:build cuda && cgo && linux

package cuda

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/gputest"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/layout/elastic"
)

// Lenders and borrowers in processes of their own, which are killed. A child is this test binary,
// run again for one of the two tests that say what it does.

const (
	socketEnv   = "SKEP_CUDA_TEST_SOCKET"
	loanUnits   = 6
	chainBlocks = 11 // blocks of the chain, two a unit
	patience    = time.Minute
)

var loanUnit = elastic.Unit{Bytes: 64 << 10, LenderBlock: 32 << 10, BorrowerBlock: gputest.BlockBytes, Lender: 2, Borrower: 2}

func child(t *testing.T, test, socket string) (*exec.Cmd, *bufio.Scanner) {
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), socketEnv+"="+socket)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); in.Close(); _ = cmd.Wait() })
	return cmd, bufio.NewScanner(out)
}

// says waits for a line.
func says(t *testing.T, out *bufio.Scanner, line string) {
	t.Helper()
	for out.Scan() {
		if out.Text() == line {
			return
		}
	}
	require.FailNow(t, "the child ends without saying it", "%q", line)
}

func lender(t *testing.T, d gpu.Device, socket string) *loan.Lender {
	l, err := loan.Lend(loan.LenderOptions{Socket: socket, Device: d.(gpu.Sharer), Unit: loanUnit, Units: loanUnits, Lease: patience, Reclaim: patience})
	require.NoError(t, err)
	return l
}

func borrower(t *testing.T, m gputest.Machine) *gpu.Store {
	s, err := gpu.New(behind(), gpu.Options{Device: m.Devices[0], BlockBytes: gputest.BlockBytes, Timeout: patience, PinnedBytes: 4 << 20})
	require.NoError(t, err)
	return s
}

// lenderDevice is the GPU whose memory is lent: another one where there are two.
func lenderDevice(t *testing.T) gpu.Device {
	n, err := Count()
	require.NoError(t, err)
	d, err := Open(1%n, Options{})
	require.NoError(t, err)
	return d
}

// TestChildLends is a lender that lends all it has, until it is killed.
//
// Alone: the driver is the process's.
func TestChildLends(t *testing.T) {
	socket := os.Getenv(socketEnv)
	if socket == "" {
		t.Skip("a child of TestLenderKilled")
	}
	l := lender(t, lenderDevice(t), socket)
	require.NoError(t, l.Move(t.Context(), 0))
	os.Stdout.WriteString("lends\n")
	_, _ = io.ReadAll(os.Stdin)
}

// TestChildBorrows is a borrower that restores from lent memory until it is killed.
//
// Alone: the driver is the process's.
func TestChildBorrows(t *testing.T) {
	socket := os.Getenv(socketEnv)
	if socket == "" {
		t.Skip("a child of TestBorrowerKilled")
	}
	m := machine(t, gputest.Config{Seed: uint64(os.Getpid())})
	s := borrower(t, m)
	sc, keys := gputest.Chain(t, s, chainBlocks)
	_, err := loan.Borrow(loan.BorrowerOptions{Socket: socket, Device: m.Devices[1].(gpu.Sharer), Tier: s})
	require.NoError(t, err)
	for {
		if gputest.FromGPU(gputest.Load(t, s, sc, keys)) == chainBlocks {
			os.Stdout.WriteString("borrows\n")
		}
	}
}

// A lender that is killed at any moment costs its borrower time: every byte is right, the mapping
// of its memory is given back, and no pinned memory is left.
//
// Alone: the driver is the process's.
func TestLenderKilled(t *testing.T) {
	if os.Getenv(socketEnv) != "" {
		t.Skip("a child")
	}
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	m := machine(t, gputest.Config{Seed: 1})
	s := borrower(t, m)
	sc, keys := gputest.Chain(t, s, chainBlocks)
	mapped := m.Devices[1].(*device)
	for range rounds {
		socket := filepath.Join(t.TempDir(), "lender")
		cmd, out := child(t, "TestChildLends", socket)
		says(t, out, "lends")
		l, err := loan.Borrow(loan.BorrowerOptions{Socket: socket, Device: mapped, Tier: s})
		require.NoError(t, err)
		for gputest.FromGPU(gputest.Load(t, s, sc, keys)) < chainBlocks {
		}
		at := time.Now().Add(time.Duration(rng.IntN(5000)) * time.Microsecond)
		for time.Now().Before(at) {
			gputest.Load(t, s, sc, keys)
		}
		require.NoError(t, cmd.Process.Kill())
		for gputest.FromGPU(gputest.Load(t, s, sc, keys)) > 0 {
		}
		<-l.Done()
		require.NoError(t, l.Close())
		mapped.mu.Lock()
		require.Empty(t, mapped.memories, "a mapping of the lender's memory")
		mapped.mu.Unlock()
	}
	require.NoError(t, s.Usage().Failed)
	require.NoError(t, s.Close())
	require.Zero(t, m.Pinned())
	for _, d := range m.Devices {
		require.NoError(t, d.Close())
	}
	if m.Left != nil {
		require.Zero(t, m.Left())
	}
}

// A borrower that is killed at any moment gives back what it was lent, and nobody writes there
// afterwards.
//
// Alone: the driver is the process's.
func TestBorrowerKilled(t *testing.T) {
	if os.Getenv(socketEnv) != "" {
		t.Skip("a child")
	}
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	m := machine(t, gputest.Config{Seed: 2})
	socket := filepath.Join(t.TempDir(), "lender")
	l := lender(t, m.Devices[1], socket)
	st, err := m.Devices[1].NewStream()
	require.NoError(t, err)
	for range rounds {
		require.NoError(t, l.Move(t.Context(), 0))
		cmd, out := child(t, "TestChildBorrows", socket)
		says(t, out, "borrows")
		require.NoError(t, cmd.Process.Kill())
		require.NoError(t, l.Move(gputest.Soon(t), loanUnits), "its memory is back")
		want, got := bytes.Repeat([]byte("own"), loanUnits*int(loanUnit.Bytes)/3), make([]byte, loanUnits*int(loanUnit.Bytes)/3*3)
		st.CopyIn(gpu.Place{Memory: l.Memory()}, want)
		require.NoError(t, st.Sync(gputest.Soon(t)))
		time.Sleep(time.Millisecond)
		st.CopyOut(got, gpu.Place{Memory: l.Memory()})
		require.NoError(t, st.Sync(gputest.Soon(t)))
		require.True(t, bytes.Equal(want, got))
	}
	require.EqualValues(t, rounds, l.Status().Counts.Died)
	require.NoError(t, l.Close())
	for _, d := range m.Devices {
		require.NoError(t, d.Close())
	}
	if m.Left != nil {
		require.Zero(t, m.Left())
	}
}
