//go:build cgo

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Of two who close a store one does.
func TestAStoreIsClosedOnce(t *testing.T) {
	t.Parallel()
	id := last.Add(1)
	stores.Store(id, &opened{})
	_, err := take(id)
	require.NoError(t, err)
	_, err = take(id)
	require.ErrorIs(t, err, skep.Invalid)
}

// A store that is closed says so where something may still write to a destination.
func TestClosingSaysWhatIsNotReleased(t *testing.T) {
	t.Parallel()
	o, over := &opened{}, make(chan struct{})
	close(over)
	_, cancel := context.WithCancel(t.Context())
	id := last.Add(1)
	restorings.Store(id, &restoring{of: o, over: over, cancel: cancel, ses: &clingingSession{c: &clinging{}}})
	require.ErrorIs(t, o.endRestorings(t.Context()), skep.NotReleased)
	_, there := restorings.Load(id)
	require.False(t, there)
	require.NoError(t, o.endRestorings(t.Context()), "nothing is under way")
}

// Of all that goes wrong with closing the code is that memory is not the caller's.
func TestClosingSaysFirstWhatIsNotReleased(t *testing.T) {
	t.Parallel()
	o, over := &opened{Store: failing{}}, make(chan struct{})
	o.life, o.end = context.WithCancel(t.Context())
	close(over)
	_, cancel := context.WithCancel(t.Context())
	id := last.Add(2)
	stores.Store(id, o)
	restorings.Store(id-1, &restoring{of: o, over: over, cancel: cancel, ses: &clingingSession{c: &clinging{}}})
	err := closeStore(id)
	require.ErrorIs(t, err, skep.Failed)
	require.Equal(t, skep.NotReleased, skep.KindOf(err))
}

// failing is a Store that closes with an error.
type failing struct{ skep.UnsupportedStore }

func (failing) Close() error { return &skep.Error{Op: "close", Kind: skep.Failed} }

// Of two who abort a block of parts at once one does, and the other is told that there is no such writer.
func TestAWriterIsAbortedOnce(t *testing.T) {
	t.Parallel()
	for range 2000 {
		w := &aborted{}
		id := last.Add(1)
		writers.Store(id, &writing{w: w})
		var both sync.WaitGroup
		var refused atomic.Int32
		for range 2 {
			both.Go(func() {
				if abort(t.Context(), id) != nil {
					refused.Add(1)
				}
			})
		}
		both.Wait()
		require.Equal(t, int32(1), refused.Load())
		require.Equal(t, int32(1), w.times.Load())
	}
}

// aborted counts how often it was.
type aborted struct {
	skep.BlockWriter
	times atomic.Int32
}

func (a *aborted) Abort(context.Context) error { a.times.Add(1); return nil }

// A load whose time is up says that a drive may write yet, rather than that it is late.
func TestALateLoadSaysWhatIsNotReleased(t *testing.T) {
	t.Parallel()
	o := &opened{Store: lateAndClinging{}, spaces: map[skep.NamespaceID]spaceSpec{1: alone}}
	chain := skep.Chain{Scope: skep.Scope{Namespace: 1}, Keys: make([]skep.Key, 1)}
	err := o.load(t.Context(), chain, inOne([][]byte{make([]byte, 8)}), make([]skep.Kind, 1))
	require.ErrorIs(t, err, skep.Deadline)
	require.Equal(t, 18, int(fail(nil, &err)), "skep.h: the memory is not the caller's")
}

// lateAndClinging is a Store whose sessions end late, with a drive that writes yet.
type lateAndClinging struct{ skep.Store }

type lateSession struct{ clingingSession }

func (lateAndClinging) Restore(context.Context, *skep.RestoreRequest) (skep.Session, error) {
	return &lateSession{clingingSession{c: &clinging{}}}, nil
}

func (*lateSession) Next(context.Context, []skep.Chunk) (int, error) {
	return 0, &skep.Error{Op: "next", Kind: skep.Deadline}
}

// What is opened while its store is being closed is refused: nobody would end it.
func TestNothingIsKeptOfAStoreThatIsBeingClosed(t *testing.T) {
	t.Parallel()
	o := &opened{Store: &followed{}}
	o.life, o.end = context.WithCancel(t.Context())
	id, err := o.follow(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	o.keepNoMore()
	o.endEvents()
	_, err = eventsOf(id)
	require.ErrorIs(t, err, skep.Invalid)

	late := &followed{}
	o.Store = late
	_, err = o.follow(t.Context(), skep.Cursor{}, false)
	require.ErrorIs(t, err, skep.Closed)
	require.True(t, late.closed, "its stream is closed")
	_, _, err = o.newQueue(1)
	require.ErrorIs(t, err, skep.Closed)
	for _, of := range []*sync.Map{&streams, &queues} {
		of.Range(func(_, x any) bool {
			switch x := x.(type) {
			case *events:
				require.NotSame(t, o, x.of)
			case *queue:
				require.NotSame(t, o, x.of)
			}
			return true
		})
	}
}

// followed is a store that has a stream of events.
type followed struct {
	skep.Store
	skep.EventStream
	closed bool
}

func (f *followed) Events(context.Context, skep.Cursor, bool) (skep.EventStream, error) {
	return f, nil
}
func (f *followed) Close() error { f.closed = true; return nil }

// An operation is as long as it says, and nothing behind it is read: what an older one does not have is 0.
func TestAnOperationIsAsLongAsItSays(t *testing.T) {
	t.Parallel()
	words := make([]uint64, 24)
	for i := range words {
		words[i] = 1 << 33
	}
	at := unsafe.Pointer(&words[0])
	for size, offset := range map[uint32]int64{120: 0, 184: 1 << 33} {
		*(*uint32)(at) = size
		c, err := opAt(at)
		require.NoError(t, err)
		require.Equal(t, size, uint32(c.size))
		require.Equal(t, int64(1<<33), int64(c.timeout_ms))
		require.Equal(t, offset, int64(c.offset))
	}
	for _, size := range []uint32{0, 112, 119, 121, 128, 176, 192, 1 << 31} {
		*(*uint32)(at) = size
		_, err := opAt(at)
		require.ErrorIs(t, err, skep.Invalid)
		require.ErrorContains(t, err, fmt.Sprintf("size of an operation is %d, must be 184, or 120", size))
	}
}

// A restore under way whose session fails to close is not ended, whatever the session says, and closing its store says
// that memory may be written to yet.
func TestClosingSaysThatARestoreDidNotEnd(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := &failingToClose{Store: e.Store, times: 2}
	e.Store = w
	r, err := e.begin(nil)
	require.NoError(t, err)
	_, err = r.number()
	require.NoError(t, err)
	err = r.end(t.Context())
	require.ErrorIs(t, err, skep.Failed)
	require.Equal(t, skep.NotReleased, skep.KindOf(err))
	require.ErrorIs(t, e.endRestorings(t.Context()), skep.NotReleased)
	require.NoError(t, r.end(t.Context()))
	e.Store = w.Store
}
