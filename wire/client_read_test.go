package wire

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/server"
)

// scripted is a server of one connection that answers each frame as the test says.
func scripted(t *testing.T, answers func(c *rawConn, h frames.Header, body []byte)) Options {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			wait.Go(func() {
				defer raw.Close()
				c := &rawConn{raw, link.New(raw, time.Minute, frames.SlowestRate)}
				for {
					h, body, err := c.next()
					if err != nil {
						return
					}
					if h.Type == frames.TypeHello {
						c.send(t, frames.Header{Type: frames.TypeHello | frames.Answer},
							&frames.Welcome{Version: 1, MaxBody: 1 << 20, MaxPayload: 1 << 20, MaxKeys: 1 << 20,
								MaxCalls: 64, MaxWindow: 1 << 20}, "")
						continue
					}
					answers(c, h, body)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wait.Wait()
	})
	return patient(l.Addr().String())
}

// readsOwn makes lookups until a caller has read its own answer: the reader rests.
func readsOwn(t *testing.T, c *Client, ch skep.Chain) *clientConn {
	t.Helper()
	var x *clientConn
	storetest.Eventually(t, "a caller reads its own answer", func() bool {
		var err error
		x, err = c.conn(t.Context(), 0) // a connection that was cut is given until it is noticed
		require.NoError(t, err)
		before := x.readers.own.Load()
		_, err = c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys, Lease: skep.NoLease})
		require.NoError(t, err)
		return x.readers.own.Load() > before
	})
	return x
}

// Calls of all kinds side by side on one connection: whoever reads, each gets its own answer and bytes.
func TestWhoeverReadsEachGetsItsOwn(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	o := r.options()
	o.Conns = 1
	c := r.dial(t, o)
	chains := make([]skep.Chain, 4)
	for i := range chains {
		chains[i] = chainOf(t, c, string(rune('a'+i)), 1+i)
	}
	readsOwn(t, c, chains[0])
	wait := storetest.NewCrew(t)
	for n, ch := range chains {
		wait.Go(func(t testing.TB) {
			for i := range 200 {
				found, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
				require.NoError(t, err)
				require.Equal(t, len(ch.Keys), found.Blocks)
				require.NoError(t, c.Release(t.Context(), found.Lease.ID))
				switch {
				case i%7 == n:
					requireHits(t, c, ch)
				case i%11 == n:
					require.NoError(t, c.Flush(t.Context()))
				}
			}
		})
	}
	wait.Wait()
	readsOwn(t, c, chains[3])
}

// A caller that gives up in the middle of its answer leaves what it read to the reader: the next
// call's answer is whole, and its own.
func TestACallerThatGivesUpLeavesTheFrameWhole(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	held := false
	ctx, cancel := context.WithCancel(t.Context())
	var late []byte
	o := scripted(t, func(c *rawConn, h frames.Header, _ []byte) {
		if h.Type != frames.TypeLookup {
			return // the cancel
		}
		mu.Lock()
		defer mu.Unlock()
		b, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeLookup | frames.Answer, Call: h.Call},
			&frames.LookupResult{Blocks: 1, Pays: true})
		assert.NoError(t, err)
		if held {
			held = false
			_, _ = c.Write(b[:frames.HeaderSize+3])
			late = b[frames.HeaderSize+3:]
			cancel()
			return
		}
		_, _ = c.Write(append(late, b...))
		late = nil
	})
	c, err := Dial(t.Context(), o)
	require.NoError(t, err)
	ch := skep.Chain{Keys: make([]skep.Key, 1)}
	x := readsOwn(t, c, ch)
	mu.Lock()
	held = true
	mu.Unlock()
	_, err = c.Lookup(ctx, &skep.LookupRequest{Keys: ch.Keys})
	require.ErrorIs(t, err, skep.Deadline)
	for range 3 {
		found, err := c.Lookup(t.Context(), &skep.LookupRequest{Keys: ch.Keys})
		require.NoError(t, err)
		require.Equal(t, 1, found.Blocks)
	}
	require.True(t, x.alive(), "on the same connection")
	require.NoError(t, c.Close())
}

// An answer that is longer than the buffer is the reader's, and so are chunks that come meanwhile.
func TestALongAnswerIsTheReaders(t *testing.T) {
	t.Parallel()
	const blocks = 2 * link.ReadBuffer
	long := false
	o := scripted(t, func(c *rawConn, h frames.Header, _ []byte) {
		if h.Type != frames.TypeLookup {
			return
		}
		if !long {
			c.send(t, frames.Header{Type: frames.TypeLookup | frames.Answer, Call: h.Call},
				&frames.LookupResult{Blocks: 1, Tiers: []byte{1}}, "")
			return
		}
		// Of a session that has ended: read and dropped.
		c.send(t, frames.Header{Type: frames.TypeChunks, Call: 1}, &frames.Chunks{},
			string(make([]byte, 3*link.ReadBuffer)))
		c.send(t, frames.Header{Type: frames.TypeLookup | frames.Answer, Call: h.Call},
			&frames.LookupResult{Blocks: blocks, Tiers: make([]byte, blocks)}, "")
	})
	c, err := Dial(t.Context(), o)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	readsOwn(t, c, skep.Chain{Keys: make([]skep.Key, 1)})
	long = true
	found, err := c.Lookup(t.Context(), &skep.LookupRequest{Keys: make([]skep.Key, blocks), Tiers: true})
	require.NoError(t, err)
	require.Len(t, found.Tiers, blocks)
}

// A connection that ends while its reader rests is given up without a call, and one that ends under a
// caller's read by the call.
func TestAConnectionThatEndsWhileTheReaderRests(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	p := newProxy(t, r.addr)
	ch := chainOf(t, r.dial(t, r.options()), "t", 2)
	c, err := Dial(t.Context(), patient(p.addr))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	x := readsOwn(t, c, ch)
	p.cut()
	require.Eventually(t, func() bool { return !x.alive() }, time.Minute, time.Millisecond)
	for range 20 {
		readsOwn(t, c, ch)
		cut := make(chan struct{})
		go func() {
			p.cut()
			close(cut)
		}()
		found, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
		require.NoError(t, err)
		require.Equal(t, 2, found.Blocks, "asked again on another connection")
		<-cut
	}
}

// Whoever ends its call while a connection is made for it is told so, by each call: nothing was wrong with the server.
func TestACallThatEndsWhileItsConnectionIsMade(t *testing.T) {
	t.Parallel()
	o := scripted(t, func(c *rawConn, h frames.Header, _ []byte) {
		c.send(t, frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, &frames.Number{N: 1}, "")
	})
	o.Conns = 2
	real := o.Addr
	var silent atomic.Bool
	o.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		if !silent.Load() {
			return new(net.Dialer).DialContext(ctx, network, real)
		}
		ours, theirs := net.Pipe()
		t.Cleanup(func() { theirs.Close() })
		return ours, nil
	}
	c, err := Dial(t.Context(), o)
	require.NoError(t, err)
	defer c.Close()
	silent.Store(true)
	ended := 0
	for range 2 * 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := c.Begin(ctx, &skep.BeginRequest{Scope: skep.Scope{Namespace: 1}, Key: skep.Key{1},
			Manifest: skep.Manifest{{Name: "kv", Size: 1}}})
		cancel()
		if err != nil {
			require.Equal(t, skep.Deadline, skep.KindOf(err), "%v", err)
			ended++
		}
	}
	require.GreaterOrEqual(t, ended, 50)
}
