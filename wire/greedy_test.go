package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/gate"
	"github.com/skepkv/skep/wire/server"
)

// A tenant that takes all it can get of what a server has is refused in the end, by the kind overloaded, and another
// finds enough of it. What was taken is there again when the tenant has gone.
func TestAGreedyTenantLeavesEnough(t *testing.T) {
	t.Parallel()
	const tokenC = "the third tenant's token"
	h, err := auth.TokenHash(tokenC)
	require.NoError(t, err)
	d := directory(t, auth.Credential{Name: "c", Tenant: "c", Rights: auth.All, TokenSHA256: h})
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Auth: d, Gate: gate.New(64, nil),
		Limits: server.Limits{Memory: 16 << 20, Calls: 1 << 12}})
	o := r.options()
	o.Token = tokenC
	other := r.dial(t, o) // a connection of it, which stays
	ch := chainOf(t, other, "c", 4)
	parent := skep.KeyOf([]byte("parent"))
	o.Token = tokenA
	ns, err := r.dial(t, o).OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "a", Name: "a", Shape: skep.Shape{BlockTokens: 16, Bytes: blockSize}, Chained: true})
	require.NoError(t, err)
	sc := skep.Scope{Namespace: ns.ID}

	for name, take := range map[string]func(x *rawConn, call uint64){
		"streams of events": func(x *rawConn, call uint64) {
			x.send(t, frames.Header{Type: frames.TypeEvents, Call: call}, &frames.EventsRequest{Snapshot: true}, "")
		},
		"sessions": func(x *rawConn, call uint64) {
			x.send(t, frames.Header{Type: frames.TypeRestore, Call: call},
				&frames.RestoreRequest{Chains: []frames.RestoreChain{{Scope: sc, Keys: make([]skep.Key, 100)}}}, "")
		},
		"open blocks": func(x *rawConn, call uint64) {
			x.send(t, frames.Header{Type: frames.TypeBegin, Call: call},
				&frames.BeginRequest{BeginRequest: skep.BeginRequest{Scope: sc, Parent: &parent, Depth: 1,
					Key:      skep.KeyOf([]byte{byte(call), byte(call >> 8)}),
					Manifest: skep.Manifest{{Name: "kv", Size: blockSize}}}}, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := rawDial(t, r.addr)
			x.hello(t, tokenA)
			var refused error
			for call := uint64(1); refused == nil; call++ {
				require.Less(t, call, uint64(1<<14))
				take(x, call)
				for answered := false; !answered; {
					h, body, err := x.next()
					require.NoError(t, err)
					if answered = h.Type == frames.TypeError || h.Type&frames.Answer != 0; h.Type == frames.TypeError {
						refused = errorIn(t, body)
					}
				}
			}
			require.ErrorIs(t, refused, skep.Overloaded)
			requireHits(t, other, ch)
			x.Close()
			require.Eventually(t, func() bool { return r.Stats().Memory == 0 }, time.Minute, time.Millisecond)
		})
	}

	t.Run("connections", func(t *testing.T) {
		for n := 0; ; n++ {
			require.Less(t, n, 64)
			x := rawDial(t, r.addr)
			x.send(t, frames.Header{Type: frames.TypeHello}, &frames.Hello{Min: 1, Max: 1, Token: tokenA,
				Client: [16]byte{byte(n), 1}}, "")
			h, body, err := x.next()
			require.NoError(t, err)
			if h.Type == frames.TypeError {
				require.ErrorIs(t, errorIn(t, body), skep.Overloaded)
				break
			}
		}
		o := r.options()
		o.Token, o.Conns = tokenC, 1
		requireHits(t, r.dial(t, o), ch)
	})
}

// A call number that is in use ends the connection; what the second call had been charged is given back.
func TestACallNumberTwice(t *testing.T) {
	t.Parallel()
	g := newGated()
	r := serve(t, "tcp", g, server.Options{})
	ch := chainOf(t, r.dial(t, r.options()), "t", 1)
	t.Cleanup(g.open)
	g.shut()
	x := rawDial(t, r.addr)
	x.hello(t, operator)
	put := &frames.PutRequest{Scope: ch.Scope, Blocks: []frames.PutBlock{{Key: skep.KeyOf([]byte("k")),
		Parts: []frames.PutPart{{Name: "kv", Sum: frames.SumCRC32}}}}}
	x.send(t, frames.Header{Type: frames.TypePut, Call: 7}, put, "")
	<-g.reached
	x.send(t, frames.Header{Type: frames.TypePut, Call: 7}, put, "")
	_, _, err := x.next()
	require.Error(t, err)
	g.open()
	require.Eventually(t, func() bool { return r.Stats().Memory == 0 }, time.Minute, time.Millisecond)
}

// A client opens more blocks than a connection may have, again and again. Each that is refused gives back what it was
// charged: when the client has gone nothing is held.
func TestARefusedBlockHoldsNothing(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Calls: 1}})
	ch := chainOf(t, r.dial(t, r.options()), "t", 1)
	x := rawDial(t, r.addr)
	x.hello(t, operator)
	const most = 16 // of a connection that may make one call at a time
	for call := range uint64(2 * most) {
		x.send(t, frames.Header{Type: frames.TypeBegin, Call: call + 1},
			&frames.BeginRequest{BeginRequest: skep.BeginRequest{
				Scope: ch.Scope, Parent: &ch.Keys[0], Depth: 1, Key: skep.KeyOf([]byte{byte(call)}),
				Manifest: skep.Manifest{{Name: skep.PartKV, Size: blockSize}},
			}}, "")
		h, body, err := x.next()
		require.NoError(t, err)
		if call < most {
			require.Equal(t, frames.TypeBegin|frames.Answer, h.Type, "block %d", call)
			continue
		}
		require.Equal(t, frames.TypeError, h.Type, "block %d", call)
		require.ErrorIs(t, errorIn(t, body), skep.Overloaded)
	}
	x.Close()
	require.Eventually(t, func() bool { return r.Stats().Memory == 0 }, time.Minute, time.Millisecond)
}
