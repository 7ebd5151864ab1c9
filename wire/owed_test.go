package wire

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// busy keeps a client's only connection from being written to until the test ends it.
func busy(c *Client) (end func()) {
	x := c.slots[0].conn
	<-x.l.Write
	return func() { x.l.Write <- struct{}{} }
}

// Credit that could not be sent in time is given later: the server sends on. The connection is busy for so long, that
// all credit there is was to be sent in vain.
func TestCreditThatWasNotSentIsOwed(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Stall: 10 * time.Second}})
	o := r.options()
	o.Conns, o.Window = 1, frames.LeastWindow
	c := r.dial(t, o)
	const window = frames.LeastWindow / blockSize
	ch := chainOf(t, c, "t", 3*window)
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	defer s.Close(t.Context())
	c.opt.Timeout = 10 * time.Millisecond
	end := busy(c)
	var into [1]skep.Chunk
	for range window {
		_, err := s.Next(t.Context(), into[:])
		require.NoError(t, err)
		require.NoError(t, into[0].Err)
		into[0].Release()
	}
	end()
	got := window
	each(t, s, func(ch *skep.Chunk) {
		require.NoError(t, ch.Err, got)
		ch.Release()
		got++
	})
	require.Equal(t, 3*window, got)
}

// The same of a stream of events.
func TestCreditForEventsThatWasNotSentIsOwed(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	o := r.options()
	o.Conns = 1
	c := r.dial(t, o)
	ns, err := r.st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	events, err := c.Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	c.opt.Timeout = 10 * time.Millisecond
	end := busy(c)
	const some = 256
	into := make([]skep.Event, some)
	for i := range streamCredit/some + 1 {
		req := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
		for j := range some {
			req.Blocks = append(req.Blocks, skep.Block{Key: skep.KeyOf(fmt.Append(nil, i, j)),
				Parts: []skep.Part{{Bytes: []byte{1}}}})
		}
		_, err = r.st.Put(t.Context(), req)
		require.NoError(t, err)
		if i == streamCredit/some {
			end()
		}
		for got := 0; got < some; {
			n, err := events.Next(t.Context(), into[:some-got])
			require.NoError(t, err)
			got += n
		}
	}
	c.opt.Timeout = time.Minute
	require.NoError(t, events.Close())
}

// The same of the ring, which is full before the connection takes a frame again.
func TestCreditOfTheRingThatWasNotSentIsOwed(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Stall: 10 * time.Second}})
	o := r.options()
	o.Conns, o.SharedMemory, o.Timeout = 1, 8<<20, time.Second
	c := r.dial(t, o)
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
		Shape: skep.Shape{BlockTokens: 1, Bytes: 512}})
	require.NoError(t, err)
	mem, err := c.Alloc(t.Context(), 3*ringEntries*512)
	require.NoError(t, err)
	defer mem.Release()
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: skep.Scope{Namespace: ns.ID},
		Keys: make([]skep.Key, 3*ringEntries), Dest: skep.Destination{Memory: mem.Bytes(), Stride: 512}}}})
	require.NoError(t, err)
	end := busy(c)
	ses := s.(*clientSession)
	storetest.Eventually(t, "the server has no credit left", func() bool {
		ses.mu.Lock()
		defer ses.mu.Unlock()
		return ses.left <= 2*ringEntries
	})
	end()
	var got int
	each(t, s, func(ch *skep.Chunk) {
		require.ErrorIs(t, ch.Err, skep.NotFound, got)
		got++
	})
	require.Equal(t, 3*ringEntries, got)
	require.NoError(t, s.Close(t.Context()))
}
