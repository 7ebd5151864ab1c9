package wire

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
	"github.com/skepkv/skep/wire/whose"
)

// A credential is taken away while a drive writes to the client's memory. Who ends the session then is not told that it
// may not, but that the memory is not its own yet, and that it is once the drive is done.
func TestWhoIsRevokedIsToldWhenItsMemoryIsItsOwn(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	for name, done := range map[string]bool{"the drive is done": true, "the drive hangs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := directory(t)
			st := &holding{newMemstore(storetest.Config{}), make(chan struct{})}
			r := serve(t, "unix", st, server.Options{Auth: d, Limits: server.Limits{Stall: 50 * time.Millisecond}})
			o := r.options()
			o.Token, o.SharedMemory, o.Conns = tokenA, 8<<20, 1
			c := r.dial(t, o)
			ch := chainOf(t, c, "a", 16)
			mem, err := c.Alloc(t.Context(), 16*blockSize)
			require.NoError(t, err)
			ch.Dest = skep.Destination{Memory: mem.Bytes()}
			s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
			require.NoError(t, err)
			if done {
				close(st.letGo)
			} else {
				defer close(st.letGo)
			}
			require.NoError(t, d.Replace([]auth.Credential{{Name: "x", Tenant: "x", Rights: auth.All,
				TokenSHA256: [32]byte{1}}}, nil))
			_, err = s.Claim(t.Context(), 0, skep.Subset{}, skep.Idle)
			require.Error(t, err)
			if done {
				_, err := c.slots[0].conn.call(t.Context(), frames.TypeEnd, &frames.Number{N: s.(*clientSession).id}, nil, nil)
				require.NotErrorIs(t, err, skep.Denied)
				return
			}
			require.ErrorIs(t, s.Close(t.Context()), skep.NotReleased)
			mem.Release()
			require.NotZero(t, c.Withheld())
		})
	}
}

// Whatever a server answers in place of having ended a session: it has not said that it is done with the memory.
func TestAnEndThatIsRefusedReleasesNothing(t *testing.T) {
	t.Parallel()
	o := scripted(t, func(c *rawConn, h frames.Header, _ []byte) {
		switch h.Type {
		case frames.TypeRestore:
			c.send(t, frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, nil, "")
		case frames.TypeEnd, frames.TypeStop:
			b := frames.BodyOf(&skep.Error{Op: "end", Kind: skep.Denied})
			c.send(t, frames.Header{Type: frames.TypeError, Call: h.Call}, &b, "")
		}
	})
	c, err := Dial(t.Context(), o)
	require.NoError(t, err)
	defer c.Close()
	c.know(skep.NamespaceInfo{ID: 1, NamespaceSpec: skep.NamespaceSpec{Shape: skep.Shape{BlockTokens: 1, Bytes: 16}}})
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: skep.Scope{Namespace: 1},
		Keys: make([]skep.Key, 1), Dest: skep.Destination{Memory: make([]byte, 16)}}}})
	require.NoError(t, err)
	for _, err := range []error{s.Stop(t.Context(), 0), s.Close(t.Context()), s.Close(t.Context())} {
		require.ErrorIs(t, err, skep.NotReleased)
		require.ErrorIs(t, err, skep.Denied, "which is why")
	}
}

// A node is given another name, or number, while it restores. What was begun with it is ended there.
func TestASessionOfANodeThatIsAnotherNowIsEnded(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{ClusterMap: []byte("{}"), Epoch: 1, Node: "a",
		Cluster: "07", NodeID: 2})
	o := r.options()
	o.Conns = 1
	c := r.dial(t, o)
	ch := chainOf(t, c, "a", 3)
	ch.Dest = skep.Destination{Memory: make([]byte, 3*blockSize), Stride: blockSize}
	found, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys, Lease: time.Minute})
	require.NoError(t, err)
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	c.SetNode(whose.Node{Cluster: "07", ID: 1, Name: "b"}, func() {})
	require.NoError(t, s.Stop(t.Context(), -1))
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, c.Release(t.Context(), found.Lease.ID))
	st, err := r.st.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, st.Leases)
}
