package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/layout/elastic"
	"github.com/skepkv/skep/store/memstore"
)

// tardy is a device some of whose streams are not done in time. It knows what memory it gave.
type tardy struct {
	gpu.Device
	streams  []*tardyStream
	memories []gpu.Memory
	poor     bool // it has no room for a counter
}

type tardyStream struct {
	gpu.Stream
	late atomic.Bool // its last copy is under way
}

func (d *tardy) NewStream() (gpu.Stream, error) {
	s, err := d.Device.NewStream()
	d.streams = append(d.streams, &tardyStream{Stream: s})
	return d.streams[len(d.streams)-1], err
}

func (d *tardy) NewCounter() (gpu.Counter, error) {
	if d.poor {
		return nil, &skep.Error{Op: "new counter", Kind: skep.NoMemory}
	}
	return d.Device.NewCounter()
}

func (d *tardy) AllocHost(n int64) ([]byte, error) { return d.Device.(gpu.Pinner).AllocHost(n) }

func (d *tardy) Pin(b []byte) error { return d.Device.(gpu.Pinner).Pin(b) }

func (d *tardy) Unpin(b []byte) error { return d.Device.(gpu.Pinner).Unpin(b) }

func (d *tardy) Alloc(n int64) (gpu.Memory, error) {
	m, err := d.Device.Alloc(n)
	d.memories = append(d.memories, m)
	return m, err
}

func (s *tardyStream) Sync(ctx context.Context) error {
	if s.late.Load() {
		return &skep.Error{Op: "sync", Kind: skep.Deadline}
	}
	return s.Stream.Sync(ctx)
}

func (s *tardyStream) Close() error {
	if s.late.Load() {
		return &skep.Error{Op: "close stream", Kind: skep.NotReleased}
	}
	return s.Stream.Close()
}

// The streams of a Store of two lenders.
const (
	firstLender  = 1
	secondLender = 2
)

func tardyFront(t *testing.T) (*gpu.Store, *tardy, skep.Scope, []skep.Key) {
	w := world(t)
	d := &tardy{Device: w.Device(0)}
	unit := elastic.Unit{Bytes: 64 << 10, LenderBlock: 48 << 10, BorrowerBlock: 32 << 10, Lender: 1, Borrower: 2}
	lent := func(i int) gpu.Lender { return gpu.Lender{Device: w.Device(i), Unit: unit, Units: 5, Keep: 1} }
	s, err := gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: d, Local: 3, BlockBytes: 32 << 10, Layers: 4,
		DirectBytes: 32 << 10, Timeout: time.Minute, Lenders: []gpu.Lender{lent(1), lent(2)}})
	require.NoError(t, err)
	sc, keys := chains(t, s, 6)
	return s, d, sc, keys
}

// A lender's memory is also read by the stream of another to which its blocks are moved. While that one is not done the
// lender does not get its memory back; once it is, it does, and the prompt that had blocks there ends in order.
func TestALenderWaitsForCopiesToAnother(t *testing.T) {
	t.Parallel()
	s, d, sc, keys := tardyFront(t)
	defer func() { require.NoError(t, s.Close()) }()
	p, err := s.Prefill(t.Context(), &gpu.PrefillRequest{Scope: sc, Keys: keys})
	require.NoError(t, err)
	require.NotZero(t, p.Streamed())
	d.streams[secondLender].late.Store(true)
	require.Error(t, s.Reclaim(0, 4), "a copy out of it is under way")
	require.Error(t, s.Detach(0), "and is yet")
	d.streams[secondLender].late.Store(false)
	require.NoError(t, s.Detach(0))
	require.NoError(t, p.Close(t.Context()))
}

// Memory of the Store's own stays while any stream may write to it.
func TestOwnMemoryStaysWhileACopyIsUnderWay(t *testing.T) {
	t.Parallel()
	s, d, sc, keys := tardyFront(t)
	load(t, s, sc, keys[:2])
	d.streams[firstLender].late.Store(true)
	load(t, s, sc, keys) // moves blocks to the lender, which fails
	require.Error(t, s.Usage().Failed)
	require.NoError(t, s.Close())
	for _, m := range d.memories {
		require.NoError(t, m.Free(), "it was not freed")
	}
}

// Memory of the Store's own stays while a prompt, or a model's layers, are in it.
func TestOwnMemoryStaysWhileAnEngineHasIt(t *testing.T) {
	t.Parallel()
	s, d, sc, keys := tardyFront(t)
	p, err := s.Prefill(t.Context(), &gpu.PrefillRequest{Scope: sc, Keys: keys})
	require.NoError(t, err)
	require.ErrorIs(t, s.Close(), skep.NotReleased)
	require.NoError(t, p.Close(t.Context()))
	require.NoError(t, s.Close(), "it is closed again")
	for _, m := range d.memories {
		require.ErrorIs(t, m.Free(), skep.Invalid, "it was freed")
	}
}

// unsure is a Store that cannot say whether what it restores to is let go of, and has something else to say, too.
type unsure struct {
	skep.Store
	begins bool // its sessions begin
	on     atomic.Bool
}

type unsureSession struct {
	skep.Session
	of *unsure
}

var errUnsure = errors.Join(
	&skep.Error{Op: "restore", Kind: skep.Unavailable}, &skep.Error{Op: "restore", Kind: skep.NotReleased})

func (u *unsure) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	if u.on.Load() && !u.begins {
		return nil, errUnsure
	}
	ses, err := u.Store.Restore(ctx, r)
	return &unsureSession{ses, u}, err
}

func (s *unsureSession) Close(ctx context.Context) error {
	if err := s.Session.Close(ctx); !s.of.on.Load() {
		return err
	}
	return errUnsure
}

// Pinned memory that something may still write to is not lent again, whatever else went wrong with it.
func TestPinnedMemoryThatMayBeWrittenIsKept(t *testing.T) {
	t.Parallel()
	for _, begins := range []bool{false, true} {
		for name, restore := range map[string]func(*testing.T, *gpu.Store, gpu.Stream, skep.Scope, []skep.Key){
			"a session": func(t *testing.T, s *gpu.Store, _ gpu.Stream, sc skep.Scope, keys []skep.Key) {
				ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
				if err == nil {
					err = ses.Close(t.Context())
				}
				require.ErrorIs(t, err, skep.NotReleased)
			},
			"to GPU memory": func(t *testing.T, s *gpu.Store, on gpu.Stream, sc skep.Scope, keys []skep.Key) {
				none := func(dst []gpu.Run, _ int) ([]gpu.Run, error) { return dst, nil }
				_, err := s.RestoreTo(t.Context(), &gpu.Direct{Scope: sc, Keys: keys, On: on, Runs: none})
				require.ErrorIs(t, err, skep.NotReleased)
			},
		} {
			t.Run(name, func(t *testing.T) {
				u := &unsure{Store: memstore.New(memstore.Options{}), begins: begins}
				w := world(t)
				s := frontIn(t, w, u)
				defer func() { require.NoError(t, s.Close()) }()
				sc, keys := chains(t, s, 2)
				on, err := w.Device(0).NewStream()
				require.NoError(t, err)
				u.on.Store(true)
				restore(t, s, on, sc, keys)
				require.NotZero(t, s.Usage().Landing)
				u.on.Store(false)
				require.NoError(t, on.Sync(t.Context()))
				require.NoError(t, on.Close())
			})
		}
	}
}

// A session behind that did not let go is closed again until it does: then the memory it wrote to is lent again.
func TestMemoryOfASessionThatLetsGoLateIsLentAgain(t *testing.T) {
	t.Parallel()
	none := func(dst []gpu.Run, _ int) ([]gpu.Run, error) { return dst, nil }
	for name, restore := range map[string]func(*gpu.Store, gpu.Stream, skep.Scope, []skep.Key) error{
		"to GPU memory": func(s *gpu.Store, on gpu.Stream, sc skep.Scope, keys []skep.Key) error {
			_, err := s.RestoreTo(t.Context(), &gpu.Direct{Scope: sc, Keys: keys, On: on, Runs: none})
			return err
		},
		"a prefill": func(s *gpu.Store, _ gpu.Stream, sc skep.Scope, keys []skep.Key) error {
			_, err := s.Prefill(t.Context(), &gpu.PrefillRequest{Scope: sc, Keys: keys, History: len(keys)})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unsure{Store: memstore.New(memstore.Options{}), begins: true}
			w := world(t)
			unit := elastic.Unit{Bytes: 64 << 10, LenderBlock: 48 << 10, BorrowerBlock: 32 << 10, Lender: 1, Borrower: 2}
			s, err := gpu.New(u, gpu.Options{Device: w.Device(0), Local: 6, BlockBytes: 32 << 10, Layers: 4,
				PinnedBytes: 1 << 20,
				Timeout:     time.Minute, Lenders: []gpu.Lender{{Device: w.Device(1), Unit: unit, Units: 5, Keep: 1}}})
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			sc, keys := chains(t, s, 2)
			on, err := w.Device(0).NewStream()
			require.NoError(t, err)
			u.on.Store(true)
			require.ErrorIs(t, restore(s, on, sc, keys), skep.NotReleased)
			require.NoError(t, on.Sync(t.Context()))
			s.OnWay()
			require.NotZero(t, s.Usage().Landing, "the stream is past it, the session is not")
			u.on.Store(false)
			require.Eventually(t, func() bool { return s.OnWay() == 0 && s.Usage().Landing == 0 }, time.Minute, time.Millisecond)
			require.NoError(t, on.Close())
		})
	}
}

// A restore to GPU memory may have a block on its way, of which no stream was told, when the Store is closed: the
// memory it passes through stays until it has, and its stream is past it.
func TestOwnMemoryStaysWhileABlockPassesThrough(t *testing.T) {
	t.Parallel()
	w := world(t)
	d := &tardy{Device: w.Device(0)}
	s, err := gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: d, Local: 3, BlockBytes: 32 << 10,
		DirectBytes: 32 << 10, Timeout: 500 * time.Millisecond})
	require.NoError(t, err)
	sc, keys := chains(t, s, 1)
	mem := make([]byte, 32<<10)
	dest := skep.Destination{Memory: mem}
	ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: dest}}})
	require.NoError(t, err)
	drainAll(t, ses)
	require.NoError(t, ses.Close(t.Context()))
	to, err := w.Device(0).Alloc(32 << 10)
	require.NoError(t, err)
	on, err := w.Device(0).NewStream()
	require.NoError(t, err)
	runs := func(dst []gpu.Run, _ int) ([]gpu.Run, error) {
		require.ErrorIs(t, s.Close(), skep.NotReleased)
		return append(dst, gpu.Run{To: gpu.Place{Memory: to}, Len: 32 << 10}), nil
	}
	n, err := s.RestoreTo(t.Context(), &gpu.Direct{Scope: sc, Keys: keys, On: on, Runs: runs})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, on.Sync(t.Context()))
	got := make([]byte, 32<<10)
	on.CopyOut(got, gpu.Place{Memory: to})
	require.NoError(t, on.Sync(t.Context()))
	require.True(t, bytes.Equal(mem, got))
	require.NoError(t, s.Close(), "it is closed again")
	for _, m := range d.memories {
		require.ErrorIs(t, m.Free(), skep.Invalid, "it was freed")
	}
}

// Memory that a stream is past is there for the next restore.
func TestMemoryAStreamIsPastIsLentAgain(t *testing.T) {
	t.Parallel()
	w := world(t)
	s, err := gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: w.Device(0), BlockBytes: 32 << 10,
		PinnedBytes: 64 << 10, Timeout: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 2)
	on, err := w.Device(0).NewStream()
	require.NoError(t, err)
	none := func(dst []gpu.Run, _ int) ([]gpu.Run, error) { return dst, nil }
	for range 3 {
		n, err := s.RestoreTo(t.Context(), &gpu.Direct{Scope: sc, Keys: keys, On: on, Runs: none})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.NoError(t, on.Sync(t.Context()))
	}
	require.Zero(t, s.Usage().Unpinned)
	require.NoError(t, on.Close())
}

// Where nobody could know when a stream is past it, nothing is put on its way.
func TestWithoutACounterNoStreamIsToldOfAnything(t *testing.T) {
	t.Parallel()
	w := world(t)
	d := &tardy{Device: w.Device(0)}
	s, err := gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: d, BlockBytes: 32 << 10,
		PinnedBytes: 64 << 10, Timeout: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 2)
	on, err := w.Device(0).NewStream()
	require.NoError(t, err)
	told := 0
	runs := func(dst []gpu.Run, _ int) ([]gpu.Run, error) { told++; return dst, nil }
	d.poor = true
	_, err = s.RestoreTo(t.Context(), &gpu.Direct{Scope: sc, Keys: keys, On: on, Runs: runs})
	require.ErrorIs(t, err, skep.NoMemory)
	require.Zero(t, told)
	require.Zero(t, s.Usage().Landing)
	require.Zero(t, s.OnWay())
	require.NoError(t, on.Close())
}
