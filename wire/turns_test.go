package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
	"github.com/skepkv/skep/wire/turns"
)

// A session that waits for its turn keeps no connection busy: what is asked on it is answered. Its
// chunks come when it has its turn.
func TestWhoWaitsForATurnKeepsNoConnectionBusy(t *testing.T) {
	t.Parallel()
	one := turns.Of(1, time.Hour, time.Hour)
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Turns: &one})
	ch := chainOf(t, r.dial(t, r.options()), "t", 32) // 2 MiB
	restore := &frames.RestoreRequest{Window: 8 << 20, Chains: []frames.RestoreChain{{Scope: ch.Scope, Keys: ch.Keys}}}

	<-one.Free // somebody's whose bytes nobody takes
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
	one.Free <- struct{}{}
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
	require.Len(t, one.Free, 1)
}
