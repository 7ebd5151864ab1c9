package near

import (
	"context"
	"net"
	"time"
)

// Dial connects. It ends by the context: a connection's own timer for the context's deadline may end sooner, and the
// server would be to blame.
func Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(later{ctx}, network, addr)
}

// later is a context whose deadline is told as a little later than it is. It is told, as the time is shared among the
// addresses of a name.
type later struct{ context.Context }

// Deadline implements context.Context.
func (l later) Deadline() (time.Time, bool) {
	t, ok := l.Context.Deadline()
	if ok {
		t = t.Add(margin)
	}
	return t, ok
}

// margin is how much later.
const margin = 100 * time.Millisecond
