package gputest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

// Up, across to a peer, down: the bytes are the same.
func testCopies(t *testing.T, open Open) {
	m := open(t, Config{Seed: 1})
	a, b := m.Devices[0], m.Devices[1]
	require.NotEmpty(t, a.Name())
	src, dst := alloc(t, a, 1<<20), alloc(t, b, 1<<20)
	require.EqualValues(t, 2<<20, src.Size(), "whole granules")
	s := stream(t, a)
	require.NoError(t, a.EnablePeer(b))
	require.NoError(t, a.EnablePeer(b), "again")
	for _, n := range []int{1, 4096, 100_000, 1 << 20} {
		want, got := pattern(n, byte(n)), make([]byte, n)
		s.CopyIn(at(src, 0), want)
		s.Copy(at(dst, 0), at(src, 0), int64(n))
		s.CopyOut(got, at(dst, 0))
		if m.Deferred {
			require.Equal(t, make([]byte, n), got, "nothing happens before somebody waits")
		}
		require.NoError(t, s.Sync(Soon(t)))
		require.Equal(t, want, got)
	}
	s.CopyIn(at(src, 7), nil)
	s.Compute(time.Microsecond, nil)
	require.NoError(t, s.Sync(Soon(t)), "nothing, and a kernel")
	require.NoError(t, s.Close())
	require.NoError(t, src.Free())
	require.NoError(t, dst.Free())
	m.close(t)
	_, err := a.Alloc(1)
	require.ErrorIs(t, err, skep.Closed)
	_, err = a.NewStream()
	require.ErrorIs(t, err, skep.Closed)
	_, err = a.NewCounter()
	require.ErrorIs(t, err, skep.Closed)
}

// A wait for a counter that is to be raised later waits; without it a reader sees old bytes
// under some seed.
func testCounters(t *testing.T, open Open) {
	stale := 0
	seeds := uint64(30)
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		for _, wait := range []bool{true, false} {
			m := open(t, Config{Seed: seed})
			d := m.Devices[0]
			mem := alloc(t, d, 4096)
			up, down := stream(t, d), stream(t, d)
			c := newCounter(t, d)
			require.Zero(t, c.Value())
			want, got := pattern(4096, 1), make([]byte, 4096)
			if wait {
				down.Wait(c, 5) // queued before anybody signals
			}
			down.CopyOut(got, at(mem, 0))
			up.CopyIn(at(mem, 0), want)
			up.Signal(c, 3)
			up.Signal(c, 5)
			require.NoError(t, c.Await(Soon(t), 5))
			require.NoError(t, down.Sync(Soon(t)))
			require.NoError(t, up.Sync(Soon(t)))
			require.EqualValues(t, 5, c.Value())
			require.NoError(t, c.Close())
			if wait {
				require.Equal(t, want, got)
			} else if !bytes.Equal(want, got) {
				stale++
			}
			m.close(t)
		}
	}
	if open(t, Config{}).Deferred {
		require.Positive(t, stale, "a missing wait must show")
	}
}

// Every wait has an end, and work that was waited for in vain goes on.
func testDeadlines(t *testing.T, open Open) {
	m := open(t, Config{Seed: 1})
	d := m.Devices[0]
	s, c := stream(t, d), newCounter(t, d)
	s.Wait(c, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Sync(ctx), skep.Deadline)
	require.ErrorIs(t, c.Await(ctx, 1), skep.Deadline)
	require.ErrorIs(t, s.Close(), skep.NotReleased)
	require.ErrorIs(t, d.Close(), skep.NotReleased)
	other := stream(t, d)
	other.Signal(c, 1)
	require.NoError(t, s.Sync(Soon(t)))
	m.close(t)
}

// What a driver calls an illegal address stays as the device's error.
func testMistakes(t *testing.T, open Open) {
	buf := make([]byte, 4096)
	for _, tt := range []struct {
		name  string
		apart bool // needs two GPUs
		do    func(s gpu.Stream, mine, theirs gpu.Memory)
	}{
		{"past the end", false, func(s gpu.Stream, mine, _ gpu.Memory) { s.CopyOut(buf, at(mine, 1)) }},
		{"before the start", false, func(s gpu.Stream, mine, _ gpu.Memory) { s.CopyIn(at(mine, -1), buf) }},
		{"past all numbers", false, func(s gpu.Stream, mine, _ gpu.Memory) { s.CopyIn(at(mine, 1<<63-1), buf) }},
		{"less than nothing", false, func(s gpu.Stream, mine, _ gpu.Memory) { s.Copy(at(mine, 1), at(mine, 0), -1) }},
		{"no memory", false, func(s gpu.Stream, _, _ gpu.Memory) { s.CopyIn(gpu.Place{}, buf) }},
		{"freed memory", false, func(s gpu.Stream, mine, _ gpu.Memory) {
			_ = mine.Free()
			s.CopyIn(at(mine, 0), buf)
		}},
		{"a peer that was not enabled", true, func(s gpu.Stream, mine, theirs gpu.Memory) { s.Copy(at(mine, 0), at(theirs, 0), 64) }},
		{"no counter", false, func(s gpu.Stream, _, _ gpu.Memory) { s.Wait(nil, 1) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := open(t, Config{Seed: 3})
			if tt.apart && !m.Apart {
				t.Skip("one GPU")
			}
			d := m.Devices[0]
			mine, theirs := alloc(t, d, 4096), alloc(t, m.Devices[1], 4096)
			s, c := stream(t, d), newCounter(t, d)
			tt.do(s, mine, theirs)
			require.ErrorIs(t, s.Sync(Soon(t)), skep.DeviceFailed)
			_, err := d.Alloc(4096)
			require.ErrorIs(t, err, skep.DeviceFailed, "it stays")
			_, err = d.NewStream()
			require.ErrorIs(t, err, skep.DeviceFailed)
			require.ErrorIs(t, c.Await(Soon(t), 1), skep.DeviceFailed)
			require.NoError(t, s.Close())
			m.close(t)
		})
	}
}

func testMemory(t *testing.T, open Open) {
	m := open(t, Config{})
	d := m.Devices[0]
	for _, n := range []int64{0, -1, 1 << 60} {
		_, err := d.Alloc(n)
		require.ErrorIs(t, err, skep.Invalid, "%d bytes", n)
	}
	mem := alloc(t, d, 2<<20+1)
	require.EqualValues(t, 4<<20, mem.Size())
	require.NoError(t, mem.Free())
	require.ErrorIs(t, mem.Free(), skep.Invalid, "twice")
	if m.Faults != nil {
		m.Faults.FailAlloc(0, 2)
		first := alloc(t, d, 1)
		_, err := d.Alloc(1)
		require.ErrorIs(t, err, skep.NoMemory)
		require.NoError(t, alloc(t, d, 1).Free(), "it does not stay")
		require.NoError(t, first.Free())
	}
	_ = alloc(t, d, 1) // Close gives it back
	m.close(t)
}

// Pinned memory of the device's, and memory of others that was pinned.
func testPinned(t *testing.T, open Open) {
	m := open(t, Config{Seed: 5})
	d, ok := m.Devices[0].(gpu.Pinner)
	if !ok {
		t.Skip("no pinned memory: all is alike here")
	}
	_, err := d.AllocHost(0)
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorIs(t, d.Pin(nil), skep.Invalid)
	host, err := d.AllocHost(1 << 20)
	require.NoError(t, err)
	other, unmap := mapping(t, 1<<20)
	defer unmap()
	require.NoError(t, d.Pin(other))
	mem, s := alloc(t, d, 1<<20), stream(t, d)
	want := pattern(1<<20, 9)
	copy(host, want)
	s.CopyIn(at(mem, 0), host)
	s.CopyOut(other[5:100_000], at(mem, 5))
	s.CopyOut(host[:0], at(mem, 0))
	require.NoError(t, s.Sync(Soon(t)))
	require.Equal(t, want[5:100_000], other[5:100_000])
	require.ErrorIs(t, d.Unpin(host[1:]), skep.Invalid, "not whole")
	require.NoError(t, d.Unpin(host))
	require.ErrorIs(t, d.Unpin(host), skep.Invalid, "twice")
	require.NoError(t, d.Unpin(other))
	m.close(t)
}

// Many small copies at once, and none.
func testBatches(t *testing.T, open Open) {
	m := open(t, Config{Seed: 7})
	d := m.Devices[0]
	s, ok := stream(t, d).(gpu.Batcher)
	if !ok {
		t.Skip("no batches")
	}
	const blocks, size = 64, 512
	from, to := alloc(t, d, blocks*size), alloc(t, d, blocks*size)
	want, got := pattern(blocks*size, 2), make([]byte, blocks*size)
	s.CopyIn(at(from, 0), want)
	var batch []gpu.Transfer
	for i := range int64(blocks) { // backwards, then once more forwards
		batch = append(batch, gpu.Transfer{To: at(to, (blocks-1-i)*size), From: at(from, i*size), N: size})
	}
	s.CopyAll(nil)
	s.CopyAll(batch)
	s.CopyAll(batch[:1])
	s.CopyOut(got, at(to, 0))
	require.NoError(t, s.Sync(Soon(t)))
	for i := range blocks {
		j := blocks - 1 - i
		require.Equal(t, want[i*size:(i+1)*size], got[j*size:(j+1)*size], "block %d", i)
	}
	s.CopyAll([]gpu.Transfer{batch[0], {To: at(to, 1), From: at(from, 0), N: blocks * size}})
	require.ErrorIs(t, s.Sync(Soon(t)), skep.DeviceFailed, "one of them is out of bounds")
	m.close(t)
}

// Memory that was made to be shared is the same memory where it was imported, also for a
// device that reaches it over a link, and stays when its maker has freed it.
func testShared(t *testing.T, open Open) {
	m := open(t, Config{Seed: 11})
	lender, ok := m.Devices[1].(gpu.Sharer)
	if !ok {
		t.Skip("no shared memory")
	}
	own, f, err := lender.AllocShared(3 << 20)
	require.NoError(t, err)
	defer f.Close()
	require.EqualValues(t, 4<<20, own.Size())
	d := m.Devices[0]
	require.NoError(t, d.EnablePeer(lender))
	lent, err := lender.Import(f, 3<<20)
	require.NoError(t, err)
	again, g, err := lender.AllocShared(1) // after the peer was enabled
	require.NoError(t, err)
	defer g.Close()

	s, theirs := stream(t, d), stream(t, lender)
	want, got := pattern(1<<20, 3), make([]byte, 1<<20)
	s.CopyIn(at(lent, 2<<20), want)
	s.CopyIn(at(again, 0), want[:1])
	require.NoError(t, s.Sync(Soon(t)))
	theirs.CopyOut(got, at(own, 2<<20))
	require.NoError(t, theirs.Sync(Soon(t)))
	require.Equal(t, want, got)
	require.NoError(t, own.Free())
	s.CopyOut(got, at(lent, 2<<20))
	require.NoError(t, s.Sync(Soon(t)), "it lives while anybody has it")

	_, err = lender.Import(f, 5<<20)
	require.ErrorIs(t, err, skep.Invalid, "more than there is")
	plain := file(t)
	_, err = lender.Import(plain, 1)
	require.ErrorIs(t, err, skep.Invalid, "no GPU memory")
	require.NoError(t, lent.Free())
	require.NoError(t, again.Free())
	m.close(t)
}

// Plain memory by its name.
func testHandles(t *testing.T, open Open) {
	m := open(t, Config{Seed: 13})
	d, ok := m.Devices[0].(gpu.Handler)
	if !ok {
		t.Skip("no handles")
	}
	if !m.Devices[0].Simulated() {
		t.Skip("a driver opens no handle in the process that made it")
	}
	own := alloc(t, d, 1<<20)
	h, err := d.Handle(own)
	require.NoError(t, err)
	lent, err := d.Open(h, 1<<20)
	require.NoError(t, err)
	s := stream(t, d)
	want, got := pattern(4096, 3), make([]byte, 4096)
	s.CopyIn(at(lent, 99), want)
	s.CopyOut(got, at(own, 99))
	require.NoError(t, s.Sync(Soon(t)))
	require.Equal(t, want, got)
	_, err = d.Handle(lent)
	require.ErrorIs(t, err, skep.Unsupported)
	_, err = d.Open(gpu.Handle{}, 1)
	require.ErrorIs(t, err, skep.Invalid)
	require.NoError(t, lent.Free())
	m.close(t)
}
