package segio

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// hangs is longer than any test.
const hangs = time.Hour

func requireKind(t testing.TB, want skep.Kind, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want, skep.KindOf(err), "%v", err)
}

// mem is a device in memory that faults can be put into.
func mem(t testing.TB, size int64) *device.Fault {
	d := device.NewFault(device.NewMemory(size), 1)
	t.Cleanup(func() {
		d.Clear()
		d.Release()
		require.NoError(t, d.Close())
	})
	return d
}

// durably writes to dev without a flush: nothing is lost of memory.
func durably(dev device.Device) WriteDurably {
	return func(ctx context.Context, buf []byte, off int64) error { return device.WriteAt(ctx, dev, buf, off) }
}

// A flush under way does not count for a write that was completed after it began.
func TestFlushCoversWhatCameBefore(t *testing.T) {
	t.Parallel()
	d := mem(t, 1<<20)
	d.Hold(device.Flush)
	var f Flusher
	f.Use(d)
	first := f.Start()
	require.NoError(t, d.WaitHeld(t.Context(), 1))
	require.False(t, f.Queued())
	second, third := f.Start(), f.Start()
	require.NotSame(t, first, second)
	require.Same(t, second, third, "those who wait share a flush")
	require.True(t, f.Queued())
	d.Release()
	for _, r := range []*Flush{first, second} {
		<-r.Done()
		require.NoError(t, r.Err())
	}
	require.EqualValues(t, 2, d.Stats().Flushes.Ops)
}

// A flush that fails is told of and counted before the next begins; nobody else can flush the device.
func TestAFlushThatFails(t *testing.T) {
	t.Parallel()
	d := mem(t, 1<<20)
	d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Flushes, Times: 1})
	var f Flusher
	dev := f.Use(d)
	var told []error
	f.OnFailure(func(err error) { told = append(told, err) })
	r := f.Start()
	<-r.Done()
	require.Error(t, r.Err())
	require.Equal(t, []error{r.Err()}, told)
	require.EqualValues(t, 1, f.Failures())
	r = f.Start()
	<-r.Done()
	require.NoError(t, r.Err())
	require.EqualValues(t, 1, f.Failures())
	require.ErrorIs(t, device.Sync(t.Context(), dev), device.ErrInvalid)
}

// However the operations of a batch end, it ends once, with the errors of those that failed.
func TestBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testBatch)
}

func testBatch(t *testing.T) {
	d := mem(t, 1<<20)
	b := NewBatch(3)
	ended := 0
	b.After(func() { ended++ })
	told := make(chan error, 3)
	op := func(off int64) *device.Op {
		return &device.Op{Kind: device.Write, Bufs: [][]byte{device.AlignedBuffer(layout.PageSize)}, Offset: off, Done: func(o *device.Op) { told <- o.Err }}
	}
	rule := d.MustInject(device.Rule{Action: device.Fail})
	b.Submit(d, op(0))
	b.Submit(d, op(1)) // refused: it is not aligned
	rule.Remove()
	d.Hold(device.Write)
	b.Submit(d, op(layout.PageSize))
	requireKind(t, skep.Deadline, b.Wait(t.Context(), time.Millisecond))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	requireKind(t, skep.Deadline, b.Wait(gone, hangs))
	lost := make(chan struct{})
	close(lost)
	requireKind(t, skep.DeviceFailed, b.WaitOr(t.Context(), hangs, lost))
	require.Zero(t, ended)
	d.Release()
	err := b.Wait(t.Context(), hangs)
	requireKind(t, skep.DeviceFailed, err)
	require.ErrorIs(t, err, device.ErrInvalid)
	require.Equal(t, 1, ended)
	require.Len(t, told, 2, "what was refused never ended")
	b.After(func() { ended++ })
	require.Equal(t, 2, ended, "at once, of what has ended")
	require.NoError(t, NewBatch(0).Wait(t.Context(), 0))
}

func superblock() *segment.Superblock {
	return &segment.Superblock{Sequence: 1, Store: segment.StoreID{1}, Device: segment.DeviceID{2}, DeviceCount: 1, DeviceBytes: 1 << 20, SegmentBytes: 128 << 10,
		FirstSegment: layout.SegmentOffset(0, 128<<10), Created: time.Unix(1, 0)}
}

// Of two superblocks the newer whole one counts, and one is whole whenever a write is cut off.
func TestSuperblocks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := mem(t, 1<<20)
	read := func() (segment.Superblock, error) { return ReadSuperblock(ctx, d, "path") }
	_, err := read()
	requireKind(t, skep.Foreign, err)
	require.NoError(t, CheckBlank(ctx, d, "path"))
	sb := superblock()
	require.NoError(t, WriteSuperblocks(ctx, durably(d), sb))
	got, err := read()
	require.NoError(t, err)
	require.EqualValues(t, 1, got.Sequence)
	err = CheckBlank(ctx, d, "path")
	requireKind(t, skep.Foreign, err)
	require.ErrorContains(t, err, sb.Store.String())

	sb.Sequence = 2
	for cut := range 2 { // the first write does not come whole, then the second does not come at all
		writes := 0
		err := WriteSuperblocks(ctx, func(ctx context.Context, buf []byte, off int64) error {
			if writes == cut {
				if cut == 0 {
					d.Unwrap().(*device.Memory).Poke(off, buf[:512])
				}
				return errors.New("cut off")
			}
			writes++
			return durably(d)(ctx, buf, off)
		}, sb)
		require.ErrorContains(t, err, "cut off")
		got, err = read()
		require.NoError(t, err)
		require.EqualValues(t, 1+cut, got.Sequence)
	}
	require.NoError(t, WriteSuperblocks(ctx, durably(d), sb))
	for i := range 2 {
		d.Unwrap().(*device.Memory).Poke(int64(i)*layout.PageSize+100, []byte{0xff, 0xff})
		both, err := ReadSuperblocks(ctx, "scrub", d, "path")
		require.NoError(t, err)
		require.Equal(t, []int{i}, both.Damaged())
		good, err := both.Choose()
		require.NoError(t, err)
		require.NoError(t, WriteSuperblock(ctx, durably(d), &good, i))
	}
	require.NoError(t, Wipe(ctx, durably(d)))
	require.NoError(t, CheckBlank(ctx, d, "path"))

	_, err = ReadSuperblock(ctx, mem(t, layout.PageSize), "path")
	requireKind(t, skep.Foreign, err)
	d.MustInject(device.Rule{Action: device.Fail})
	_, err = read()
	requireKind(t, skep.DeviceFailed, err)
	requireKind(t, skep.DeviceFailed, CheckBlank(ctx, d, "path"))
}

const segmentBytes = 128 << 10

func drive(dev device.Device) Drive {
	return Drive{Dev: dev, ID: segment.DeviceID{2}, SegmentBytes: segmentBytes}
}

// Headers are told apart: right ones, those of others, what is no header, and what could not be read.
func TestReadHeaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testReadHeaders)
}

func testReadHeaders(t *testing.T) {
	ctx := t.Context()
	dev := mem(t, 16<<20)
	d := drive(dev)
	store := segment.StoreID{1}
	for seg := range uint32(60) {
		h := segment.Header{Store: store, Device: d.ID, Group: seg + 1, Generation: 1, Segment: seg, Devices: []segment.Slot{{Segment: seg}}, SegmentBytes: segmentBytes, Copies: 1, Seq: 1}
		switch seg {
		case 10:
			h.Store = segment.StoreID{9}
		case 11:
			h.Device = segment.DeviceID{9}
		case 12:
			h.Segment, h.Devices[0].Segment = 13, 13
		case 14:
			continue
		}
		op, err := WriteHeader(d, &h)
		require.NoError(t, err)
		op.Offset = d.Offset(seg)
		require.NoError(t, device.Run(ctx, dev, op))
	}
	dev.MustInject(device.Rule{Action: device.Fail, Kinds: device.Reads, Match: func(o *device.Op) bool { return o.Offset == d.Offset(15) }})
	dev.MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads, Match: func(o *device.Op) bool { return o.Offset == d.Offset(16) }})
	want := map[uint32]skep.Kind{10: skep.Foreign, 11: skep.Foreign, 12: skep.Damaged, 14: skep.Foreign, 15: skep.DeviceFailed, 16: skep.Deadline}
	var all []uint32
	for seg := range uint32(60) {
		all = append(all, seg)
	}
	type answer struct {
		seg, group uint32
		err        error
	}
	answers := make(chan answer, len(all))
	ReadHeaders(ctx, d, store, all, time.Second, func(seg uint32, h *segment.Header, err error) {
		a := answer{seg: seg, err: err}
		if h != nil {
			a.group = h.Group
		}
		answers <- a
	})
	require.Len(t, answers, len(all))
	h, wrong, err := ReadHeader(ctx, d, 10, time.Second)
	require.NoError(t, errors.Join(wrong, err), "whosever it is")
	require.Equal(t, segment.StoreID{9}, h.Store)
	_, wrong, err = ReadHeader(ctx, d, 14, time.Second)
	require.NoError(t, err)
	requireKind(t, skep.Foreign, wrong)
	_, _, err = ReadHeader(ctx, d, 15, time.Second)
	requireKind(t, skep.DeviceFailed, err)
	_, err = WriteHeader(d, &segment.Header{})
	requireKind(t, skep.Invalid, err)
	for range all {
		a := <-answers
		if kind, bad := want[a.seg]; bad {
			requireKind(t, kind, a.err)
			continue
		}
		require.NoError(t, a.err)
		require.Equal(t, a.seg+1, a.group)
	}
}

// writeLog writes appends of one mark each to a log, and says how many pages it has.
func writeLog(t *testing.T, l Log, appends int) {
	for i := range appends {
		var w segment.LogWriter
		require.NoError(t, w.Mark(&segment.Mark{Flushed: uint64(i)}))
		buf := device.AlignedBuffer(layout.PageSize)
		require.NoError(t, w.Encode(buf, l.ID, i, uint64(i+1)))
		require.NoError(t, device.WriteAt(t.Context(), l.Drive.Dev, buf, l.Drive.Offset(l.Segment+1)-int64(i+1)*layout.PageSize))
	}
}

func logIn(dev device.Device, position uint16) Log {
	return Log{Drive: drive(dev), Segment: 1, ID: segment.LogID{Store: segment.StoreID{1}, Group: 3, Generation: 4, Position: position}}
}

// A log is read to its end, and what another life of the segment left is not of it.
func TestScanLog(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := logIn(mem(t, 1<<20), 0)
	older := l
	older.ID.Generation = 3
	writeLog(t, older, 12)
	writeLog(t, l, 5)
	var seqs []uint64
	end, err := ScanLog(ctx, l, LogBuffer(), hangs, func(a *segment.Append) error {
		seqs = append(seqs, a.Seq)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 2, 3, 4, 5}, seqs)
	require.Equal(t, 5, end.Appends)
	stop := errors.New("enough")
	_, err = ScanLog(ctx, l, LogBuffer(), hangs, func(*segment.Append) error { return stop })
	require.ErrorIs(t, err, stop)
}

// Each log of a group that can be read is, and of each other one is told why not.
func TestScanGroup(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	devs := []*device.Fault{mem(t, 1<<20), mem(t, 1<<20)}
	logs := make([]Log, 2)
	for i, d := range devs {
		logs[i] = logIn(d, uint16(i))
		writeLog(t, logs[i], 3)
	}
	scan := func() (n int, unread []error) {
		unread, err := ScanGroup(ctx, logs, hangs, func(_ *segment.Append, e segment.Entry) error {
			require.Equal(t, segment.KindMark, e.Kind)
			n++
			return nil
		})
		require.NoError(t, err)
		return n, unread
	}
	n, unread := scan()
	require.Equal(t, 6, n)
	require.Equal(t, []error{nil, nil}, unread)
	logs[0].Down = true
	n, unread = scan()
	require.Equal(t, 3, n)
	require.Equal(t, []error{ErrNoDrive, nil}, unread)
	devs[1].MustInject(device.Rule{Action: device.Fail})
	n, unread = scan()
	require.Zero(t, n)
	requireKind(t, skep.DeviceFailed, unread[1])
	logs[0].Down = false
	stop := errors.New("enough")
	_, err := ScanGroup(ctx, logs, hangs, func(*segment.Append, segment.Entry) error { return stop })
	require.ErrorIs(t, err, stop)
}
