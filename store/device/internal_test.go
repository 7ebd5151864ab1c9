package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestAlignedBuffer(t *testing.T) {
	t.Parallel()
	require.Nil(t, AlignedBuffer(0))
	require.Nil(t, AlignedBuffer(-1))
	for _, n := range []int{1, 511, 4096, 4097, 1 << 20} {
		b := AlignedBuffer(n)
		require.Len(t, b, n)
		require.Equal(t, n, cap(b), "append must not reach into the slack")
		require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%Align)
		require.Equal(t, n%Align == 0, IsAligned(b))
	}
	b := AlignedBuffer(8192)
	require.True(t, IsAligned(b[4096:]))
	require.False(t, IsAligned(b[512:4608]))
	require.False(t, IsAligned(nil))
}

func TestSkipBytes(t *testing.T) {
	t.Parallel()
	a, b, c := []byte("aaaa"), []byte("bb"), []byte("cccc")
	join := func(bufs [][]byte) string {
		s := ""
		for _, x := range bufs {
			s += string(x)
		}
		return s
	}
	whole := "aaaabbcccc"
	for n := range len(whole) + 1 {
		bufs := [][]byte{a, b, c}
		require.Equal(t, whole[n:], join(skipBytes(bufs, n)), "skip %d", n)
		require.Equal(t, whole, join(bufs), "the argument is as it was")
	}
}

func TestLatencyBuckets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d      time.Duration
		bucket int
	}{
		{-1, 0}, {0, 0}, {999, 0}, {time.Microsecond, 1}, {2*time.Microsecond - 1, 1},
		{2 * time.Microsecond, 2}, {time.Millisecond, 10}, {time.Hour, LatencyBuckets - 1},
	} {
		require.Equal(t, c.bucket, LatencyBucket(c.d), "%v", c.d)
		if up := LatencyBound(c.bucket); up > 0 {
			require.Less(t, c.d, up)
		}
	}
	require.Zero(t, LatencyBound(LatencyBuckets-1))
	require.Equal(t, time.Microsecond, LatencyBound(0))
}

// step is one answer of a drive that does things by halves.
type step struct {
	n   int
	err error
}

func TestTransferCompletesShortIO(t *testing.T) {
	t.Parallel()
	const page = Align
	for _, c := range []struct {
		name  string
		kind  Kind
		steps []step
		want  error
		moved int // bytes, of 4 pages
	}{
		{"at once", Read, []step{{4 * page, nil}}, nil, 4 * page},
		{"page by page", Write, []step{{page, nil}, {page, nil}, {page, nil}, {page, nil}}, nil, 4 * page},
		{"odd progress is done again from the page", Read, []step{{page + 512, nil}, {3 * page, nil}}, nil, 4 * page},
		{"interrupted", Read, []step{{0, syscall.EINTR}, {4 * page, nil}}, nil, 4 * page},
		{"busy, then short, then busy", Write, []step{{0, syscall.EAGAIN}, {page, nil}, {0, syscall.EAGAIN}, {3 * page, nil}}, nil, 4 * page},
		{"end of file", Read, []step{{page, nil}, {0, nil}}, io.ErrUnexpectedEOF, page},
		{"nothing written", Write, []step{{0, nil}}, io.ErrShortWrite, 0},
		{"an error half way", Write, []step{{2 * page, nil}, {0, syscall.EIO}}, syscall.EIO, 2 * page},
	} {
		t.Run(c.name, func(t *testing.T) {
			op := &Op{Kind: c.kind, Offset: 7 * page, Bufs: [][]byte{AlignedBuffer(page), AlignedBuffer(3 * page)}, total: 4 * page}
			at := 0
			err := transfer(op, func(bufs [][]byte, off int64) (int, error) {
				require.EqualValues(t, 7*page+at, off)
				left := 0
				for _, b := range bufs {
					require.True(t, IsAligned(b))
					left += len(b)
				}
				require.Equal(t, 4*page-at, left)
				s := c.steps[0]
				c.steps = c.steps[1:]
				at += s.n &^ (page - 1)
				return s.n, s.err
			})
			require.Equal(t, c.want, err)
			require.Equal(t, c.moved, at)
			require.Empty(t, c.steps)
		})
	}
}

func TestTransferGivesUpOnADriveThatNeverMoves(t *testing.T) {
	t.Parallel()
	for _, s := range []step{{512, nil}, {0, syscall.EAGAIN}} {
		calls := 0
		op := &Op{Kind: Read, Bufs: [][]byte{AlignedBuffer(Align)}, total: Align}
		err := transfer(op, func([][]byte, int64) (int, error) { calls++; return s.n, s.err })
		require.Error(t, err)
		require.LessOrEqual(t, calls, maxStalls)
	}
}

// stuck is a drive that hangs until told, and then fills the buffer.
type stuck struct {
	entered chan struct{}
	free    chan struct{}
	closed  atomic.Bool
}

func (s *stuck) do(op *Op) error {
	s.entered <- struct{}{}
	<-s.free
	for _, b := range op.Bufs {
		for i := range b {
			b[i] = 0xAA
		}
	}
	return nil
}
func (s *stuck) grow(*core, int64) error { return errUnsupported("grow") }
func (s *stuck) close() error            { s.closed.Store(true); return nil }

func TestCloseOfAHungPool(t *testing.T) {
	t.Parallel()
	s := &stuck{entered: make(chan struct{}, 2), free: make(chan struct{})}
	p := newPool(s, Info{Path: "stuck"}, 1<<20, 2, Options{CloseTimeout: time.Millisecond})
	done := make(chan *Op, 5)
	var ops []*Op
	for range 5 {
		ops = append(ops, &Op{Bufs: [][]byte{AlignedBuffer(Align)}, Done: func(o *Op) { done <- o }})
	}
	require.NoError(t, p.Submit(ops))
	<-s.entered
	<-s.entered

	err := p.Close()
	var busy *BusyError
	require.ErrorAs(t, err, &busy)
	require.ErrorIs(t, err, ErrBusy)
	require.Equal(t, 2, busy.InFlight, "two are with the drive")
	require.Equal(t, err, p.Close(), "a second Close says the same")
	for range 3 { // the others never got there
		require.ErrorIs(t, (<-done).Err, ErrClosed)
	}
	require.False(t, s.closed.Load(), "the drive is still writing: nothing is freed")

	close(s.free)
	for range 2 {
		o := <-done
		require.NoError(t, o.Err, "late, but done")
		require.EqualValues(t, 0xAA, o.Bufs[0][0])
	}
	<-p.drained
	require.Eventually(t, s.closed.Load, time.Minute, time.Millisecond, "released after the last completion")
}

func TestGate(t *testing.T) {
	t.Parallel()
	g := gate{drained: make(chan struct{})}
	require.NoError(t, g.enter(3))
	g.exit(1)
	require.Equal(t, 2, g.count())
	g.shut()
	require.ErrorIs(t, g.enter(1), ErrClosed)
	require.Equal(t, 2, g.count())
	select {
	case <-g.drained:
		t.Fatal("two are in flight")
	default:
	}
	g.exit(2)
	<-g.drained
	g.shut()
	require.ErrorIs(t, g.enter(1), ErrClosed)
}

func TestModelReserve(t *testing.T) {
	t.Parallel()
	const s = int64(time.Second)
	for _, c := range []struct {
		name      string
		m         Model
		at, busy  int64
		kind      Kind
		bytes     int
		due, next int64
	}{
		{"no limits", Model{}, 5, 0, Read, 1 << 20, 5, 5},
		{"latency occupies nothing", Model{Latency: 7}, 5, 0, Read, 1 << 20, 12, 5},
		{"bandwidth", Model{ReadBandwidth: 1000}, 0, 0, Read, 500, s / 2, s / 2},
		{"write bandwidth is its own", Model{ReadBandwidth: 1000, WriteBandwidth: 100}, 0, 0, Write, 50, s / 2, s / 2},
		{"a queue", Model{ReadBandwidth: 1000}, 0, 10 * s, Read, 1000, 11 * s, 11 * s},
		{"idle time is not saved", Model{ReadBandwidth: 1000}, 20 * s, 10 * s, Read, 1000, 21 * s, 21 * s},
		{"IOPS bind small ops", Model{ReadBandwidth: 1 << 30, IOPS: 10}, 0, 0, Read, 4096, s / 10, s / 10},
		{"bandwidth binds large ones", Model{ReadBandwidth: 1000, IOPS: 10}, 0, 0, Read, 1000, s, s},
		{"a flush waits its turn", Model{IOPS: 1, FlushLatency: 3}, 0, 9, Flush, 0, 12, 9},
	} {
		due, next := c.m.reserve(c.at, c.busy, c.kind, c.bytes)
		require.Equal(t, c.due, due, c.name)
		require.Equal(t, c.next, next, c.name)
	}
}

func TestModelSharesBandwidthExactly(t *testing.T) {
	t.Parallel()
	m := Model{ReadBandwidth: 1 << 30, Latency: time.Millisecond}
	var busy, due int64
	for range 1024 {
		due, busy = m.reserve(0, busy, Read, 1<<20)
	}
	require.InDelta(t, float64(time.Second+time.Millisecond), float64(due), 2000, "1 GiB at 1 GiB/s")
}

func TestErrorsSayWhereAndWhy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		says []string
		is   error
	}{
		{&ArgError{Op: 3, Field: "Offset", Value: 5, Limit: "even"}, []string{"op 3", "Offset", "5", "even"}, ErrInvalid},
		{&IOError{Path: "/d", Kind: Write, Offset: 4096, Len: 512, Err: syscall.ENOSPC}, []string{"write", "4096", "512", "/d"}, syscall.ENOSPC},
		{&IOError{Path: "/d", Kind: Flush, Err: syscall.EIO}, []string{"flush", "/d"}, syscall.EIO},
		{&BusyError{Path: "/d", InFlight: 9, Waited: time.Second}, []string{"9", "/d", "1s"}, ErrBusy},
		{&UnavailableError{Backend: "iouring", Reason: "forbidden", Err: syscall.EPERM}, []string{"iouring", "forbidden"}, ErrUnavailable},
		{&InFlightError{Err: context.DeadlineExceeded}, []string{"lent"}, context.DeadlineExceeded},
		{errUnsupported("grow"), []string{"grow"}, errors.ErrUnsupported},
	} {
		require.ErrorIs(t, c.err, c.is)
		for _, s := range c.says {
			require.Contains(t, fmt.Sprint(c.err), s)
		}
	}
}
