//go:build linux

package wire

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// endsLate is a Store whose sessions end when a test says so.
type endsLate struct {
	skep.Store
	may chan struct{} // closed then
}

func (e endsLate) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	s, err := e.Store.Restore(ctx, r)
	return lateEnd{s, e.may}, err
}

type lateEnd struct {
	skep.Session
	may chan struct{}
}

func (l lateEnd) Close(ctx context.Context) error {
	select {
	case <-l.may:
		return l.Session.Close(ctx)
	case <-ctx.Done():
		return &skep.Error{Op: "close session", Kind: skep.NotReleased, Err: ctx.Err()}
	}
}

// A word is its session's until the server has ended that: it may write there though every chunk has landed, when the
// destinations are the caller's.
func TestAWordIsTheSessionsUntilItHasEnded(t *testing.T) {
	t.Parallel()
	st := endsLate{newMemstore(storetest.Config{}), make(chan struct{})}
	r := serve(t, "unix", st, server.Options{})
	o := patient(r.addr)
	sharing(&o)
	c := r.dial(t, o)
	ch := chainOf(t, c, "t", 4)
	mem, err := c.Alloc(t.Context(), 4*blockSize)
	require.NoError(t, err)
	word, err := c.Alloc(t.Context(), frames.PageSize)
	require.NoError(t, err)
	ch.Dest = skep.Destination{Memory: mem.Bytes()}
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	s.(*clientSession).ring.keep(word.Bytes()[:8])
	for _, x := range collect(t, s) {
		require.NoError(t, x.Err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Close(gone), skep.NotReleased)
	mem.Release()
	require.Zero(t, c.Withheld())
	word.Release()
	require.EqualValues(t, frames.PageSize, c.Withheld())
	close(st.may)
	require.Eventually(t, func() bool { return c.Withheld() == 0 }, time.Minute, time.Millisecond)
	require.NoError(t, s.Close(t.Context()))
}
