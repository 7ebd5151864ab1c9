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
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

// A server need not speak while nothing is asked of it: a connection that was idle for an hour lives, and the first
// call after that has all its time.
func TestAnIdleConnectionIsNotSilent(t *testing.T) {
	t.Parallel()
	const silence = time.Minute
	x := &clientConn{l: &link.Link{}, dead: make(chan struct{}), pending: map[uint64]*pendingCall{}}
	x.heard.Store(nanos() - int64(time.Hour))
	x.checkLife(silence)
	assert.True(t, x.alive())
	assert.Less(t, time.Duration(nanos()-x.heard.Load()), silence/4, "the clock begins again for who calls next")

	lately := nanos() - int64(silence/3)
	x.heard.Store(lately)
	x.checkLife(silence)
	assert.Equal(t, lately, x.heard.Load(), "who spoke lately is left alone")
}

// A process that was stopped for longer than Options.Silence has read nothing meanwhile: it asks before it gives up.
func TestAProcessThatWasStoppedAsksFirst(t *testing.T) {
	t.Parallel()
	const silence = time.Minute
	long := nanos() - 2*int64(silence)
	x := &clientConn{l: &link.Link{}, dead: make(chan struct{}), pending: map[uint64]*pendingCall{1: {}}, looked: long}
	x.heard.Store(long)
	x.checkLife(silence)
	assert.True(t, x.alive())
	assert.Less(t, time.Duration(nanos()-x.heard.Load()), silence/4)
}

// A network that is slow is not silent: a frame that takes longer than Options.Silence comes through, either way, as
// long as its bytes do. A server that takes no more of them is silent.
func TestASlowNetworkIsNotSilent(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]int{"slow": 4 << 20, "silent": 2 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				defer there.Close()
				c, err := NewClient(Options{Addr: "pipe:0", Conns: 1, Strict: true, Retries: -1, Timeout: time.Minute,
					Dialer: func(context.Context) (net.Conn, error) { return here, nil }})
				require.NoError(t, err)
				defer c.Close()
				go slowly(t, there, takes)
				b := make([]byte, 4<<20)
				_, err = c.Put(t.Context(), &skep.PutRequest{Scope: skep.Scope{Namespace: 1},
					Blocks: []skep.Block{{Parts: []skep.Part{{Bytes: b}}}}})
				if takes < len(b) {
					require.ErrorIs(t, err, skep.Unavailable)
					require.True(t, c.Away())
					return
				}
				require.NoError(t, err)
				got, err := c.ClusterMap(t.Context())
				require.NoError(t, err)
				require.Len(t, got, 1<<20)
			})
		})
	}
}

// slowly is a server that takes a put, of whose payload so much, and is asked for the map then, at 128 KiB/s.
func slowly(t *testing.T, conn net.Conn, takes int) {
	c := &rawConn{conn, link.New(conn, time.Hour, 1)}
	const step = 32 << 10
	answer := func(h frames.Header, m frames.Message) {
		b, err := frames.AppendFrame(nil, frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, m)
		assert.NoError(t, err)
		for n := min(step, len(b)); n > 0; n = min(step, len(b)) {
			_, _ = c.Write(b[:n])
			b = b[n:]
			time.Sleep(250 * time.Millisecond) // of the bubble
		}
	}
	for {
		h, err := c.l.Header(0)
		if err != nil {
			return
		}
		if err := c.l.Body(&h, make([]byte, h.Body)); err != nil {
			return
		}
		switch h.Type {
		case frames.TypeHello:
			answer(h, &frames.Welcome{Version: 1, MaxBody: 1 << 20, MaxPayload: 8 << 20, MaxKeys: 1, MaxCalls: 64,
				MaxWindow: 1 << 20})
		case frames.TypePut:
			for range min(takes, int(h.Payload)) / step {
				_ = c.l.Discard(step)
				time.Sleep(250 * time.Millisecond) // of the bubble
			}
			if takes < int(h.Payload) {
				return
			}
			answer(h, &frames.PutResults{List: make([]skep.PutResult, 1)})
		case frames.TypeClusterMap:
			answer(h, &frames.Document{Bytes: make([]byte, 1<<20)})
		case frames.TypePing:
			answer(h, nil)
		}
	}
}
