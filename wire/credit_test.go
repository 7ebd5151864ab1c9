package wire

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/server"
)

// lent begins a restore with a window of that many bytes on a socket that the test reads fully.
func lent(t *testing.T, window uint64, stall time.Duration) (x *rawConn, total, block uint64) {
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Stall: stall}})
	const blocks = 64
	ch := chainOf(t, r.dial(t, r.options()), "t", blocks)
	x = rawDial(t, r.addr)
	x.hello(t, operator)
	x.send(t, frames.Header{Type: frames.TypeRestore, Call: 1}, &frames.RestoreRequest{Window: window,
		Chains: []frames.RestoreChain{{Scope: ch.Scope, Keys: ch.Keys}}}, "")
	h, _, err := x.next()
	require.NoError(t, err)
	require.Equal(t, frames.TypeRestore|frames.Answer, h.Type)
	return x, blocks * blockSize, blockSize
}

// arrived is how many bytes of blocks a frame brings, and whether the session ends with it.
func (c *rawConn) arrived(t *testing.T) (n uint64, last bool) {
	h, body, err := c.next()
	require.NoError(t, err)
	if h.Type != frames.TypeChunks {
		return 0, true
	}
	var m frames.Chunks
	require.NoError(t, frames.Decode(h.Type, body, &m))
	for _, p := range m.List {
		n += p.Len
	}
	return n, h.Flags&frames.FlagLast != 0
}

// Who gives no credit gets what the window allows and the piece that passes it, and then the end
// of the session.
func TestNoCreditNoBytes(t *testing.T) {
	t.Parallel()
	x, total, block := lent(t, 10*blockSize, 2*time.Second)
	var got uint64
	for last := false; !last; {
		var n uint64
		n, last = x.arrived(t)
		got += n
	}
	require.GreaterOrEqual(t, got, 10*block)
	require.Less(t, got, 11*block)
	require.Less(t, got, total)
}

// Credit that is given brings the rest, never more than was given and one piece.
func TestCreditIsCounted(t *testing.T) {
	t.Parallel()
	x, total, block := lent(t, 10*blockSize, time.Minute)
	granted, got := 10*block, uint64(0)
	for last := false; !last; {
		var n uint64
		n, last = x.arrived(t)
		got += n
		require.Less(t, got, granted+block)
		if got >= granted && got < total {
			x.send(t, frames.Header{Type: frames.TypeCredit}, &frames.Credit{Session: 1, Amount: 7*block + 1}, "")
			granted += 7*block + 1
		}
	}
	require.Equal(t, total, got)
}

// Who takes what has come does not wait for a server that reads nothing: credit is sent beside it, and once more where it
// could not be sent.
func TestCreditIsSentBesideWhoTakesWhatCame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		c, err := NewClient(Options{Addr: "pipe:0", Timeout: 2 * time.Second})
		require.NoError(t, err)
		defer c.Close()
		x := &clientConn{c: c, l: link.New(here, time.Hour, 1), dead: make(chan struct{})}
		x.hi.MaxBody = 1 << 20
		str := &clientStream{c: c, x: x, id: 1, more: make(chan struct{}, 1), snap: -1,
			ready: make([]skep.Event, streamCredit)}
		ses := &clientSession{c: c, x: x, id: 2, window: 1 << 20, owed: 1 << 20, landed: make(chan struct{}, 1),
			ready: make([]skep.Chunk, 1)}
		began := time.Now()
		for range 2 {
			n, err := str.Next(t.Context(), make([]skep.Event, streamCredit/2))
			require.NoError(t, err)
			require.Equal(t, streamCredit/2, n)
		}
		n, err := ses.Next(t.Context(), make([]skep.Chunk, 2))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Zero(t, time.Since(began))

		time.Sleep(3 * time.Second) // of the bubble: what was begun is given up
		within := func(next func(ctx context.Context) (int, error)) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := next(ctx)
			require.ErrorIs(t, err, skep.Deadline)
		}
		given := map[uint64]uint64{}
		go func() {
			l := link.New(there, time.Hour, 1)
			for range 2 {
				h, err := l.Header(0)
				if !assert.NoError(t, err) {
					return
				}
				body := make([]byte, h.Body)
				assert.NoError(t, l.Body(&h, body))
				var m frames.Credit
				assert.NoError(t, frames.Decode(h.Type, body, &m))
				given[m.Session] += m.Amount
			}
		}()
		within(func(ctx context.Context) (int, error) { return str.Next(ctx, make([]skep.Event, 1)) })
		within(func(ctx context.Context) (int, error) { return ses.Next(ctx, make([]skep.Chunk, 1)) })
		synctest.Wait()
		require.Equal(t, map[uint64]uint64{1: streamCredit, 2: 1 << 20}, given)
	})
}
