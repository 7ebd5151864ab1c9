// Package devicetest is the contract of device.Device as a test. Every backend
// and wrapper runs it in one line.
package devicetest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
)

// Size is how large, in bytes, an Opener makes the device.
const Size = 8 << 20

// Opener returns a new device of Size bytes that reads as zeros. The test closes
// it.
type Opener func(t *testing.T) device.Device

// patience is the deadline of every wait: far beyond what any correct device
// takes on any machine.
const patience = 2 * time.Minute

// Test runs the contract against devices from open.
func Test(t *testing.T, open Opener) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, d device.Device)
	}{
		{"a new device reads as zeros", freshZeros},
		{"what is written is read", roundTrip},
		{"vectored ops scatter and gather in order", vectored},
		{"neighbouring buffers are no special case", neighbours},
		{"an op of the largest size", largest},
		{"bad ops are refused and nothing is submitted", refusals},
		{"an op in flight or twice in a batch is refused", twice},
		{"more ops than the queue is deep", manyAtOnce},
		{"an op is reusable from its Done", reuse},
		{"Done may run while the submitter holds a lock", lockedSubmit},
		{"many goroutines at once", concurrent},
		{"a flush completes", flush},
		{"statistics count what was done", stats},
		{"grow keeps the bytes and adds zeros", grow},
		{"an ended context lends nothing", endedContext},
		{"close refuses what comes after", closed},
		{"close under fire ends every op once", closeUnderFire},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := open(t)
			t.Cleanup(func() { require.NoError(t, d.Close()) })
			c.run(t, d)
		})
	}
}

// Context is the deadline of one wait.
func Context(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// RNG returns a generator whose seed is in the test's log.
func RNG(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Random returns n aligned random bytes.
func Random(rng *rand.Rand, n int) []byte {
	b := device.AlignedBuffer(n)
	for i := 0; i < n; i += 8 {
		*(*uint64)(unsafe.Pointer(&b[i])) = rng.Uint64()
	}
	return b
}

func freshZeros(t *testing.T, d device.Device) {
	require.EqualValues(t, Size, d.Size())
	require.EqualValues(t, Size, d.Info().Size)
	require.NotEmpty(t, d.Info().Backend)
	got := device.AlignedBuffer(Size)
	got[17], got[Size-1] = 1, 1
	require.NoError(t, device.ReadAt(Context(t), d, got, 0))
	require.True(t, bytes.Equal(make([]byte, Size), got))
}

func roundTrip(t *testing.T, d device.Device) {
	ctx, rng := Context(t), RNG(t)
	for _, at := range []struct {
		off int64
		n   int
	}{{0, 4096}, {4096, 8192}, {1 << 20, 64 << 10}, {3<<20 - 4096, 2 << 20}, {Size - 4096, 4096}} {
		want, got := Random(rng, at.n), device.AlignedBuffer(at.n)
		require.NoError(t, device.WriteAt(ctx, d, want, at.off))
		require.NoError(t, device.ReadAt(ctx, d, got, at.off))
		require.True(t, bytes.Equal(want, got), "%d bytes at %d", at.n, at.off)
	}
}

func vectored(t *testing.T, d device.Device) {
	ctx, rng := Context(t), RNG(t)
	// Slices of one array, apart and out of order.
	arena := Random(rng, 64<<10)
	bufs := [][]byte{arena[40960:49152], arena[0:4096], arena[16384:28672]}
	want := bytes.Join(bufs, nil)
	require.NoError(t, device.Run(ctx, d, &device.Op{Kind: device.Write, Offset: 12288, Bufs: bufs}))
	got := device.AlignedBuffer(len(want))
	require.NoError(t, device.ReadAt(ctx, d, got, 12288))
	require.True(t, bytes.Equal(want, got))

	clear(arena)
	require.NoError(t, device.Run(ctx, d, &device.Op{Kind: device.Read, Offset: 12288, Bufs: bufs}))
	require.True(t, bytes.Equal(want, bytes.Join(bufs, nil)))
	require.True(t, bytes.Equal(make([]byte, 12288), arena[4096:16384]), "bytes between the buffers were touched")

	many := make([][]byte, device.MaxBufs)
	space := Random(rng, 2*4096*device.MaxBufs)
	for i := range many {
		many[i] = space[2*4096*i : 2*4096*i+4096]
	}
	want = bytes.Join(many, nil)
	require.NoError(t, device.Run(ctx, d, &device.Op{Kind: device.Write, Bufs: many}))
	got = device.AlignedBuffer(len(want))
	require.NoError(t, device.ReadAt(ctx, d, got, 0))
	require.True(t, bytes.Equal(want, got), "%d buffers", len(many))
}

func neighbours(t *testing.T, d device.Device) {
	ctx, rng := Context(t), RNG(t)
	arena := Random(rng, 32<<10)
	want := bytes.Clone(arena)
	bufs := [][]byte{arena[0:4096], arena[4096:12288], arena[12288:16384], arena[20480:24576], arena[24576:]}
	require.NoError(t, device.Run(ctx, d, &device.Op{Kind: device.Write, Offset: 4096, Bufs: bufs}))
	clear(arena)
	require.NoError(t, device.Run(ctx, d, &device.Op{Kind: device.Read, Offset: 4096, Bufs: bufs}))
	clear(want[16384:20480]) // in no buffer
	require.True(t, bytes.Equal(want, arena))
}

func largest(t *testing.T, d device.Device) {
	ctx, rng := Context(t), RNG(t)
	want, got := Random(rng, device.MaxIO), device.AlignedBuffer(device.MaxIO)
	require.NoError(t, device.Run(ctx, d, &device.Op{Kind: device.Write, Bufs: [][]byte{want}}))
	require.NoError(t, device.Run(ctx, d, &device.Op{Kind: device.Read, Bufs: [][]byte{got}}))
	require.True(t, bytes.Equal(want, got))
}

func refusals(t *testing.T, d device.Device) {
	done := func(*device.Op) {}
	page := device.AlignedBuffer(4096)
	two := device.AlignedBuffer(8192)
	big := device.AlignedBuffer(device.MaxIO + 4096)
	crowd := make([][]byte, device.MaxBufs+1)
	for i := range crowd {
		crowd[i] = page
	}
	for _, c := range []struct {
		name  string
		op    *device.Op
		field string
	}{
		{"nil op", nil, "Op"},
		{"no such kind", &device.Op{Kind: 77, Bufs: [][]byte{page}, Done: done}, "Kind"},
		{"no Done", &device.Op{Bufs: [][]byte{page}}, "Done"},
		{"no buffers", &device.Op{Done: done}, "len(Bufs)"},
		{"too many buffers", &device.Op{Bufs: crowd, Done: done}, "len(Bufs)"},
		{"empty buffer", &device.Op{Bufs: [][]byte{page, {}}, Done: done}, "len(Bufs[1])"},
		{"odd length", &device.Op{Bufs: [][]byte{two[:4608]}, Done: done}, "len(Bufs[0])"},
		{"odd address", &device.Op{Bufs: [][]byte{two[512 : 512+4096]}, Done: done}, "address of Bufs[0]"},
		{"odd offset", &device.Op{Offset: 512, Bufs: [][]byte{page}, Done: done}, "Offset"},
		{"negative offset", &device.Op{Offset: -4096, Bufs: [][]byte{page}, Done: done}, "Offset"},
		{"past the end", &device.Op{Offset: Size, Bufs: [][]byte{page}, Done: done}, "Offset"},
		{"across the end", &device.Op{Offset: Size - 4096, Bufs: [][]byte{two}, Done: done}, "Offset"},
		{"offset that overflows", &device.Op{Offset: 1<<63 - 4096, Bufs: [][]byte{page}, Done: done}, "Offset"},
		{"too large", &device.Op{Bufs: [][]byte{big}, Done: done}, "bytes in Bufs"},
		{"flush with a buffer", &device.Op{Kind: device.Flush, Bufs: [][]byte{page}, Done: done}, "Bufs"},
	} {
		before := d.Stats()
		good := &device.Op{Kind: device.Write, Bufs: [][]byte{bytes2(page)}, Done: func(*device.Op) { t.Error("submitted all the same") }}
		err := d.Submit([]*device.Op{good, c.op})
		require.ErrorIs(t, err, device.ErrInvalid, c.name)
		var arg *device.ArgError
		require.ErrorAs(t, err, &arg, c.name)
		require.Equal(t, c.field, arg.Field, c.name)
		require.Equal(t, 1, arg.Op, c.name)
		require.Equal(t, before, d.Stats(), c.name)
	}
	require.NoError(t, d.Submit(nil))
	got := device.AlignedBuffer(4096)
	require.NoError(t, device.ReadAt(Context(t), d, got, 0))
	require.True(t, bytes.Equal(make([]byte, 4096), got), "the good op of a bad batch was done")
}

// bytes2 is page's worth of something that is not zero.
func bytes2(page []byte) []byte {
	b := device.AlignedBuffer(len(page))
	for i := range b {
		b[i] = 2
	}
	return b
}

func twice(t *testing.T, d device.Device) {
	done := make(chan struct{}, 1)
	op := &device.Op{Bufs: [][]byte{device.AlignedBuffer(4096)}, Done: func(*device.Op) { done <- struct{}{} }}
	require.ErrorIs(t, d.Submit([]*device.Op{op, op}), device.ErrInvalid)
	require.NoError(t, d.Submit([]*device.Op{op}), "the refused op is free again")
	wait(t, done)

	// Within its Done an op is the caller's already; before, it is not. A Done that
	// has not returned proves the op was in flight when it was submitted again.
	var again error
	first := &device.Op{Bufs: [][]byte{device.AlignedBuffer(4096)}}
	hold := make(chan struct{})
	first.Done = func(o *device.Op) {
		o.Done = func(*device.Op) { done <- struct{}{} }
		again = d.Submit([]*device.Op{o})
		close(hold)
	}
	require.NoError(t, d.Submit([]*device.Op{first}))
	wait(t, hold)
	require.NoError(t, again)
	wait(t, done)
}

func wait[T any](t *testing.T, c <-chan T) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal("an op was never done")
	}
}

func manyAtOnce(t *testing.T, d device.Device) {
	ctx, rng := Context(t), RNG(t)
	const n = Size / 4096
	data := Random(rng, Size)
	var ops []*device.Op
	for _, i := range rng.Perm(n) {
		ops = append(ops, &device.Op{Kind: device.Write, Offset: int64(i) * 4096, Bufs: [][]byte{data[i*4096 : i*4096+4096]}})
	}
	require.Greater(t, len(ops), d.Info().QueueDepth)
	require.NoError(t, device.Run(ctx, d, ops...))
	got := device.AlignedBuffer(Size)
	for i, op := range ops {
		*op = device.Op{Kind: device.Read, Offset: int64(i) * 4096, Bufs: [][]byte{got[i*4096 : i*4096+4096]}}
	}
	require.NoError(t, device.Run(ctx, d, ops...))
	require.True(t, bytes.Equal(data, got))
}

func reuse(t *testing.T, d device.Device) {
	rng := RNG(t)
	data := Random(rng, 1<<20)
	require.NoError(t, device.WriteAt(Context(t), d, data, 0))
	done := make(chan error, 1)
	op := &device.Op{Kind: device.Read, Bufs: [][]byte{device.AlignedBuffer(4096)}}
	op.Done = func(o *device.Op) {
		if !bytes.Equal(o.Bufs[0], data[o.Offset:o.Offset+4096]) {
			o.Err = errors.New("wrong bytes")
		}
		if o.Offset += 4096; o.Err != nil || o.Offset == int64(len(data)) {
			done <- o.Err
			return
		}
		if err := d.Submit([]*device.Op{o}); err != nil {
			done <- err
		}
	}
	require.NoError(t, d.Submit([]*device.Op{op}))
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("the chain broke")
	}
}

func lockedSubmit(t *testing.T, d device.Device) {
	var mu sync.Mutex
	var group sync.WaitGroup
	bufs := device.AlignedBuffer(64 * 4096)
	for i := range 64 {
		group.Add(1)
		op := &device.Op{Offset: int64(i) * 4096, Bufs: [][]byte{bufs[i*4096 : i*4096+4096]}, Done: func(*device.Op) {
			mu.Lock()
			defer mu.Unlock()
			group.Done()
		}}
		mu.Lock()
		err := d.Submit([]*device.Op{op})
		mu.Unlock()
		require.NoError(t, err)
	}
	all := make(chan struct{})
	go func() { group.Wait(); close(all) }()
	wait(t, all)
}

func concurrent(t *testing.T, d device.Device) {
	ctx, rng := Context(t), RNG(t)
	const writers, region = 8, Size / 8
	var group sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		seed := rng.Uint64()
		group.Add(1)
		go func() {
			defer group.Done()
			errs[w] = churn(ctx, d, rand.New(rand.NewPCG(seed, 1)), int64(w)*region, region)
		}()
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
}

// churn writes and reads at random within its own region and compares with what
// it remembers.
func churn(ctx context.Context, d device.Device, rng *rand.Rand, base int64, size int) error {
	model := make([]byte, size)
	for range 60 {
		pages := 1 + rng.IntN(16)
		var ops []*device.Op
		at := rng.IntN(size/4096 - 4*pages)
		write := rng.IntN(2) == 0
		for range 1 + rng.IntN(4) { // up to four adjacent ops at once
			buf := Random(rng, pages*4096)
			kind := device.Read
			if write {
				kind = device.Write
				copy(model[at*4096:], buf)
			}
			split := 4096 * (1 + rng.IntN(pages))
			bufs := [][]byte{buf[:split]}
			if split < len(buf) {
				bufs = append(bufs, buf[split:])
			}
			ops = append(ops, &device.Op{Kind: kind, Offset: base + int64(at)*4096, Bufs: bufs})
			at += pages
		}
		if err := device.Run(ctx, d, ops...); err != nil {
			return err
		}
		for _, op := range ops {
			off := op.Offset - base
			if got := bytes.Join(op.Bufs, nil); !bytes.Equal(got, model[off:off+int64(len(got))]) {
				return errors.New("read what was never written there")
			}
		}
	}
	return nil
}

func flush(t *testing.T, d device.Device) {
	ctx := Context(t)
	require.NoError(t, device.WriteAt(ctx, d, Random(RNG(t), 4096), 0))
	require.NoError(t, device.Sync(ctx, d))
	require.EqualValues(t, 1, d.Stats().Flushes.Ops)
}

func stats(t *testing.T, d device.Device) {
	ctx := Context(t)
	before := d.Stats()
	buf := Random(RNG(t), 8192)
	var ops []*device.Op
	for i := range 5 {
		ops = append(ops, &device.Op{Kind: device.Write, Offset: int64(i) * 8192, Bufs: [][]byte{buf}})
	}
	require.NoError(t, device.Run(ctx, d, ops...))
	require.NoError(t, device.ReadAt(ctx, d, buf, 0))
	s := d.Stats()
	require.EqualValues(t, 5, s.Writes.Ops-before.Writes.Ops)
	require.EqualValues(t, 5*8192, s.Writes.Bytes-before.Writes.Bytes)
	require.EqualValues(t, 1, s.Reads.Ops-before.Reads.Ops)
	require.EqualValues(t, 8192, s.Reads.Bytes-before.Reads.Bytes)
	require.Zero(t, s.Errors())
	require.Zero(t, s.InFlight)
	require.GreaterOrEqual(t, s.MaxInFlight, int64(5))
	sum := uint64(0)
	for _, n := range s.Writes.Latency {
		sum += n
	}
	require.Equal(t, s.Writes.Ops, sum)
	for _, op := range ops {
		require.GreaterOrEqual(t, op.End, op.Start)
	}
}

func grow(t *testing.T, d device.Device) {
	ctx, rng := Context(t), RNG(t)
	want := Random(rng, 4096)
	require.NoError(t, device.WriteAt(ctx, d, want, Size-4096))
	require.ErrorIs(t, d.Grow(Size-4096), device.ErrInvalid)
	require.ErrorIs(t, d.Grow(Size+512), device.ErrInvalid)
	err := d.Grow(Size + 1<<20)
	if errors.Is(err, errors.ErrUnsupported) {
		require.EqualValues(t, Size, d.Size())
		return
	}
	require.NoError(t, err)
	require.EqualValues(t, Size+1<<20, d.Size())
	got := device.AlignedBuffer(8192)
	require.NoError(t, device.ReadAt(ctx, d, got, Size-4096))
	require.True(t, bytes.Equal(want, got[:4096]))
	require.True(t, bytes.Equal(make([]byte, 4096), got[4096:]))
	require.NoError(t, device.WriteAt(ctx, d, want, Size+1<<20-4096))
}

func endedContext(t *testing.T, d device.Device) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	before := d.Stats().Submits
	err := device.ReadAt(ctx, d, device.AlignedBuffer(4096), 0)
	require.ErrorIs(t, err, context.Canceled)
	var lent *device.InFlightError
	require.False(t, errors.As(err, &lent), "nothing was submitted")
	require.Equal(t, before, d.Stats().Submits)
}

func closed(t *testing.T, d device.Device) {
	ctx := Context(t)
	require.NoError(t, d.Close())
	buf := device.AlignedBuffer(4096)
	err := device.ReadAt(ctx, d, buf, 0)
	require.ErrorIs(t, err, device.ErrClosed)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, device.Sync(ctx, d), device.ErrClosed)
	require.ErrorIs(t, d.Grow(Size+4096), device.ErrClosed)
	require.NoError(t, d.Close(), "a second Close")
}

func closeUnderFire(t *testing.T, d device.Device) {
	const submitters = 4
	var group, inFlight sync.WaitGroup
	started := make(chan struct{}, submitters)
	errs := make(chan error, submitters)
	for range submitters {
		group.Add(1)
		go func() {
			defer group.Done()
			room := make(chan struct{}, 16) // what Close has to wait for stays small
			for i := 0; ; i++ {
				room <- struct{}{}
				inFlight.Add(1)
				op := &device.Op{Kind: device.Write, Offset: int64(i%100) * 4096, Bufs: [][]byte{device.AlignedBuffer(4096)},
					Done: func(*device.Op) { inFlight.Done(); <-room }}
				if err := d.Submit([]*device.Op{op}); err != nil {
					inFlight.Done() // a refused op is never done
					errs <- err
					return
				}
				if i == 10 {
					started <- struct{}{}
				}
			}
		}()
	}
	for range submitters {
		wait(t, started)
	}
	require.NoError(t, d.Close())
	// Close returned nil: nothing is in flight, so neither wait takes long, and a
	// Done called twice would have panicked.
	group.Wait()
	inFlight.Wait()
	close(errs)
	for err := range errs {
		require.ErrorIs(t, err, device.ErrClosed)
	}
	require.Zero(t, d.Stats().InFlight)
}
