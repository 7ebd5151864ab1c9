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
