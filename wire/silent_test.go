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
