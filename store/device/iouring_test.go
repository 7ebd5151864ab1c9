//go:build iouring && linux

package device

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// ringOn puts a ring on any descriptor, or skips.
func ringOn(t *testing.T, f *os.File, o Options) *ring {
	o, err := o.withDefaults()
	require.NoError(t, err)
	h := &file{f: f, fd: int(f.Fd()), path: f.Name()}
	d, err := newRing(h, Info{Path: h.path}, 1<<30, o)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	r := d.(*ring)
	r.mu.Lock()
	r.mu.watch.late = 1 << 30 // a read that waits for a pipe is not to be taken back from the kernel
	r.mu.Unlock()
	return r
}

// TestRingCloseOfAHungDrive has a pipe for a drive: a read of it hangs until
// somebody writes.
func TestRingCloseOfAHungDrive(t *testing.T) {
	t.Parallel()
	out, in, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	r := ringOn(t, out, Options{QueueDepth: 2, CloseTimeout: time.Millisecond})
	done := make(chan *Op, 4)
	var ops []*Op
	for range 4 {
		ops = append(ops, &Op{Bufs: [][]byte{AlignedBuffer(Align)}, Done: func(o *Op) { done <- o }})
	}
	require.NoError(t, r.Submit(ops))

	err = r.Close()
	var busy *BusyError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, 2, busy.InFlight)
	for range 2 {
		o := <-done
		require.ErrorIs(t, o.Err, ErrClosed, "never reached the drive")
	}

	// The drive wakes up, long after Close: the ring and the buffers are still
	// there, and the ops end.
	data := make([]byte, 2*Align)
	for i := range data {
		data[i] = 0x5A
	}
	_, err = in.Write(data)
	require.NoError(t, err)
	for range 2 {
		o := <-done
		require.NoError(t, o.Err)
		require.Equal(t, data[:Align], o.Bufs[0])
	}
	select {
	case <-r.reaped:
	case <-time.After(time.Minute):
		t.Fatal("the ring was not released after its last completion")
	}
}

// TestRingContinuesShortReads: a pipe gives what it has, which is a short read.
func TestRingContinuesShortReads(t *testing.T) {
	t.Parallel()
	out, in, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	r := ringOn(t, out, Options{})
	defer r.Close()
	buf := AlignedBuffer(3 * Align)
	done := make(chan error, 1)
	op := &Op{Bufs: [][]byte{buf[:Align], buf[Align:]}, Done: func(o *Op) { done <- o.Err }}
	require.NoError(t, r.Submit([]*Op{op}))
	for i := range 3 {
		page := make([]byte, Align)
		page[0] = byte(i + 1)
		_, err = in.Write(page)
		require.NoError(t, err)
	}
	require.NoError(t, <-done)
	require.Equal(t, []byte{1, 2, 3}, []byte{buf[0], buf[Align], buf[2*Align]})
}

// The kernel has no memory for entries for now, and nothing is in flight that would wake anybody: they are handed over
// a moment later, each time that this happens.
func TestRingTriesAgainEachTime(t *testing.T) {
	t.Parallel()
	r := newTestRing(t)
	defer r.Close()
	refusals := 0 // guarded by r.mu
	r.mu.Lock()
	r.submit = func() (uint, error) {
		if refusals > 0 {
			refusals--
			return 0, unix.ENOMEM
		}
		return r.ring.Submit()
	}
	r.mu.Unlock()
	for i := range 3 {
		r.mu.Lock()
		refusals = 2
		r.mu.Unlock()
		done := make(chan error, 1)
		require.NoError(t, r.Submit([]*Op{{Bufs: [][]byte{AlignedBuffer(Align)}, Done: func(o *Op) { done <- o.Err }}}))
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			t.Fatalf("nobody tries again (%d)", i)
		}
		r.mu.Lock()
		left := refusals
		r.mu.Unlock()
		require.Zero(t, left)
	}
}

func newTestRing(t *testing.T) *ring {
	d, err := Create(filepath.Join(t.TempDir(), "dev"), 8<<20, Options{Backend: IOUring})
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return d.(*ring)
}

// TestRingArena moves bytes to and from registered memory, beside it, and across
// its edge.
func TestRingArena(t *testing.T) {
	t.Parallel()
	r := newTestRing(t)
	defer r.Close()
	ctx := context.Background()
	mem, err := unix.Mmap(-1, 0, 4<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer unix.Munmap(mem)
	require.ErrorIs(t, RegisterArena(r, mem[512:]), ErrInvalid)
	require.ErrorIs(t, RegisterArena(r, nil), ErrInvalid)
	for _, region := range [][]byte{mem[:1<<20], mem[2<<20 : 3<<20]} {
		require.NoError(t, RegisterArena(r, region))
	}

	base := uintptr(unsafe.Pointer(&mem[0]))
	for _, c := range []struct {
		at, n uintptr
		index uint16
		fixed bool
	}{
		{0, 1 << 20, 0, true}, {1<<20 - 4096, 4096, 0, true}, {1<<20 - 4096, 8192, 0, false},
		{1 << 20, 4096, 0, false}, {2 << 20, 1 << 20, 1, true}, {3 << 20, 4096, 0, false},
	} {
		index, ok := r.regionLocked(base+c.at, c.n)
		require.Equal(t, c.fixed, ok, "%+v", c)
		require.Equal(t, c.index, index)
	}

	for i := range mem {
		mem[i] = byte(rand.Uint32())
	}
	want := append([]byte(nil), mem...)
	for off := 0; off < len(mem); off += 512 << 10 { // each half of every region, and between
		require.NoError(t, WriteAt(ctx, r, mem[off:off+512<<10], int64(off)))
	}
	clear(mem)
	pieces := [][]byte{mem[:4096], mem[4096:8192]} // neighbours: one fixed read
	require.NoError(t, Run(ctx, r, &Op{Kind: Read, Bufs: pieces}))
	require.Equal(t, want[:8192], mem[:8192])
	require.NoError(t, ReadAt(ctx, r, mem, 0)) // across all edges: plain
	require.Equal(t, want, mem)
}

// A large region is registered, and given back, piece by piece, and reads go on meanwhile.
func TestRingReadsWhileMemoryIsRegistered(t *testing.T) {
	t.Parallel()
	r := newTestRing(t)
	defer r.Close()
	const size = 2*regionSize + 8<<20
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer unix.Munmap(mem)
	page := AlignedBuffer(Align)
	pieces := 0
	r.pinning = func() {
		pieces++
		require.NoError(t, ReadAt(t.Context(), r, page, 0))
		require.NoError(t, ReadAt(t.Context(), r, mem[:1<<20], 0))
	}
	err = RegisterArena(r, mem)
	if errors.Is(err, unix.ENOMEM) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.Equal(t, 3, pieces)
	index := func(at, n uintptr) (uint16, bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.regionLocked(uintptr(unsafe.Pointer(&mem[0]))+at, n)
	}
	for i := range uintptr(3) {
		got, ok := index(i*regionSize, 8<<20)
		require.True(t, ok)
		require.EqualValues(t, i, got)
	}
	_, ok := index(regionSize-4096, 8192)
	require.False(t, ok, "across the edge of two pieces")
	require.NoError(t, ReadAt(t.Context(), r, mem[regionSize-4096:regionSize+4096], 0))
	UnregisterArena(r, mem)
	require.Equal(t, 6, pieces)
	_, ok = index(0, 4096)
	require.False(t, ok)

	// More than there are places for is refused, and takes none.
	r.mu.Lock()
	places := maxRegions - int(r.mu.buffers) + len(r.mu.spare)
	r.mu.Unlock()
	_, err = r.places(places + 1)
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, RegisterArena(r, mem))
	require.Equal(t, 9, pieces)
}

// TestRingEntriesStartClean: giouring leaves the flags of the last user of an
// entry behind; a read after a flush would fail with EINVAL.
func TestRingEntriesStartClean(t *testing.T) {
	t.Parallel()
	r := newTestRing(t)
	defer r.Close()
	ctx, buf := context.Background(), AlignedBuffer(Align)
	for range 3 * r.depth {
		require.NoError(t, Sync(ctx, r))
		require.NoError(t, ReadAt(ctx, r, buf, 0))
	}
}

// TestRingBroken takes the ring's descriptor away: the kernel refuses to be
// entered. Everything still ends.
func TestRingBroken(t *testing.T) {
	t.Parallel()
	r := newTestRing(t)
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	require.NoError(t, unix.Dup3(int(null.Fd()), r.ring.RingFd(), unix.O_CLOEXEC))

	done := make(chan error, 200)
	var ops []*Op
	for range 200 { // more than fit
		ops = append(ops, &Op{Bufs: [][]byte{AlignedBuffer(Align)}, Done: func(o *Op) { done <- o.Err }})
	}
	require.NoError(t, r.Submit(ops))
	for range ops {
		var where *IOError
		require.ErrorAs(t, <-done, &where)
	}
	err = ReadAt(context.Background(), r, AlignedBuffer(Align), 0)
	var where *IOError
	require.ErrorAs(t, err, &where, "refused at once from now on")
	require.NoError(t, r.Close())
}

func TestAppendIovecsMergesNeighbours(t *testing.T) {
	t.Parallel()
	b := AlignedBuffer(8 * Align)
	page := func(from, to int) []byte { return b[from*Align : to*Align] }
	for _, c := range []struct {
		bufs [][]byte
		skip int
		want []int // lengths in pages
		at   int   // page of the first
	}{
		{[][]byte{page(0, 1)}, 0, []int{1}, 0},
		{[][]byte{page(0, 1), page(1, 3)}, 0, []int{3}, 0},
		{[][]byte{page(0, 1), page(2, 3)}, 0, []int{1, 1}, 0},
		{[][]byte{page(2, 3), page(0, 2)}, 0, []int{1, 2}, 2},
		{[][]byte{page(0, 2), page(2, 4)}, Align, []int{3}, 1},
		{[][]byte{page(0, 2), page(4, 6)}, 2 * Align, []int{2}, 4},
		{[][]byte{page(0, 2), page(4, 6)}, 3 * Align, []int{1}, 5},
	} {
		iovs := appendIovecs(nil, c.bufs, c.skip)
		var got []int
		for _, v := range iovs {
			got = append(got, int(v.Len)/Align)
		}
		require.Equal(t, c.want, got)
		require.Equal(t, unsafe.SliceData(b[c.at*Align:]), iovs[0].Base)
	}
}

func TestUnavailableSaysWhy(t *testing.T) {
	t.Parallel()
	for err, says := range map[error]string{
		unix.ENOSYS: "no io_uring", unix.EPERM: "forbidden", unix.ENOMEM: "RLIMIT_MEMLOCK", unix.EMFILE: "too many open files",
	} {
		got := unavailable(err)
		require.ErrorIs(t, got, ErrUnavailable)
		require.ErrorIs(t, got, err)
		require.ErrorContains(t, got, says)
	}
}

// TestRingLayout pins what the kernel reads of giouring's types.
func TestRingLayout(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 64, unsafe.Sizeof(giouring.SubmissionQueueEntry{}))
	require.EqualValues(t, 16, unsafe.Sizeof(giouring.CompletionQueueEvent{}))
	require.EqualValues(t, 32, unsafe.Sizeof(giouring.RsrcUpdate2{}))
	require.EqualValues(t, 32, unsafe.Sizeof(giouring.RsrcRegister{}))
}
