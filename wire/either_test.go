package wire

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// layered is a Store that restores what may go either way by layers.
type layered struct{ skep.Store }

func (l *layered) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	down := *r
	down.Chains = append([]skep.Chain(nil), r.Chains...)
	for i := range down.Chains {
		if down.Chains[i].Direction == skep.Auto {
			down.Chains[i].Direction = skep.LayersDown
		}
	}
	return l.Store.Restore(ctx, &down)
}

// silent is a Store whose sessions do not say by which way they go.
type silent struct{ skep.Store }

func (s *silent) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	ses, err := s.Store.Restore(ctx, r)
	return silentSession{ses}, err
}

type silentSession struct{ skep.Session }

func (silentSession) Direction(ctx context.Context, chain int) (skep.Direction, error) {
	return skep.UnsupportedSession{}.Direction(ctx, chain)
}

var deep = skep.Shape{Kind: skep.Attention, Layers: 4, KVHeads: 1, HeadDim: 512, Element: skep.BF16, BlockTokens: 4}

// deepChain puts n blocks of 4 layers of 8 KiB.
func deepChain(t *testing.T, st skep.Store, n int) skep.Chain {
	t.Helper()
	ns, err := st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: t.Name(), Model: "m", Shape: deep, Chained: true})
	require.NoError(t, err)
	c := skep.Chain{Scope: skep.Scope{Namespace: ns.ID}, Direction: skep.Auto, Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}}}
	req := &skep.PutRequest{Scope: c.Scope}
	var parent *skep.Key
	for i := range n {
		k := skep.ChainKey(parent, []uint32{uint32(i)})
		c.Keys, parent = append(c.Keys, k), &k
		req.Blocks = append(req.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: storetest.Payload(k, skep.PartKV, 32<<10)}}})
	}
	_, err = st.Put(t.Context(), req)
	require.NoError(t, err)
	return c
}

// A chain goes by the way that the Store behind chose, through the socket and through shared memory, whether the client asks
// before anything has come or sees it by the first chunk.
func TestEitherWayAsTheStoreBehindChooses(t *testing.T) {
	t.Parallel()
	const n = 16
	for name, way := range map[string]skep.Direction{"by layers": skep.LayersDown, "by tokens": skep.TailFirst} {
		for _, shared := range []int64{0, 4 << 20} {
			for _, asks := range []bool{true, false} {
				t.Run(name, func(t *testing.T) {
					var st skep.Store = newMemstore(storetest.Config{})
					if way.ByLayer() {
						st = &layered{st}
					}
					r := serve(t, "unix", st, server.Options{})
					o := r.options()
					o.SharedMemory = shared
					c := r.dial(t, o)
					ch := deepChain(t, c, n)
					if shared > 0 {
						mem, err := c.Alloc(t.Context(), n*32<<10)
						require.NoError(t, err)
						defer mem.Release()
						ch.Dest = skep.Destination{Memory: mem.Bytes(), Stride: 32 << 10}
					}
					s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
					require.NoError(t, err)
					if asks {
						d, err := s.Direction(t.Context(), 0)
						require.NoError(t, err)
						require.Equal(t, way, d)
					}
					want := n
					if way.ByLayer() {
						want *= deep.Layers
					}
					seen := map[[2]int]bool{}
					for _, x := range collect(t, s) {
						require.NoError(t, x.Err)
						require.Equal(t, way.ByLayer(), x.Layers.Len() == 1)
						require.False(t, seen[[2]int{x.Block, x.Layers.From}])
						seen[[2]int{x.Block, x.Layers.From}] = true
						all := storetest.Payload(ch.Keys[x.Block], skep.PartKV, 32<<10)
						if shared == 0 {
							require.Equal(t, all[x.Layers.From*8<<10:x.Layers.To*8<<10], x.Data[0])
						} else {
							at := ch.Dest.Memory[x.Block*32<<10:]
							require.Equal(t, all[x.Layers.From*8<<10:x.Layers.To*8<<10], at[x.Layers.From*8<<10:x.Layers.To*8<<10])
						}
						x.Release()
					}
					require.Len(t, seen, want)
					d, err := s.Direction(t.Context(), 0)
					require.NoError(t, err)
					require.Equal(t, way, d)
					require.NoError(t, s.Close(t.Context()))
				})
			}
		}
	}
}

// A server that does not know of either way is asked for the way that every chain can go; one whose Store does not say which is
// Unsupported, and the chunks say it.
func TestEitherWayOfServersThatDoNotSay(t *testing.T) {
	t.Parallel()
	st := &listening{newMemstore(storetest.Config{}), make(chan skep.RestoreRequest, 8)}
	r := serve(t, "unix", st, server.Options{})
	o := r.options()
	o.Conns = 1
	c := r.dial(t, o)
	ch := deepChain(t, c, 8)
	x, err := c.conn(t.Context(), 0)
	require.NoError(t, err)
	x.hi.Features &^= frames.FeatureEither // as if the Welcome had said so
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	heard := <-st.heard
	require.Equal(t, skep.TailFirst, heard.Chains[0].Direction)
	d, err := s.Direction(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, skep.TailFirst, d)
	require.NoError(t, s.Close(t.Context()))

	r = serve(t, "unix", &silent{&layered{newMemstore(storetest.Config{})}}, server.Options{})
	c = r.dial(t, r.options())
	ch = deepChain(t, c, 8)
	ch.Keys = append(ch.Keys, skep.KeyOf([]byte("not there")))
	s, err = c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}, Window: 1})
	require.NoError(t, err)
	if _, err = s.Direction(t.Context(), 0); err != nil { // unless the first chunk was quicker
		require.ErrorIs(t, err, skep.Unsupported)
	}
	came := 0
	each(t, s, func(x *skep.Chunk) {
		require.Equal(t, x.Block == 8, x.Err != nil, x.Err)
		x.Release() // the window holds one
		came++
	})
	require.Equal(t, 9*deep.Layers, came)
	d, err = s.Direction(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, skep.LayersDown, d)
	require.NoError(t, s.Close(t.Context()))
}

// What was lost on the way is missed by the way that is known, and nothing is left open.
func TestEitherWayWhenTheServerIsLost(t *testing.T) {
	t.Parallel()
	for _, asks := range []bool{true, false} {
		r := serve(t, "unix", &layered{newMemstore(storetest.Config{})}, server.Options{})
		c := r.dial(t, r.options())
		ch := deepChain(t, c, 64)
		s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}, Window: 64 << 10})
		require.NoError(t, err)
		if asks {
			d, err := s.Direction(t.Context(), 0)
			require.NoError(t, err)
			require.Equal(t, skep.LayersDown, d)
		}
		require.NoError(t, c.Close())
		_, err = s.Direction(t.Context(), 0)
		if asks {
			require.NoError(t, err)
		}
		require.NoError(t, s.Close(t.Context()))
	}
}
