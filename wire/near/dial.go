package near

import (
	"context"
	"net"
	"time"
)

// Dial connects. It ends by the context alone: a connection's own timer for the context's deadline may end sooner, and
// the server would be to blame.
func Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(undated{ctx}, network, addr)
}

// undated is a context whose end is seen, and not its deadline.
type undated struct{ context.Context }

// Deadline implements context.Context.
func (undated) Deadline() (t time.Time, ok bool) { return t, false }
