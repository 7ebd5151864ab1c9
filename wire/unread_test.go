package wire

import (
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
)

// A peer that asks and never reads is not asked for more than a few calls' answers: then the server does not read either.
// Every call is answered once it does.
//
// Alone: goroutines of the whole process are counted.
func TestAnswersThatNobodyReadsAreFew(t *testing.T) {
	piped(t, func(t *testing.T, s piping, dial func() *rawConn, _ skep.Chain) {
		x := dial()
		before := runtime.NumGoroutine()
		asked, taken, most := 0, true, 0
		for taken && asked < 20_000 {
			var calls []byte
			for range 32 {
				asked++
				var err error
				calls, err = frames.AppendFrame(calls, frames.Header{Type: frames.TypeEnd, Call: uint64(asked)},
					&frames.Number{N: 1 << 60})
				require.NoError(t, err)
			}
			written := make(chan struct{})
			go func(c net.Conn) {
				_, _ = c.Write(calls)
				close(written)
			}(x.Conn)
			synctest.Wait()
			select {
			case <-written:
			default:
				taken = false
			}
			most = max(most, runtime.NumGoroutine()-before)
		}
		require.Less(t, most, s.limits.Calls+100)
		answered := map[uint64]bool{}
		for range asked {
			h, _, err := x.next()
			require.NoError(t, err)
			require.Equal(t, frames.TypeEnd|frames.Answer, h.Type)
			answered[h.Call] = true
		}
		require.Len(t, answered, asked)
	})
}

// A listing of namespaces counts as memory for calls, until the client has read it.
func TestListingsThatNobodyReadsAreCharged(t *testing.T) {
	t.Parallel()
	piped(t, func(t *testing.T, s piping, dial func() *rawConn, _ skep.Chain) {
		const spaces, name = 100, 500
		for i := range spaces {
			_, err := s.st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: fmt.Sprintf("%0*d", name, i),
				Model: strings.Repeat("m", name), Shape: skep.Shape{BlockTokens: 16}})
			require.NoError(t, err)
		}
		x := dial()
		x.send(t, frames.Header{Type: frames.TypeNamespaces, Call: 1}, nil, "")
		synctest.Wait()
		require.Greater(t, s.Stats().Memory, int64(spaces*2*name))
		h, body, err := x.next()
		require.NoError(t, err)
		require.Equal(t, frames.TypeNamespaces|frames.Answer, h.Type)
		require.Greater(t, len(body), spaces*2*name)
		synctest.Wait()
		require.Zero(t, s.Stats().Memory)
	})
}
