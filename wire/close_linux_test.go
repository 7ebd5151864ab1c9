package wire

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Who uses anew what lies there, or frees it, believes that it is done with.
func TestCloseSaysThatTheServerMayStillWrite(t *testing.T) {
	t.Parallel()
	g := newGated()
	c, away, cut := cutting(t, g)
	ch := chainOf(t, c, "t", 16)
	mem, err := c.Alloc(t.Context(), 16*blockSize)
	require.NoError(t, err)
	ch.Dest = skep.Destination{Memory: mem.Bytes()}
	g.shut()
	defer g.open()
	go func() {
		<-g.reached
		away.Store(true)
		cut()
	}()
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	require.ErrorIs(t, skep.Drain(t.Context(), s, nil), skep.NotReleased)
	mem.Release()
	require.NotZero(t, c.Withheld(), "the server may write there")
	require.ErrorIs(t, c.Close(), skep.NotReleased)
}

// A drive hangs, and nobody waits any longer. Who gives the memory back, or closes the client, is not the server: it
// writes there once the drive goes on, so the memory is lent to nobody before the server has ended the session.
func TestWhatASessionIsWrittenToIsNotLentAgain(t *testing.T) {
	t.Parallel()
	for name, closes := range map[string]bool{"given back": false, "the client is closed": true} {
		t.Run(name, func(t *testing.T) {
			g := newGated()
			_, c := late(t, g, sharing)
			ch := chainOf(t, c, "t", 16)
			mem, err := c.Alloc(t.Context(), 8<<20)
			require.NoError(t, err)
			ch.Dest = skep.Destination{Memory: mem.Bytes()}
			g.shut()
			c.opt.Timeout = time.Second // enough to send it
			s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
			require.NoError(t, err)
			c.opt.Timeout = time.Minute
			if closes {
				require.ErrorIs(t, c.Close(), skep.NotReleased)
				return
			}
			soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, s.Close(soon), skep.NotReleased)
			mem.Release()
			require.False(t, c.shared.alloc(8<<20) != nil, "the server may write there")
			g.open()
			require.NoError(t, s.Close(t.Context()))
			require.Zero(t, c.Withheld())
			mem = c.shared.alloc(8 << 20)
			require.NotNil(t, mem)
			mem.Release()
			require.NoError(t, c.Close())
		})
	}
}

// A put that is under way when the client is closed has the server read the caller's memory on.
func TestCloseSaysThatTheServerMayStillReadAPut(t *testing.T) {
	t.Parallel()
	g := newGated()
	_, c := late(t, g, sharing)
	c.leave = time.Millisecond
	put, mem := putOfAlloc(t, c)
	g.shut()
	done := make(chan error, 1)
	go func() { done <- put() }()
	<-g.reached
	require.ErrorIs(t, c.Close(), skep.NotReleased)
	require.ErrorIs(t, <-done, skep.NotReleased)
	mem.Release()
	require.NotZero(t, c.Withheld())
}

// Who gives memory back too early has it lent to others when the server has read it.
func TestWhatAPutIsReadFromIsNotLentAgain(t *testing.T) {
	t.Parallel()
	g := newGated()
	_, c := late(t, g, sharing)
	put, mem := putOfAlloc(t, c)
	g.shut()
	done := make(chan error, 1)
	go func() { done <- put() }()
	<-g.reached
	mem.Release()
	require.Nil(t, c.shared.alloc(8<<20), "the server reads there")
	g.open()
	require.NoError(t, <-done)
	again := c.shared.alloc(8 << 20)
	require.NotNil(t, again)
	again.Release()
	require.Zero(t, c.Withheld())
}

// Of two puts that the server reads from one place the first that ends says nothing of the other.
func TestWhatTwoPutsAreReadFromIsNotLentBeforeBothHaveEnded(t *testing.T) {
	t.Parallel()
	g := newGated()
	_, c := late(t, g, sharing)
	put, mem := putOfAlloc(t, c)
	g.shut()
	begin := func() chan error {
		done := make(chan error, 1)
		go func() { done <- put() }()
		<-g.reached
		return done
	}
	one := begin()
	gate := g.gate
	first := sync.OnceFunc(func() { close(gate) })
	defer first()
	g.shut()
	two := begin()
	mem.Release()
	first()
	require.NoError(t, <-one)
	require.NotZero(t, c.Withheld(), "the server reads there for the other one")
	require.Nil(t, c.shared.alloc(8<<20))
	g.open()
	require.NoError(t, <-two)
	require.Zero(t, c.Withheld())
}

// putOfAlloc is a put of one block in memory of Alloc, all there is of it.
func putOfAlloc(t *testing.T, c *Client) (func() error, skep.Memory) {
	t.Helper()
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
		Shape: skep.Shape{BlockTokens: 16, Bytes: blockSize}})
	require.NoError(t, err)
	mem, err := c.Alloc(t.Context(), 8<<20)
	require.NoError(t, err)
	b := mem.Bytes()[:blockSize]
	return func() error {
		_, err := c.Put(context.Background(), &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID},
			Blocks: []skep.Block{{Key: skep.KeyOf([]byte("a")), Parts: []skep.Part{{Bytes: b}}}}})
		return err
	}, mem
}

// A session whose Close was not waited for is ended all the same: its memory is lent again once the server is done.
func TestASessionThatIsNotClosedAgainIsEnded(t *testing.T) {
	t.Parallel()
	g := newGated()
	r, c := late(t, g, sharing)
	ch := chainOf(t, c, "t", 16)
	mem, err := c.Alloc(t.Context(), 8<<20)
	require.NoError(t, err)
	ch.Dest = skep.Destination{Memory: mem.Bytes()}
	g.shut()
	c.opt.Timeout = time.Second // enough to send it
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Close(soon), skep.NotReleased)
	mem.Release()
	require.NotZero(t, c.Withheld())
	g.open()
	require.Eventually(t, func() bool { return c.Withheld() == 0 }, time.Minute, time.Millisecond)
	require.Zero(t, r.Stats().Sessions)
}
