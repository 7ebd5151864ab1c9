package wire

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
)

// As many frames are written at once as there are turns; the next one waits for the first that is
// written, or until its session ends.
func TestFewFramesAreWrittenAtOnce(t *testing.T) {
	t.Parallel()
	turns := turnsOf(2, time.Hour, time.Hour)
	var late atomic.Bool
	first, err := turns.take(t.Context(), &late)
	require.NoError(t, err)
	second, err := turns.take(t.Context(), &late)
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = turns.take(ended, &late)
	require.ErrorIs(t, err, context.Canceled)
	third := make(chan func())
	go func() {
		written, _ := turns.take(t.Context(), &late)
		third <- written
	}()
	first()
	(<-third)()
	second()
	require.Len(t, turns.free, 2)
	require.False(t, late.Load())
}

// A peer that takes its bytes slowly gives its turn back while it still takes them, and has none until
// it was fast once.
func TestASlowPeerHasNoTurn(t *testing.T) {
	t.Parallel()
	turns := turnsOf(1, time.Microsecond, time.Hour)
	var late atomic.Bool
	written, err := turns.take(t.Context(), &late)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(turns.free) == 1 }, time.Minute, time.Millisecond)
	require.True(t, late.Load())
	<-turns.free // another has it
	again, err := turns.take(t.Context(), &late)
	require.NoError(t, err, "without a turn")
	written()
	require.Empty(t, turns.free, "what was given back is not given back twice")
	turns.lasts = time.Hour
	again()
	require.False(t, late.Load())
	turns.waits = 0
	_, err = turns.take(t.Context(), &late)
	require.NoError(t, err, "nobody waits for ever")
}

// A session that waits for its turn keeps no connection busy: what is asked on it is answered. Its
// chunks come when it has its turn.
func TestWhoWaitsForATurnKeepsNoConnectionBusy(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), ServerOptions{})
	r.mu.Lock() // a connection that begins takes it
	r.turns = turnsOf(1, time.Hour, time.Hour)
	r.mu.Unlock()
	ch := chainOf(t, r.dial(t, r.options()), "t", 32) // 2 MiB
	restore := &frames.RestoreRequest{Window: 8 << 20, Chains: []frames.RestoreChain{{Scope: ch.Scope, Keys: ch.Keys}}}

	<-r.turns.free // somebody's whose bytes nobody takes
	b := rawDial(t, r.addr)
	b.hello(t, operator)
	b.send(t, frames.Header{Type: frames.TypeRestore, Call: 1}, restore, "")
	h, _, err := b.next()
	require.NoError(t, err)
	require.Equal(t, frames.TypeRestore|frames.Answer, h.Type)
	for call := uint64(2); call < 10; call++ {
		b.send(t, frames.Header{Type: frames.TypePing, Call: call}, nil, "")
		h, _, err := b.next()
		require.NoError(t, err)
		require.Equal(t, frames.TypePing|frames.Answer, h.Type)
	}
	r.turns.free <- struct{}{}
	got := 0
	for {
		h, _, err := b.next()
		require.NoError(t, err)
		require.Equal(t, frames.TypeChunks, h.Type)
		if got += int(h.Payload); h.Flags&frames.FlagLast != 0 {
			break
		}
	}
	require.Equal(t, 32*blockSize, got)
	b.send(t, frames.Header{Type: frames.TypeEnd, Call: 10}, &frames.Number{N: 1}, "")
	_, _, err = b.next()
	require.NoError(t, err)
	require.Len(t, r.turns.free, 1)
}
