package device_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/device/devicetest"
)

const page = 4096

// fill is n bytes of v.
func fill(n int, v byte) []byte {
	b := device.AlignedBuffer(n)
	for i := range b {
		b[i] = v
	}
	return b
}

func newFault(t *testing.T) (*device.Fault, *device.Memory) {
	m := device.NewMemory(1 << 20)
	f := device.NewFault(m, 7)
	require.NoError(t, f.Record(devicetest.Context(t)))
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f, m
}

func at(m *device.Memory, off int64, n int) []byte {
	b := make([]byte, n)
	m.Peek(off, b)
	return b
}

func TestFaultRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		rule device.Rule
		run  func(t *testing.T, ctx context.Context, f *device.Fault, m *device.Memory)
	}{
		{"an I/O error by default", device.Rule{Action: device.Fail}, func(t *testing.T, ctx context.Context, f *device.Fault, m *device.Memory) {
			err := device.WriteAt(ctx, f, fill(page, 1), 0)
			require.ErrorIs(t, err, syscall.EIO)
			var io *device.IOError
			require.True(t, errors.As(err, &io))
			require.Equal(t, at(m, 0, page), make([]byte, page))
			require.EqualValues(t, 1, f.Stats().Writes.Errors)
		}},
		{"a full disk fails writes and reads on", device.Rule{Action: device.Fail, Kinds: device.Writes, Err: syscall.ENOSPC}, func(t *testing.T, ctx context.Context, f *device.Fault, _ *device.Memory) {
			require.ErrorIs(t, device.WriteAt(ctx, f, fill(page, 1), 0), syscall.ENOSPC)
			require.NoError(t, device.ReadAt(ctx, f, fill(page, 1), 0))
		}},
		{"read-only", device.ReadOnlyRule(), func(t *testing.T, ctx context.Context, f *device.Fault, _ *device.Memory) {
			require.ErrorIs(t, device.WriteAt(ctx, f, fill(page, 1), 0), syscall.EROFS)
			require.NoError(t, device.ReadAt(ctx, f, fill(page, 1), 0))
		}},
		{"gone", device.GoneRule(), func(t *testing.T, ctx context.Context, f *device.Fault, _ *device.Memory) {
			require.ErrorIs(t, device.ReadAt(ctx, f, fill(page, 1), 0), device.ErrGone)
			require.ErrorIs(t, device.Sync(ctx, f), syscall.ENXIO)
		}},
		{"only the third, and only once", device.Rule{Action: device.Fail, Nth: 3, Times: 1}, func(t *testing.T, ctx context.Context, f *device.Fault, _ *device.Memory) {
			for i := 1; i <= 5; i++ {
				err := device.ReadAt(ctx, f, fill(page, 1), 0)
				require.Equal(t, i == 3, err != nil, "op %d", i)
			}
		}},
		{"by place", device.Rule{Action: device.Fail, From: 2 * page, To: 3 * page}, func(t *testing.T, ctx context.Context, f *device.Fault, _ *device.Memory) {
			require.NoError(t, device.ReadAt(ctx, f, fill(2*page, 1), 0))
			require.NoError(t, device.ReadAt(ctx, f, fill(page, 1), 3*page))
			require.Error(t, device.ReadAt(ctx, f, fill(3*page, 1), 0))
			require.Error(t, device.ReadAt(ctx, f, fill(page, 1), 2*page))
		}},
		{"by condition", device.Rule{Action: device.Fail, Match: func(o *device.Op) bool { return o.Len() > page }}, func(t *testing.T, ctx context.Context, f *device.Fault, _ *device.Memory) {
			require.NoError(t, device.ReadAt(ctx, f, fill(page, 1), 0))
			require.Error(t, device.ReadAt(ctx, f, fill(2*page, 1), 0))
		}},
		{"a lost write", device.Rule{Action: device.Drop, Kinds: device.Writes}, func(t *testing.T, ctx context.Context, f *device.Fault, m *device.Memory) {
			require.NoError(t, device.WriteAt(ctx, f, fill(page, 1), 0))
			require.Equal(t, make([]byte, page), at(m, 0, page))
			require.NoError(t, device.Sync(ctx, f))
			require.Equal(t, make([]byte, page), f.CrashImage(f.Events(), nil, device.CrashOptions{KeepAll: true})[:page])
		}},
		{"a torn write", device.Rule{Action: device.Tear, Keep: page + 1000}, func(t *testing.T, ctx context.Context, f *device.Fault, m *device.Memory) {
			m.Poke(0, fill(4*page, 9))
			require.NoError(t, device.WriteAt(ctx, f, fill(3*page, 1), 0))
			want := append(fill(page+512, 1), fill(3*page-512, 9)...)
			require.True(t, bytes.Equal(want, at(m, 0, 4*page)))
		}},
		{"a misdirected write", device.Rule{Action: device.Misdirect, Kinds: device.Writes, Shift: 5 * page}, func(t *testing.T, ctx context.Context, f *device.Fault, m *device.Memory) {
			require.NoError(t, device.WriteAt(ctx, f, fill(page, 1), page))
			require.Equal(t, make([]byte, page), at(m, page, page))
			require.Equal(t, []byte(fill(page, 1)), at(m, 6*page, page))
			require.NoError(t, device.WriteAt(ctx, f, fill(page, 2), f.Size()-page), "nowhere to go: left alone")
			require.Equal(t, []byte(fill(page, 2)), at(m, f.Size()-page, page))
		}},
		{"a misdirected read", device.Rule{Action: device.Misdirect, Kinds: device.Reads, Shift: -page}, func(t *testing.T, ctx context.Context, f *device.Fault, m *device.Memory) {
			m.Poke(0, fill(page, 4))
			got := fill(page, 1)
			require.NoError(t, device.ReadAt(ctx, f, got, page))
			require.Equal(t, fill(page, 4), got)
		}},
		{"a flipped bit", device.Rule{Action: device.FlipBit, Times: 1}, func(t *testing.T, ctx context.Context, f *device.Fault, m *device.Memory) {
			got := fill(4*page, 1)
			require.NoError(t, device.Run(ctx, f, &device.Op{Bufs: [][]byte{got[:page], got[page:]}}))
			ones := 0
			for _, b := range got {
				for ; b != 0; b &= b - 1 {
					ones++
				}
			}
			require.Equal(t, 1, ones)
			require.NoError(t, device.ReadAt(ctx, f, got, 0))
			require.Equal(t, make([]byte, 4*page), []byte(got), "the drive's own bytes are right")
		}},
		{"a delay is a delay and nothing else", device.Rule{Action: device.Delay, Delay: time.Millisecond}, func(t *testing.T, ctx context.Context, f *device.Fault, m *device.Memory) {
			op := &device.Op{Kind: device.Write, Bufs: [][]byte{fill(page, 1)}}
			require.NoError(t, device.Run(ctx, f, op))
			require.GreaterOrEqual(t, op.Latency(), time.Millisecond)
			require.Equal(t, []byte(fill(page, 1)), at(m, 0, page))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, m := newFault(t)
			i, err := f.Inject(c.rule)
			require.NoError(t, err)
			c.run(t, devicetest.Context(t), f, m)
			require.Positive(t, i.Fired())
			i.Remove()
			require.NoError(t, device.WriteAt(devicetest.Context(t), f, fill(page, 1), 0), "after the rule all is well")
		})
	}
}

func TestFaultRefusesRulesWithoutSense(t *testing.T) {
	t.Parallel()
	f, _ := newFault(t)
	for _, r := range []device.Rule{
		{},
		{Action: 99},
		{Action: device.Tear, Kinds: device.Reads},
		{Action: device.FlipBit, Kinds: device.Writes},
		{Action: device.Misdirect},
		{Action: device.Misdirect, Shift: 512},
		{Action: device.Fail, Probability: 1.5},
		{Action: device.Fail, From: 8, To: 8},
		{Action: device.Fail, Nth: -1},
	} {
		_, err := f.Inject(r)
		require.ErrorIs(t, err, device.ErrInvalid, "%+v", r)
	}
}

func TestFaultsRepeatFromTheSeed(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) (failed []int) {
		f := device.NewFault(device.NewMemory(1<<20), seed)
		defer f.Close()
		f.MustInject(device.Rule{Action: device.Fail, Probability: 0.3})
		for i := range 100 {
			if device.ReadAt(devicetest.Context(t), f, fill(page, 0), 0) != nil {
				failed = append(failed, i)
			}
		}
		return failed
	}
	require.Equal(t, run(1), run(1))
	require.NotEqual(t, run(1), run(2))
	require.InDelta(t, 30, len(run(1)), 25)
}

func TestAHungDriveKeepsTheBuffer(t *testing.T) {
	t.Parallel()
	f, m := newFault(t)
	m.Poke(0, fill(page, 5))
	f.Hold(device.Read)

	ctx, cancel := context.WithCancel(devicetest.Context(t))
	buf := fill(page, 1)
	go func() {
		if f.WaitHeld(devicetest.Context(t), 1) == nil {
			cancel()
		}
	}()
	err := device.ReadAt(ctx, f, buf, 0)
	require.ErrorIs(t, err, context.Canceled)
	var lent *device.InFlightError
	require.True(t, errors.As(err, &lent))
	require.Equal(t, fill(page, 1), buf, "not yet")
	require.EqualValues(t, 1, f.Stats().InFlight)
	require.NoError(t, device.WriteAt(devicetest.Context(t), f, fill(page, 2), page), "writes pass")

	f.Release()
	<-lent.Done
	require.Equal(t, fill(page, 5), buf, "the drive wrote into it after the caller gave up")
	require.Zero(t, f.Held())
}

func TestWithholdRunsTheOp(t *testing.T) {
	t.Parallel()
	f, m := newFault(t)
	f.MustInject(device.Rule{Action: device.Withhold, Kinds: device.Writes})
	done := make(chan struct{})
	op := &device.Op{Kind: device.Write, Bufs: [][]byte{fill(page, 3)}, Done: func(*device.Op) { close(done) }}
	require.NoError(t, f.Submit([]*device.Op{op}))
	require.NoError(t, f.WaitHeld(devicetest.Context(t), 1))
	require.Equal(t, []byte(fill(page, 3)), at(m, 0, page), "on the drive")
	select {
	case <-done:
		t.Fatal("done before Release")
	default:
	}
	f.Release()
	<-done
	require.NoError(t, op.Err)
}

func TestCloseWithAHeldOp(t *testing.T) {
	t.Parallel()
	// On a real file, so that the descriptor under the hung op would matter.
	inner := create(t, 1<<20, device.Options{})
	f := device.NewFault(inner, 1)
	f.SetCloseTimeout(time.Millisecond)
	f.Hold()
	canary := fill(page, 0xC5)
	done := make(chan error, 1)
	op := &device.Op{Bufs: [][]byte{canary}, Done: func(o *device.Op) { done <- o.Err }}
	require.NoError(t, f.Submit([]*device.Op{op}))

	err := f.Close()
	var busy *device.BusyError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, 1, busy.InFlight)
	require.Equal(t, fill(page, 0xC5), canary)
	require.ErrorIs(t, device.Sync(devicetest.Context(t), f), device.ErrClosed)
	require.NoError(t, device.Sync(devicetest.Context(t), inner), "the drive stays open under the held op")

	f.Release()
	require.NoError(t, <-done)
	require.Equal(t, fill(page, 0), canary, "read after all, into memory that was kept")
	require.Eventually(t, func() bool {
		return errors.Is(device.Sync(devicetest.Context(t), inner), device.ErrClosed)
	}, time.Minute, time.Millisecond, "closed after the last completion")
}

func TestCrashImageOfAKnownHistory(t *testing.T) {
	t.Parallel()
	ctx := devicetest.Context(t)
	f, _ := newFault(t)
	write := func(p int, v byte) { require.NoError(t, device.WriteAt(ctx, f, fill(page, v), int64(p)*page)) }
	write(0, 1) // events 1, 2
	write(1, 1) // 3, 4
	require.NoError(t, device.Sync(ctx, f))
	write(0, 2) // 7, 8
	lie := f.MustInject(device.LyingFlushRule())
	require.NoError(t, device.Sync(ctx, f)) // 9, 10
	lie.Remove()
	require.Equal(t, 10, f.Events())

	worst := func(event int) string {
		b := f.CrashImage(event, nil, device.CrashOptions{})
		return string([]byte{'0' + b[0], '0' + b[page]})
	}
	best := func(event int) string {
		b := f.CrashImage(event, nil, device.CrashOptions{KeepAll: true})
		return string([]byte{'0' + b[0], '0' + b[page]})
	}
	for _, c := range []struct {
		event       int
		worst, best string
	}{
		{0, "00", "00"},
		{1, "00", "10"}, // submitted: may be there
		{4, "00", "11"}, // done: still not durable
		{5, "00", "11"}, // the flush is under way
		{6, "11", "11"}, // flushed
		{8, "11", "21"},
		{10, "11", "21"}, // the second flush lied
	} {
		require.Equal(t, c.worst, worst(c.event), "worst after event %d", c.event)
		require.Equal(t, c.best, best(c.event), "best after event %d", c.event)
	}
	require.Len(t, f.Log(), 5)
	require.Nil(t, device.NewFault(device.NewMemory(page), 1).CrashImage(0, nil, device.CrashOptions{}), "nothing recorded")
}

// TestCrashImagesAreWhatACrashCouldLeave: every unit of every image holds bytes
// that some write put there and that no flush has since made obsolete.
func TestCrashImagesAreWhatACrashCouldLeave(t *testing.T) {
	t.Parallel()
	ctx, rng := devicetest.Context(t), devicetest.RNG(t)
	const pages, sector = 16, 512
	torn := 0
	for range 20 {
		f := device.NewFault(device.NewMemory(pages*page), rng.Uint64())
		require.NoError(t, f.Record(ctx))
		// allowed[e][p]: the values page p may hold in a crash after event e; nil
		// until the first event that is ours.
		flushed, maybe := make([]byte, pages), make([][]byte, pages)
		type moment struct {
			event   int
			flushed []byte
			maybe   [][]byte
		}
		var moments []moment
		for v := byte(1); v < 60; v++ {
			if rng.IntN(6) == 0 {
				require.NoError(t, device.Sync(ctx, f))
				for p := range maybe {
					if n := len(maybe[p]); n > 0 {
						flushed[p], maybe[p] = maybe[p][n-1], nil
					}
				}
			} else {
				p, n := rng.IntN(pages), 1+rng.IntN(4)
				n = min(n, pages-p)
				require.NoError(t, device.WriteAt(ctx, f, fill(n*page, v), int64(p)*page))
				for i := p; i < p+n; i++ {
					maybe[i] = append(maybe[i], v)
				}
			}
			m := moment{f.Events(), bytes.Clone(flushed), make([][]byte, pages)}
			for i := range maybe {
				m.maybe[i] = bytes.Clone(maybe[i])
			}
			moments = append(moments, m)
		}
		for _, m := range moments {
			tear := []int{0, sector, page}[rng.IntN(3)]
			image := f.CrashImage(m.event, rng, device.CrashOptions{Tear: tear})
			for off := 0; off < len(image); off += sector {
				p := off / page
				unit := image[off : off+sector]
				v := unit[0]
				require.True(t, bytes.Equal(unit, fill(sector, v)), "a sector is never torn")
				require.True(t, v == m.flushed[p] || bytes.IndexByte(m.maybe[p], v) >= 0,
					"page %d holds %d after event %d; flushed %d, maybe %v", p, v, m.event, m.flushed[p], m.maybe[p])
				if v != image[p*page] {
					torn++
					require.Equal(t, sector, tear, "torn inside a page only when asked")
				}
			}
		}
		// The same choices give the same image.
		o := device.CrashOptions{Tear: sector}
		a := f.CrashImage(f.Events(), rand.New(rand.NewPCG(1, 2)), o)
		b := f.CrashImage(f.Events(), rand.New(rand.NewPCG(1, 2)), o)
		require.True(t, bytes.Equal(a, b))
		require.NoError(t, f.Close())
	}
	require.Positive(t, torn, "no image was torn: the test saw nothing")
}

func TestThrottledPassesErrorsAndSaysSimulated(t *testing.T) {
	t.Parallel()
	f, _ := newFault(t)
	f.MustInject(device.Rule{Action: device.Fail, Kinds: device.Reads})
	d, err := device.NewThrottled(f, device.Model{Latency: time.Microsecond})
	require.NoError(t, err)
	require.True(t, d.Info().Simulated)
	require.Equal(t, device.Device(f), d.Unwrap())
	require.ErrorIs(t, device.ReadAt(devicetest.Context(t), d, fill(page, 0), 0), syscall.EIO)
	_, err = device.NewThrottled(f, device.Model{IOPS: -1})
	require.ErrorIs(t, err, device.ErrInvalid)
}

func TestThrottledIsNoFasterThanItsModel(t *testing.T) {
	t.Parallel()
	d, err := device.NewThrottled(device.NewMemory(1<<20), device.Model{ReadBandwidth: 64 << 20, Latency: time.Millisecond})
	require.NoError(t, err)
	defer d.Close()
	var ops []*device.Op
	for i := range 16 {
		ops = append(ops, &device.Op{Offset: int64(i) * 64 << 10, Bufs: [][]byte{fill(64<<10, 0)}})
	}
	require.NoError(t, device.Run(devicetest.Context(t), d, ops...))
	for i, op := range ops { // a lower bound is no bet on the machine's speed
		require.GreaterOrEqual(t, op.Latency(), time.Duration(i+1)*time.Second/1024+time.Millisecond)
	}
}
