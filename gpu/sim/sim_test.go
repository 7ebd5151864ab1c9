package sim

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func world(t testing.TB, devices int, seed uint64) *World {
	o := H20()
	o.Devices, o.MemoryBytes, o.Seed = devices, 64<<20, seed
	w, err := New(o)
	require.NoError(t, err)
	return w
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*31 + seed
	}
	return b
}

// Copies on one link share it; those on different links do not.
func TestLinks(t *testing.T) {
	t.Parallel()
	o := Options{Devices: 3, MemoryBytes: 64 << 20, HBM: Link{1e12, 0}, Peer: Link{1e9, time.Millisecond}, Host: Link{1e8, 0}}
	w := must[*World](t)(New(o))
	run := func(queue func(m []gpu.Memory, s []gpu.Stream)) time.Duration {
		var m []gpu.Memory
		var s []gpu.Stream
		for i := range 3 {
			d := w.Device(i)
			for j := range 3 {
				require.NoError(t, d.EnablePeer(w.Device(j)))
			}
			m = append(m, must[gpu.Memory](t)(d.Alloc(2<<20)))
			s = append(s, must[gpu.Stream](t)(d.NewStream()))
		}
		start := w.Now()
		queue(m, s)
		for i := range 3 {
			require.NoError(t, s[i].Sync(soon(t)))
			require.NoError(t, s[i].Close())
		}
		took := w.Now() - start
		for i := range 3 {
			require.NoError(t, m[i].Free())
		}
		return took
	}
	place := func(m gpu.Memory) gpu.Place { return gpu.Place{Memory: m} }
	host := make([]byte, 1e6)
	require.InDelta(t, 0.002, run(func(m []gpu.Memory, s []gpu.Stream) { s[0].Copy(place(m[1]), place(m[0]), 1e6) }).Seconds(), 1e-6)
	require.InDelta(t, 0.002, run(func(m []gpu.Memory, s []gpu.Stream) {
		s[0].Copy(place(m[1]), place(m[0]), 1e6)
		s[1].Copy(place(m[2]), place(m[1]), 1e6)
	}).Seconds(), 1e-6, "two links")
	require.InDelta(t, 0.003, run(func(m []gpu.Memory, s []gpu.Stream) {
		s[0].Copy(place(m[1]), place(m[0]), 1e6)
		s[2].Copy(place(m[1]), place(m[0]), 1e6)
	}).Seconds(), 1e-6, "one link, shared")
	require.InDelta(t, 0.03, run(func(m []gpu.Memory, s []gpu.Stream) {
		for i := range 3 {
			s[i].CopyIn(place(m[i]), host)
		}
	}).Seconds(), 1e-6, "one switch for all")
	require.InDelta(t, 0.01, run(func(m []gpu.Memory, s []gpu.Stream) {
		s[0].CopyIn(place(m[0]), host)
		s[1].CopyOut(make([]byte, 1e6), place(m[1]))
	}).Seconds(), 1e-6, "both directions")
	require.InDelta(t, 0.005, run(func(_ []gpu.Memory, s []gpu.Stream) {
		s[0].Compute(5*time.Millisecond, nil)
		s[1].Compute(3*time.Millisecond, nil)
	}).Seconds(), 1e-9)
}

// What becomes wrong after it was queued is the device's error too.
func TestFaults(t *testing.T) {
	t.Parallel()
	buf := make([]byte, 4096)
	for _, tt := range []struct {
		name string
		do   func(w *World, s gpu.Stream, mine, theirs gpu.Memory)
		kind skep.Kind
	}{
		{"freed memory", func(_ *World, s gpu.Stream, mine, _ gpu.Memory) {
			s.CopyIn(gpu.Place{Memory: mine}, buf)
			_ = mine.Free()
		}, skep.DeviceFailed},
		{"revoked", func(w *World, s gpu.Stream, mine, theirs gpu.Memory) {
			_ = w.Device(0).EnablePeer(w.Device(1))
			s.Copy(gpu.Place{Memory: mine}, gpu.Place{Memory: theirs}, 4096)
			w.Device(1).Revoke(theirs, 0)
		}, skep.DeviceFailed},
		{"device gone", func(w *World, s gpu.Stream, mine, _ gpu.Memory) {
			s.CopyIn(gpu.Place{Memory: mine}, buf)
			w.Device(0).Fail(&skep.Error{Op: "GPU", Kind: skep.DeviceFailed, Field: "device", Value: "gone"})
		}, skep.DeviceFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := world(t, 2, 3)
			d := w.Device(0)
			mine, theirs := must[gpu.Memory](t)(d.Alloc(4096)), must[gpu.Memory](t)(w.Device(1).Alloc(4096))
			s := must[gpu.Stream](t)(d.NewStream())
			tt.do(w, s, mine, theirs)
			require.ErrorIs(t, s.Sync(soon(t)), tt.kind)
			_, err := d.Alloc(4096)
			require.ErrorIs(t, err, tt.kind, "sticky")
			require.NoError(t, d.Close())
		})
	}
}

func TestMemoryIsCountedAndPoisoned(t *testing.T) {
	t.Parallel()
	w := world(t, 1, 1)
	d := w.Device(0)
	d.FailAlloc(2)
	m := must[gpu.Memory](t)(d.Alloc(4096))
	require.Equal(t, bytes.Repeat([]byte{poison}, 4096), Bytes(gpu.Place{Memory: m}, 4096))
	_, err := d.Alloc(4096)
	require.ErrorIs(t, err, skep.NoMemory, "the fault")
	_, err = d.Alloc(63 << 20)
	require.ErrorIs(t, err, skep.NoMemory, "2 MiB are taken")
	_, err = d.Alloc(65 << 20)
	require.ErrorIs(t, err, skep.Invalid)
	copy(Bytes(gpu.Place{Memory: m}, 4096), pattern(4096, 1))
	require.NoError(t, m.Free())
	require.ErrorIs(t, m.Free(), skep.Invalid)
	require.Equal(t, byte(poison), m.(*memory).data[0])
	_, err = d.Alloc(64 << 20)
	require.NoError(t, err)
}

func TestHangsAndFlips(t *testing.T) {
	t.Parallel()
	w := world(t, 1, 1)
	d := w.Device(0)
	m := must[gpu.Memory](t)(d.Alloc(4096))
	s := must[gpu.Stream](t)(d.NewStream())
	d.FlipBit()
	got := make([]byte, 4096)
	s.CopyIn(gpu.Place{Memory: m}, pattern(4096, 1))
	s.CopyOut(got, gpu.Place{Memory: m})
	require.NoError(t, s.Sync(soon(t)))
	require.NotEqual(t, pattern(4096, 1), got)

	Hang(s)
	s.CopyOut(got, gpu.Place{Memory: m})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Sync(ctx), skep.Deadline)
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"no devices": func(o *Options) { o.Devices = 0 }, "too many": func(o *Options) { o.Devices = 65 },
		"no memory": func(o *Options) { o.MemoryBytes = 1 }, "no bandwidth": func(o *Options) { o.Peer.BytesPerSecond = 0 },
		"latency": func(o *Options) { o.Host.Latency = -1 },
	} {
		o := H20()
		change(&o)
		_, err := New(o)
		require.ErrorIs(t, err, skep.Invalid, name)
		var e *skep.Error
		require.True(t, errors.As(err, &e) && e.Field != "" && e.Limit != nil)
	}
}
