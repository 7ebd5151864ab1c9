package gpu_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/store/memstore"
)

// reluctant is a Store whose sessions let go with the close after so many.
type reluctant struct {
	skep.Store
	refusals atomic.Int32
	closes   atomic.Int32
}

type reluctantSession struct {
	skep.Session
	of *reluctant
}

func (s *reluctant) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	ses, err := s.Store.Restore(ctx, r)
	return &reluctantSession{ses, s}, err
}

func (s *reluctantSession) Close(ctx context.Context) error {
	err := s.Session.Close(ctx)
	s.of.closes.Add(1)
	if s.of.refusals.Add(-1) >= 0 {
		return &skep.Error{Op: "close", Kind: skep.NotReleased}
	}
	return err
}

// reluctantFront has pinned memory that a reluctant Store restores to, and an engine's stream.
func reluctantFront(t *testing.T, refusals int32) (*reluctant, *gpu.Store, gpu.Stream) {
	b := &reluctant{Store: memstore.New(memstore.Options{})}
	b.refusals.Store(refusals)
	w := world(t)
	s, err := gpu.New(b, gpu.Options{Device: w.Device(0), BlockBytes: 32 << 10, PinnedBytes: 64 << 10,
		Timeout: 200 * time.Millisecond})
	require.NoError(t, err)
	on, err := w.Device(0).NewStream()
	require.NoError(t, err)
	return b, s, on
}

// A session behind that does not let go at once, of a restore during which the Store is closed, is closed once more, and
// the memory it wrote to is not lost.
func TestASessionThatComesAfterTheEndIsClosedOnceMore(t *testing.T) {
	t.Parallel()
	b, s, on := reluctantFront(t, 1)
	sc, keys := chains(t, s, 1)
	runs := func(dst []gpu.Run, _ int) ([]gpu.Run, error) {
		require.ErrorIs(t, s.Close(), skep.NotReleased, "a block is on its way")
		return dst, nil
	}
	_, err := s.RestoreTo(t.Context(), &gpu.Direct{Scope: sc, Keys: keys, On: on, Runs: runs})
	require.ErrorIs(t, err, skep.NotReleased)
	require.EqualValues(t, 2, b.closes.Load())
	require.NoError(t, on.Sync(t.Context()))
	require.NoError(t, on.Close())
	require.NoError(t, s.Close(), "it is closed again")
	require.Zero(t, s.Usage().Landing)
}

// Closing a Store waits for a session behind that hangs, once more and no longer, and leaves the memory that it may
// write to.
func TestCloseBesideASessionThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, on := reluctantFront(t, 1<<30)
		sc, keys := chains(t, s, 1)
		none := func(dst []gpu.Run, _ int) ([]gpu.Run, error) { return dst, nil }
		_, err := s.RestoreTo(t.Context(), &gpu.Direct{Scope: sc, Keys: keys, On: on, Runs: none})
		require.ErrorIs(t, err, skep.NotReleased)
		require.NoError(t, on.Sync(t.Context()))
		require.NoError(t, on.Close())
		synctest.Wait() // it is left alone for a while, which does not pass
		before := b.closes.Load()
		require.NoError(t, s.Close())
		require.Equal(t, before+1, b.closes.Load(), "once more")
		u := s.Usage()
		require.NotZero(t, u.Landing)
		require.Equal(t, int64(64<<10), u.Pinned, "it stays pinned")
	})
}
