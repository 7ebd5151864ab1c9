package wire

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
)

// A server that begins to stop says goodbye on connections that have not said hello, too: it is unavailable, and
// sends nothing that is damaged.
func TestAServerThatStopsSaysGoodbyeBeforeTheWelcome(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	said := make(chan error, 1)
	go func() {
		defer there.Close()
		b, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeGoodbye},
			&frames.Goodbye{After: time.Second, Reason: "shutting down"})
		if err == nil {
			_, err = there.Read(make([]byte, 4096)) // the hello
		}
		if err == nil {
			_, err = there.Write(b)
		}
		said <- err
	}()
	_, err := Dial(t.Context(), Options{Addr: "pipe:0", Retries: -1,
		Dialer: func(context.Context) (net.Conn, error) { return here, nil }})
	assert.Equal(t, skep.Unavailable, skep.KindOf(err), "%v", err)
	require.NoError(t, <-said)
}

// lateToRelease is a Store that takes its time to end a lease.
type lateToRelease struct{ skep.Store }

func (l lateToRelease) Release(ctx context.Context, id skep.LeaseID) error {
	<-time.After(10 * time.Second) // of the bubble
	return l.Store.Release(ctx, id)
}

// A client that closes gives its leases back on a machine that is so busy that its goodbye leaves seconds later, and
// that the Store takes seconds to end them.
func TestAGoodbyeThatIsLateEndsTheLeases(t *testing.T) {
	t.Parallel()
	wrap := func(st skep.Store) skep.Store { return lateToRelease{st} }
	pipedTo(t, wrap, func(t *testing.T, s piping, _ func() *rawConn, ch skep.Chain) {
		c, err := Dial(t.Context(), Options{Addr: "pipe:0", Dialer: func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			s.pipes.come <- there
			return here, nil
		}})
		require.NoError(t, err)
		defer c.Close()
		c.leave = time.Minute
		_, err = c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys, Lease: skep.MaxLease})
		require.NoError(t, err)
		leases := func() int {
			st, err := s.st.Stats(t.Context())
			require.NoError(t, err)
			return st.Leases
		}
		require.Equal(t, 1, leases())
		write := c.slots[0].conn.l.Write
		<-write // somebody else's turn
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		time.Sleep(10 * time.Second) // of the bubble
		write <- struct{}{}
		require.NoError(t, <-closed)
		time.Sleep(20 * time.Second) // of the bubble, until it is released
		require.Zero(t, leases())
	})
}

// A server that has said goodbye may be stopped in the middle of it, where another one answers by now. Its connection
// is looked after all the same: sessions are told that it says nothing, what it does not know any more is released, and
// a client that closes does not wait for it.
func TestAServerThatStopsAfterItsGoodbye(t *testing.T) {
	t.Parallel()
	for name, silence := range map[string]time.Duration{"says nothing": 50 * time.Millisecond, "is closed": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := scripted(t, func(c *rawConn, h frames.Header, _ []byte) {
				switch h.Type {
				case frames.TypeRestore:
					c.send(t, frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, nil, "")
					c.send(t, frames.Header{Type: frames.TypeGoodbye}, &frames.Goodbye{}, "")
				case frames.TypeEnd:
					b := frames.BodyOf(&skep.Error{Op: "end", Kind: skep.Closed})
					c.send(t, frames.Header{Type: frames.TypeError, Call: h.Call}, &b, "")
				}
			})
			o.Conns, o.Silence = 1, silence
			c, err := Dial(t.Context(), o)
			require.NoError(t, err)
			c.know(skep.NamespaceInfo{ID: 1, NamespaceSpec: skep.NamespaceSpec{Shape: skep.Shape{BlockTokens: 1, Bytes: 16}}})
			s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: skep.Scope{Namespace: 1},
				Keys: make([]skep.Key, 1)}}})
			require.NoError(t, err)
			old := s.(*clientSession).x
			require.Eventually(t, func() bool { return !old.alive() }, time.Minute, time.Millisecond)
			now, err := c.conn(t.Context(), 0)
			require.NoError(t, err)
			require.NotSame(t, old, now)
			if silence < time.Minute {
				within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				var got [1]skep.Chunk
				_, err := s.Next(within, got[:])
				require.NoError(t, err)
				require.ErrorIs(t, got[0].Err, skep.Unavailable)
				require.False(t, c.Away(), "which says nothing of who answers now")
			} else {
				require.NoError(t, s.Close(t.Context()))
			}
			closed := make(chan error, 1)
			go func() { closed <- c.Close() }()
			select {
			case err := <-closed:
				require.NoError(t, err)
			case <-time.After(20 * time.Second):
				old.end(errClosed)
				require.Fail(t, "the client waits for a server that is stopped")
			}
		})
	}
}
