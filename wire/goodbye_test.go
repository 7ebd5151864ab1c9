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
	_, err := Dial(t.Context(), Options{Addr: "pipe:0", Retries: -1, Dialer: func(context.Context) (net.Conn, error) { return here, nil }})
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
