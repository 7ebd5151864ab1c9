//go:build cuda && cgo && linux

package cuda

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/gputest"
	"github.com/skepkv/skep/store/memstore"
)

// machine is two GPUs, or one opened twice; on the fake driver also what makes it fail.
func machine(t testing.TB, c gputest.Config) gputest.Machine {
	n, err := Count()
	require.NoError(t, err)
	m := gputest.Machine{Apart: n > 1}
	load()
	m.Deferred = simulated()
	if m.Deferred {
		fake{}.reset()
		fake{}.seed(c.Seed)
		m.Faults, m.Left = fake{}, fake{}.reset
	}
	for i := range m.Devices {
		m.Devices[i], err = Open(i%n, Options{})
		require.NoError(t, err)
		require.Equal(t, m.Deferred, m.Devices[i].Simulated())
	}
	own := m.Devices[0].(*device)
	m.Pinned = func() (n int) {
		own.mu.Lock()
		defer own.mu.Unlock()
		for _, p := range own.pinned {
			n += len(p.bytes)
		}
		return n
	}
	return m
}

func behind() skep.Store { return memstore.New(memstore.Options{}) }

// Alone: the driver is the process's.
func TestSuite(t *testing.T) {
	m := machine(t, gputest.Config{})
	t.Logf("on %s; simulated: %v", m.Devices[0].Name(), m.Deferred)
	for _, d := range m.Devices {
		require.NoError(t, d.Close())
	}
	gputest.Test(t, machine, behind)
}

// role says what a test binary started by a test is: a borrower in a process of its own.
const role = "SKEP_CUDA_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(role) == "borrower" {
		if err := borrow(os.NewFile(3, "lent")); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const lentBytes = 3 << 20

// borrow copies lent memory's first half to its second.
func borrow(f *os.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d, err := Open(0, Options{})
	if err != nil {
		return err
	}
	lent, err := d.(gpu.Sharer).Import(f, lentBytes)
	if err != nil {
		return err
	}
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	half := int64(lentBytes / 2)
	s.Copy(gpu.Place{Memory: lent, Offset: half}, gpu.Place{Memory: lent}, half)
	return errors.Join(s.Sync(ctx), s.Close(), lent.Free(), d.Close())
}

// Memory that one process lends is used by another: its end gives it back.
//
// Alone: the driver is the process's.
func TestAnotherProcessBorrows(t *testing.T) {
	m := machine(t, gputest.Config{Seed: 1})
	d := m.Devices[0].(gpu.Sharer)
	lent, f, err := d.AllocShared(lentBytes)
	require.NoError(t, err)
	defer f.Close()
	s, err := d.NewStream()
	require.NoError(t, err)
	want, got := bytes.Repeat([]byte("lent"), lentBytes/8), make([]byte, lentBytes/2)
	s.CopyIn(gpu.Place{Memory: lent}, want)
	require.NoError(t, s.Sync(gputest.Soon(t)))
	borrower := exec.Command(os.Args[0], "-test.run=^$")
	borrower.Env = append(os.Environ(), role+"=borrower")
	borrower.ExtraFiles = []*os.File{f}
	out, err := borrower.CombinedOutput()
	require.NoError(t, err, "%s", out)
	s.CopyOut(got, gpu.Place{Memory: lent, Offset: lentBytes / 2})
	require.NoError(t, s.Sync(gputest.Soon(t)))
	require.Equal(t, want, got)
	require.NoError(t, lent.Free())
	for _, d := range m.Devices {
		require.NoError(t, d.Close())
	}
}

// Where there is no GPU the process ends at its start, as the package says.
//
// Alone: the driver is the process's.
func TestNoGPUEndsTheProcess(t *testing.T) {
	if !simulated() {
		t.Skip("there is a GPU")
	}
	c := exec.Command(os.Args[0], "-test.run=^$")
	c.Env = append(os.Environ(), "SKEP_FAKECUDA_DEVICES=0")
	var exit *exec.ExitError
	require.ErrorAs(t, c.Run(), &exit)
	require.Equal(t, 1, exit.ExitCode())
}

// Alone: the driver is the process's.
func TestBadOptions(t *testing.T) {
	for _, number := range []int{-1, 1 << 20} {
		_, err := Open(number, Options{})
		require.ErrorIs(t, err, skep.Invalid)
	}
	for _, n := range []int64{-1, 1} {
		_, err := Open(0, Options{StagingBytes: n})
		require.ErrorIs(t, err, skep.Invalid)
	}
}

// Copies of any size go through a bounded amount of pinned memory, as long as the stream
// goes on; none of it is lost.
//
// Alone: the driver is the process's.
func TestStagingIsBounded(t *testing.T) {
	m := machine(t, gputest.Config{Seed: 2})
	require.NoError(t, m.Devices[0].Close())
	g, err := Open(0, Options{StagingBytes: maxStage})
	require.NoError(t, err)
	d := g.(*device)
	mem, err := d.Alloc(5 * maxStage)
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	want, got := bytes.Repeat([]byte("0123456789abcdefg"), 5*maxStage/17), make([]byte, 5*maxStage/17*17)
	s.CopyIn(gpu.Place{Memory: mem}, want)
	s.CopyOut(got[:100], gpu.Place{Memory: mem})
	s.CopyOut(got[100:], gpu.Place{Memory: mem, Offset: 100})
	require.NoError(t, s.Sync(gputest.Soon(t)))
	require.True(t, bytes.Equal(want, got))
	require.LessOrEqual(t, d.stages.bytes, int64(maxStage))
	require.NoError(t, mem.Free())
	require.NoError(t, d.Close())
	require.NoError(t, m.Devices[1].Close())
	if m.Left != nil {
		require.Zero(t, m.Left())
	}
}

// Alone: the driver is the process's.
func TestErrors(t *testing.T) {
	load()
	for _, tt := range []struct {
		r    result
		kind skep.Kind
	}{
		{outOfMemory, skep.NoMemory}, {notSupported, skep.Unsupported}, {invalidValue, skep.Invalid},
		{214, skep.DeviceFailed}, {700, skep.DeviceFailed}, {719, skep.DeviceFailed}, {800, skep.Other},
	} {
		require.Equal(t, tt.kind, skep.KindOf(failure("x", tt.r)), "%v", tt.r)
	}
	require.NoError(t, failure("x", success))
	require.Equal(t, "CUDA_ERROR_ECC_UNCORRECTABLE (214)", result(214).Error())
	require.Equal(t, "CUDA error 12345", result(12345).Error())
}
