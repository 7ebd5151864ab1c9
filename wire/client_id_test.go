package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// Clients choose what they are called. One of another tenant under the same name says goodbye for itself only: the
// leases of who was cut off stay until they run out.
func TestAGoodbyeIsOfOnesOwnTenant(t *testing.T) {
	t.Parallel()
	for token, leases := range map[string]int{tokenA: 0, tokenB: 1} {
		r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Auth: directory(t)})
		gone := func() bool { return r.Stats().Connections == 0 }
		ch := chainOf(t, r.st, "a", 4)
		a := rawDial(t, r.addr)
		a.hello(t, tokenA)
		a.send(t, frames.Header{Type: frames.TypeLookup, Call: 1},
			&frames.LookupRequest{LookupRequest: skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys,
				Lease: time.Minute}}, "")
		h, _, err := a.next()
		require.NoError(t, err)
		require.Equal(t, frames.TypeLookup|frames.Answer, h.Type)
		require.Equal(t, 1, r.Stats().Leases)
		a.Close()
		storetest.Eventually(t, "who has the lease is cut off", gone)

		again := rawDial(t, r.addr)
		again.hello(t, token)
		again.send(t, frames.Header{Type: frames.TypeGoodbye}, &frames.Goodbye{}, "")
		storetest.Eventually(t, "a client of the same name leaves", gone)
		r.stop()
		require.Equal(t, leases, r.Stats().Leases, token)
	}
}
