package wire

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// ask sends a call and gives its answer, which must be an error.
func (c *rawConn) ask(t *testing.T, typ frames.Type, m frames.Message, payload string) frames.ErrorBody {
	t.Helper()
	c.send(t, frames.Header{Type: typ, Call: 1}, m, payload)
	h, body, err := c.next()
	require.NoError(t, err)
	require.Equal(t, frames.TypeError, h.Type)
	var e frames.ErrorBody
	require.NoError(t, frames.Decode(h.Type, body, &e))
	return e
}

// littleParts is a put of n empty parts: 28 bytes each on the way, several times that in memory.
func littleParts(n int) *frames.PutRequest {
	m := &frames.PutRequest{Blocks: []frames.PutBlock{{Parts: make([]frames.PutPart, n)}}}
	for i := range m.Blocks[0].Parts {
		m.Blocks[0].Parts[i].Sum = frames.SumCRC32
	}
	return m
}

// What would not fit the server's memory if it did nothing else is invalid, and says what is too
// large and how large it may be: to come back later would be to come back for ever.
func TestWhatNeverFitsIsInvalid(t *testing.T) {
	t.Parallel()
	const memory = 1 << 20
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Memory: memory, Body: 4 << 20, Payload: 4 << 20}})
	ch := chainOf(t, r.dial(t, r.options()), "t", 1)
	const large = 2 * memory
	whole := strings.Repeat("x", large)
	for name, c := range map[string]struct {
		typ     frames.Type
		m       frames.Message
		payload string
		field   string
	}{
		"a body": {frames.TypeLookup, &frames.LookupRequest{LookupRequest: skep.LookupRequest{Scope: ch.Scope,
			Keys: make([]skep.Key, memory/skep.KeySize)}}, "", "memory for the body in bytes"},
		"its lists": {frames.TypePut, littleParts(12_000), "", "memory for the body and its lists in bytes"},
		"a payload": {frames.TypePut, &frames.PutRequest{Scope: ch.Scope,
			Blocks: []frames.PutBlock{{Parts: []frames.PutPart{{Name: "kv", Size: large,
				Sum: frames.SumCRC32}}}}}, whole,
			"memory for the body, its lists and the payload in bytes"},
		"a write": {frames.TypeWrite, &frames.WriteRequest{Part: "state", Sum: frames.SumCRC32}, whole,
			"memory for the payload in bytes"},
		"a window": {frames.TypeRestore, &frames.RestoreRequest{Chains: []frames.RestoreChain{{Scope: ch.Scope,
			Keys: make([]skep.Key, 100)}}}, "", "memory for the body, its lists and a window in bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			x := rawDial(t, r.addr)
			x.hello(t, operator)
			if c.typ == frames.TypeWrite { // a block is its connection's
				x.send(t, frames.Header{Type: frames.TypeBegin, Call: 2},
					&frames.BeginRequest{BeginRequest: skep.BeginRequest{Scope: ch.Scope, Parent: &ch.Keys[0], Depth: 1,
						Key: skep.KeyOf([]byte("y")), Manifest: skep.Manifest{{Name: skep.PartKV, Size: blockSize}, {Name: "state", Size: large}}}}, "")
				h, body, err := x.next()
				require.NoError(t, err)
				require.Equal(t, frames.TypeBegin|frames.Answer, h.Type)
				var id frames.Number
				require.NoError(t, frames.Decode(h.Type, body, &id))
				c.m.(*frames.WriteRequest).Writer = id.N
			}
			e := x.ask(t, c.typ, c.m, c.payload)
			require.Equal(t, skep.Invalid, e.Kind)
			require.Zero(t, e.RetryAfter)
			require.Equal(t, c.field, e.Field)
			require.NotEmpty(t, e.Value)
			require.Equal(t, "at most 1048576", e.Limit)
			x.send(t, frames.Header{Type: frames.TypePing, Call: 3}, nil, "")
			h, _, err := x.next()
			require.NoError(t, err)
			require.Equal(t, frames.TypePing|frames.Answer, h.Type, "the connection goes on")
		})
	}
	require.Zero(t, r.Stats().Shed)
	require.Eventually(t, func() bool { return r.Stats().Memory == 0 }, time.Minute, time.Millisecond)
}

// What fits an idle server is told to come back while others hold the memory, and served after.
func TestWhatFitsLaterIsOverloaded(t *testing.T) {
	t.Parallel()
	const memory = 2 << 20
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Memory: memory, Body: 1 << 20,
		Stall: time.Hour}})
	ch := chainOf(t, r.dial(t, r.options()), "t", 1)
	x := rawDial(t, r.addr)
	x.hello(t, operator)
	var others []*rawConn
	for range 2 { // whose bodies are on their way, and held
		other := rawDial(t, r.addr)
		other.hello(t, operator)
		frame, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeLookup, Call: 1},
			&frames.LookupRequest{LookupRequest: skep.LookupRequest{Scope: ch.Scope, Keys: make([]skep.Key, 23_000)}})
		require.NoError(t, err)
		_, err = other.Write(frame[:1000])
		require.NoError(t, err)
		others = append(others, other)
	}
	require.Eventually(t, func() bool { return r.Stats().Memory > memory-650<<10 }, time.Minute, time.Millisecond)
	for name, c := range map[string]struct {
		typ frames.Type
		m   frames.Message
	}{
		"a body": {frames.TypeLookup, &frames.LookupRequest{LookupRequest: skep.LookupRequest{Scope: ch.Scope,
			Keys: make([]skep.Key, 10_000)}}},
		"its lists": {frames.TypePut, littleParts(6_000)},
		"a window": {frames.TypeRestore, &frames.RestoreRequest{Chains: []frames.RestoreChain{{Scope: ch.Scope,
			Keys: ch.Keys}}}},
	} {
		e := x.ask(t, c.typ, c.m, "")
		require.Equal(t, skep.Overloaded, e.Kind, name)
		require.Positive(t, e.RetryAfter, name)
	}
	for _, other := range others {
		require.NoError(t, other.Close())
	}
	require.Eventually(t, func() bool { return r.Stats().Memory == 0 }, time.Minute, time.Millisecond)
	x.send(t, frames.Header{Type: frames.TypeLookup, Call: 2},
		&frames.LookupRequest{LookupRequest: skep.LookupRequest{Scope: ch.Scope, Keys: make([]skep.Key, 10_000)}}, "")
	h, _, err := x.next()
	require.NoError(t, err)
	require.Equal(t, frames.TypeLookup|frames.Answer, h.Type)
	require.Eventually(t, func() bool { return r.Stats().Memory == 0 }, time.Minute, time.Millisecond)
}

// A client fills no frame that a server with little memory could never take.
func TestFramesFitTheServersMemory(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Memory: 1 << 20}})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "t", 32) // 2 MiB
	found, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys, Lease: skep.NoLease})
	require.NoError(t, err)
	require.Equal(t, len(ch.Keys), found.Blocks)
}
