package gate

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Many calls come and go while the gate is shut: it is shut when the last that was let in has ended, and not before.
func TestGate(t *testing.T) {
	t.Parallel()
	for range 200 {
		g := New(false, nil)
		var in, after sync.WaitGroup
		inside, shut := make(chan struct{}, 8), make(chan struct{})
		for range 8 {
			in.Go(func() {
				if g.Pass() {
					inside <- struct{}{}
					select {
					case <-shut:
						t.Error("it is shut while calls are under way")
					default:
					}
					<-inside
					g.Leave()
				}
			})
		}
		after.Go(func() { g.Shut(); close(shut) })
		in.Wait()
		after.Wait()
		require.Empty(t, inside)
		require.False(t, g.Pass())
	}
}

// Who is refused is not inside: Shut does not wait for them.
func TestRefusedCallsAreNotInside(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	over, cancel := context.WithCancel(ctx)
	cancel()
	why := errors.New("the catalog is gone")
	reading := New(true, func() error { return nil })
	failed := New(false, func() error { return why })

	require.Equal(t, skep.Deadline, skep.KindOf(reading.Enter(over)))
	require.Equal(t, skep.ReadOnly, skep.KindOf(reading.EnterWrite(ctx, "put")))
	require.NoError(t, reading.Enter(ctx))
	reading.Leave()
	err := failed.EnterWrite(ctx, "put")
	require.Equal(t, skep.Failed, skep.KindOf(err))
	require.ErrorIs(t, err, why)
	for _, g := range []*Gate{reading, failed} {
		g.Shut()
		require.True(t, g.Closing())
		require.Equal(t, ErrClosed, g.Enter(ctx))
	}
}
