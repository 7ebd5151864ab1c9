package wire

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// eachOf is a put of n blocks that each begin a chain.
func eachOf(t *testing.T, c *Client, n int) *skep.PutRequest {
	t.Helper()
	ch := chainOf(t, c, "t", 0)
	r := &skep.PutRequest{Scope: ch.Scope, Each: true}
	for i := range n {
		k := skep.KeyOf([]byte{byte(i), byte(i >> 8)})
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: storetest.Payload(k, skep.PartKV, blockSize)}}})
	}
	return r
}

// thereOf says which blocks of a put a Store has, each found by itself and with its bytes.
func thereOf(t *testing.T, st skep.Store, r *skep.PutRequest) (there []bool) {
	t.Helper()
	req := &skep.RestoreRequest{}
	for _, b := range r.Blocks {
		req.Chains = append(req.Chains, skep.Chain{Scope: r.Scope, Keys: []skep.Key{b.Key}})
	}
	there = make([]bool, len(r.Blocks))
	require.NoError(t, skep.Load(t.Context(), st, req, func(ch *skep.Chunk) error {
		if there[ch.Chain] = ch.Err == nil; ch.Err == nil {
			require.Equal(t, storetest.Payload(r.Blocks[ch.Chain].Key, skep.PartKV, blockSize), ch.AppendTo(nil))
		}
		return nil
	}))
	return there
}

func all(n int, yes bool) []bool {
	out := make([]bool, n)
	for i := range out {
		out[i] = yes
	}
	return out
}

// putsOf counts the puts that come to a Store.
type putsOf struct {
	skep.Store
	n atomic.Int64
}

func (p *putsOf) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	p.n.Add(1)
	return p.Store.Put(ctx, r)
}

// Many chains of one block go in one frame, and a server from before that frame is sent a put of each.
func TestChainsOfOneGoInOneFrame(t *testing.T) {
	t.Parallel()
	const n = 64
	for _, where := range []string{"unix", "tcp"} {
		for _, old := range []bool{false, true} {
			puts := &putsOf{Store: newMemstore(storetest.Config{})}
			r := serve(t, where, puts, server.Options{})
			o := r.options()
			if o.Conns = 1; where == "unix" {
				o.SharedMemory = 8 << 20
			}
			c := r.dial(t, o)
			req := eachOf(t, c, n)
			_, err := c.Put(t.Context(), &skep.PutRequest{Scope: req.Scope, Blocks: req.Blocks[7:8]})
			require.NoError(t, err)
			if old {
				x, err := c.conn(t.Context(), 0)
				require.NoError(t, err)
				x.hi.Features &^= frames.FeatureEach // as if the Welcome had said so
			}
			before := puts.n.Load()
			got, err := c.Put(t.Context(), req)
			require.NoError(t, err)
			for i, x := range got {
				want := skep.PutResult{Outcome: skep.Committed}
				if i == 7 {
					want.Outcome = skep.Exists
				}
				require.Equal(t, want, x, "block %d", i)
			}
			if old {
				require.EqualValues(t, n, puts.n.Load()-before)
			} else {
				require.EqualValues(t, 1, puts.n.Load()-before)
			}
			require.Equal(t, all(n, true), thereOf(t, r.st, req))
		}
	}
}

// What is more than a frame holds goes in several; a block that is more than one, part by part.
func TestChainsOfOneGoInSeveralFrames(t *testing.T) {
	t.Parallel()
	for limit, l := range map[string]server.Limits{"body": {Body: 64 << 10}, "payload": {Payload: 3 * blockSize}, "a block": {Payload: blockSize / 2}} {
		puts := &putsOf{Store: newMemstore(storetest.Config{})}
		r := serve(t, "tcp", puts, server.Options{Limits: l})
		c := r.dial(t, r.options())
		const n = 400
		req := eachOf(t, c, n)
		got, err := c.Put(t.Context(), req)
		require.NoError(t, err, limit)
		for _, x := range got {
			require.Equal(t, skep.PutResult{Outcome: skep.Committed}, x, limit)
		}
		require.Less(t, puts.n.Load(), int64(n/2), limit)
		require.Equal(t, all(n, true), thereOf(t, r.st, req), limit)
	}
}

// halfway is a Store that stores half of a put and then no more until it is closed.
type halfway struct {
	skep.Store
	half chan struct{}
}

func (h *halfway) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	if len(r.Blocks) < 2 {
		return h.Store.Put(ctx, r)
	}
	q := *r
	q.Blocks = r.Blocks[:len(r.Blocks)/2]
	_, err := h.Store.Put(ctx, &q)
	close(h.half)
	<-ctx.Done()
	return nil, errors.Join(err, ctx.Err())
}

// A connection ends in the middle of a put of chains of one: none is acknowledged, and each is whole or not there.
func TestAConnectionEndsAmongChainsOfOne(t *testing.T) {
	t.Parallel()
	h := &halfway{Store: newMemstore(storetest.Config{}), half: make(chan struct{})}
	r := serve(t, "tcp", h, server.Options{})
	p := newProxy(t, r.addr)
	o := r.options()
	o.Addr, o.Conns, o.Retries = p.addr, 1, -1
	c := r.dial(t, o)
	const n = 64
	req := eachOf(t, c, n)
	go func() {
		<-h.half
		p.cut()
	}()
	got, err := c.Put(t.Context(), req)
	require.ErrorIs(t, err, skep.Unavailable)
	require.Empty(t, got)
	require.Equal(t, append(all(n/2, true), all(n/2, false)...), thereOf(t, h.Store, req))
}
