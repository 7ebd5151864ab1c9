package wire

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A machine without power answers nothing, so who dials it waits. Calls wait for that once, and not at all while it is
// looked for in the background, for as long as there are calls.
func TestCallsDoNotWaitForAMachineThatSaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int64
		c, err := NewClient(Options{Addr: "nowhere:1", Strict: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			dials.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		require.NoError(t, err)
		defer c.Close()
		calls := func() (longest time.Duration) {
			var wait sync.WaitGroup
			var most atomic.Int64
			var other atomic.Pointer[error]
			for range 20 {
				wait.Go(func() {
					began := time.Now()
					_, err := c.Delete(t.Context(), skep.Scope{Namespace: 1}, []skep.Key{skep.KeyOf([]byte("k"))})
					if skep.KindOf(err) != skep.Unavailable {
						other.Store(&err)
					}
					for d := int64(time.Since(began)); ; {
						if old := most.Load(); d <= old || most.CompareAndSwap(old, d) {
							return
						}
					}
				})
			}
			wait.Wait()
			require.Nil(t, other.Load())
			return time.Duration(most.Load())
		}
		require.Less(t, calls(), 2500*time.Millisecond, "they wait beside each other, and once")
		for range 200 {
			require.Less(t, calls(), 10*time.Millisecond)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		before := dials.Load()
		time.Sleep(time.Hour)
		require.Equal(t, before, dials.Load(), "nobody wants it")
		require.Less(t, before, int64(20))
	})
}

// One call after another waits for it no more often than many at once do: for the time that a call has, and once.
func TestTheSecondCallDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		shows := func() *Credentials {
			time.Sleep(time.Millisecond) // so that less of the call's time is left than a dial has
			return &Credentials{}
		}
		c, err := NewClient(Options{Addr: "nowhere:1", Strict: true, DialContext: hangs, Credentials: shows})
		require.NoError(t, err)
		defer c.Close()
		call := func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			_, err := c.Renew(ctx, 1, time.Minute)
			return time.Since(began), err
		}
		hasty, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = call(hasty)
		require.ErrorIs(t, err, skep.Deadline, "which says nothing of the server")
		took, err := call(t.Context())
		require.ErrorIs(t, err, skep.Unavailable)
		require.Greater(t, took, time.Second)
		took, err = call(t.Context())
		require.ErrorIs(t, err, skep.Unavailable)
		require.Less(t, took, 10*time.Millisecond)
	})
}

// Who shows credentials that a server does not know is told so at every call, and gets no misses for it.
func TestDeniedIsNoMiss(t *testing.T) {
	t.Parallel()
	p := protect(t, directory(t))
	o := p.options()
	o.Token = "nobody's"
	c, err := NewClient(o)
	require.NoError(t, err)
	defer c.Close()
	for range 20 {
		_, err := c.Delete(t.Context(), skep.Scope{Namespace: 1}, []skep.Key{skep.KeyOf([]byte("k"))})
		require.ErrorIs(t, err, skep.Denied)
	}
	require.Zero(t, c.Misses())
}
