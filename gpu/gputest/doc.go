// Package gputest checks that a back end keeps the contract of package gpu: the same suite
// runs on the simulated devices, on CUDA over a driver of our own in host memory, and on
// CUDA over a GPU.
//
// What only a back end made for tests can do (put off work to the worst moment, fail on
// request) it says in Machine; where it cannot, those tests are skipped by name.
package gputest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

// Config is what a test needs.
type Config struct {
	Seed uint64 // of whatever the machine draws
}

// Machine is a server with GPUs. The suite closes the devices.
type Machine struct {
	// Devices are two, of at least 32 MiB of memory each.
	Devices [2]gpu.Device
	// Apart says that they are two GPUs, not one opened twice.
	Apart bool
	// Deferred says that queued work waits for somebody to wait, and then goes on in an
	// order that the seed draws: a wait that is missing shows.
	Deferred bool
	// Faults, nil where nothing can be made to fail.
	Faults Faults
	// Pinned is how many bytes of host memory AllocHost and Pin have made and Unpin not given
	// back. Nil: unknown.
	Pinned func() int
	// Left is how many things nobody gave back, once the devices are closed. Nil: unknown.
	Left func() int
}

// Faults makes things fail. Devices are numbered as in Machine.
type Faults interface {
	FailAlloc(device, nth int) // the n-th allocation from now has no memory
	FailPin(device, nth int)   // nor has the n-th of pinned memory
	Fail(device int)           // with an error that lasts
	Hang(device int)           // its streams do nothing more
	// Revoke takes memory away from all devices but its own when so many pieces of copies
	// have touched it.
	Revoke(m gpu.Memory, pieces int)
	Flip(device int) // a bit of the next copy one of its streams writes
}

// Open makes a fresh machine.
type Open func(t testing.TB, c Config) Machine

// Test runs the suite. behind makes an empty Store for what GPU memory is in front of.
func Test(t *testing.T, open Open, behind func() skep.Store) {
	for _, g := range []struct {
		name string
		test func(t *testing.T, open Open)
	}{
		{"Copies", testCopies},
		{"Counters", testCounters},
		{"Deadlines", testDeadlines},
		{"Mistakes", testMistakes},
		{"Memory", testMemory},
		{"Pinned", testPinned},
		{"Batches", testBatches},
		{"Shared", testShared},
		{"Handles", testHandles},
		{"Schedule", testSchedule},
		{"Failures", func(t *testing.T, open Open) { testFailures(t, open, behind) }},
		{"Landing", func(t *testing.T, open Open) { testLanding(t, open, behind) }},
		{"Direct", func(t *testing.T, open Open) { testDirect(t, open, behind) }},
		{"DirectLimits", func(t *testing.T, open Open) { testDirectLimits(t, open, behind) }},
		{"DirectFailures", func(t *testing.T, open Open) { testDirectFailures(t, open, behind) }},
		{"Prompts", func(t *testing.T, open Open) { testPrompts(t, open, behind) }},
		{"PromptWaits", func(t *testing.T, open Open) { testPromptWaits(t, open, behind) }},
		{"PromptMoves", func(t *testing.T, open Open) { testPromptMoves(t, open, behind) }},
		{"PromptRelocated", func(t *testing.T, open Open) { testPromptRelocated(t, open, behind) }},
		{"PromptFailures", func(t *testing.T, open Open) { testPromptFailures(t, open, behind) }},
		{"PromptEnds", func(t *testing.T, open Open) { testPromptEnds(t, open, behind) }},
		{"NoRoom", func(t *testing.T, open Open) { testNoRoom(t, open, behind) }},
	} {
		t.Run(g.name, func(t *testing.T) { g.test(t, open) })
	}
}

// close closes the devices and sees that nothing is left.
func (m Machine) close(t testing.TB) {
	t.Helper()
	for _, d := range m.Devices {
		require.NoError(t, d.Close())
	}
	if m.Left != nil {
		require.Zero(t, m.Left(), "not given back")
	}
}

func (m Machine) faults(t testing.TB) Faults {
	if m.Faults == nil {
		t.Skip("nothing can be made to fail here")
	}
	return m.Faults
}

// Soon ends long after everything should be done.
func Soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// file is one that has nothing to do with a GPU.
func file(t testing.TB) *os.File {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*31 + byte(i>>8) + seed
	}
	return b
}

func at(m gpu.Memory, off int64) gpu.Place { return gpu.Place{Memory: m, Offset: off} }

func stream(t testing.TB, d gpu.Device) gpu.Stream {
	t.Helper()
	s, err := d.NewStream()
	require.NoError(t, err)
	return s
}

func alloc(t testing.TB, d gpu.Device, n int64) gpu.Memory {
	t.Helper()
	m, err := d.Alloc(n)
	require.NoError(t, err)
	return m
}

func newCounter(t testing.TB, d gpu.Device) gpu.Counter {
	t.Helper()
	c, err := d.NewCounter()
	require.NoError(t, err)
	return c
}
