package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
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
