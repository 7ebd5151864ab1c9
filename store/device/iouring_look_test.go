//go:build iouring && linux

package device

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pawelgaczynski/giouring"
	"github.com/stretchr/testify/require"
)

// The kernel has done reads, and its signal does not come: they end all the same, and are counted.
func TestRingFindsWhatNoSignalAnnounced(t *testing.T) {
	t.Parallel()
	r := newTestRing(t)
	defer r.Close()
	r.mu.Lock()
	r.mu.watch.pause = time.Millisecond
	r.mu.Unlock()
	require.NoError(t, r.register(giouring.UnregisterEventFD, nil, 0))
	for tries := 0; r.Stats().Unannounced < 3; tries++ { // a reaper that is awake yet sees some by itself
		require.Less(t, tries, 1000)
		endsInAMinute(t, r, &Op{Bufs: [][]byte{AlignedBuffer(Align)}})
		require.Eventually(t, func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return !r.mu.watch.on
		}, time.Minute, time.Millisecond, "nothing is in flight, and somebody looks")
	}
}

// The kernel takes a read and does not begin it, as it does with what waits for one of its worker threads. Here the
// read is of a pipe that nobody writes to. The kernel lets go of it, and the read is done by a system call, of a file.
func TestRingTakesBackWhatIsNotBegun(t *testing.T) {
	t.Parallel()
	out, in, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer out.Close()
	r := ringOn(t, out, Options{QueueDepth: 2})
	if !r.fixedFile {
		t.Skip("the kernel registers no files")
	}
	path := filepath.Join(t.TempDir(), "file")
	want := make([]byte, 2*Align)
	for i := range want {
		want[i] = byte(i >> 8)
	}
	require.NoError(t, os.WriteFile(path, want, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	r.mu.Lock()
	r.file = &file{f: f, fd: int(f.Fd()), path: path}
	r.mu.watch.pause, r.mu.watch.late = time.Millisecond, 3
	r.mu.Unlock()
	defer r.Close()

	ops := make([]*Op, 5) // more than the ring gives the kernel at once
	for i := range ops {
		ops[i] = &Op{Offset: int64(i%2) * Align, Bufs: [][]byte{AlignedBuffer(Align)}}
	}
	endsInAMinute(t, r, ops...)
	for _, o := range ops {
		require.Equal(t, want[o.Offset:o.Offset+Align], o.Bufs[0])
	}
	require.EqualValues(t, len(ops), r.Stats().Reissued)
}

// endsInAMinute submits ops and waits until all are done.
func endsInAMinute(t *testing.T, d Device, ops ...*Op) {
	t.Helper()
	done := make(chan error, len(ops))
	for _, o := range ops {
		o.Done = func(o *Op) { done <- o.Err }
	}
	require.NoError(t, d.Submit(ops))
	patience := time.After(time.Minute)
	for range ops {
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-patience:
			t.Fatal("an op does not end")
		}
	}
}
