package storetest

import (
	"errors"
	"io"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// testCompute is of chains that say what computing them costs. Where the two pointers meet is the
// Store's affair; that they meet is not.
func testCompute(t *testing.T, open Open) {
	e := start(t, open, Config{})
	slow := skep.RecomputeCost{PerToken: time.Second}
	fast := skep.RecomputeCost{PerToken: time.Microsecond}
	begin := func(e *env, ch skep.Chain) skep.Session {
		s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{ch}})
		require.NoError(e, err)
		e.Cleanup(func() { require.NoError(e, s.Close(e.ctx)) })
		return s
	}
	for _, x := range []struct {
		what string
		dir  skep.Direction
		with skep.Compute
	}{
		{"no cost", skep.TailFirst, skep.Compute{}},
		{"a negative cost", skep.TailFirst, skep.Compute{Cost: skep.RecomputeCost{PerToken: -1}}},
		{"a square that is no number", skep.TailFirst, skep.Compute{Cost: skep.RecomputeCost{PerTokenSquared: math.NaN()}}},
		{"a negative suffix", skep.LayersDown, skep.Compute{Cost: slow, Suffix: -1}},
		{"a negative weight", skep.TailFirst, skep.Compute{Cost: slow, Weight: -1}},
		{"from the head", skep.HeadFirst, skep.Compute{Cost: slow}},
		{"layers from the bottom", skep.LayersUp, skep.Compute{Cost: slow}},
	} {
		e.run("refused: "+x.what, func(e *env) {
			c := e.chain(e.space(hnd), 2)
			_, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys, Direction: x.dir, Compute: &x.with}}})
			requireKind(e, skep.Invalid, err)
		})
	}
	const n = 16
	for _, dir := range []skep.Direction{skep.TailFirst, skep.LayersDown} {
		e.run("what is computed is not loaded, what is loaded is right: "+dir.String(), func(e *env) {
			shape := hnd
			shape.Layers = 8
			c := e.chain(e.space(shape), n).put(0, n)
			c.requireMet(begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: dir, Compute: &skep.Compute{Cost: fast, Suffix: 32, Weight: 2}}), selection{}, dir)
		})
	}
	e.run("a load that pays is not declined", func(e *env) {
		c := e.chain(e.space(hnd), n).put(0, n)
		for at, p := range e.drain(begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: skep.TailFirst, Compute: &skep.Compute{Cost: slow, LoadOnly: true}})) {
			require.NoError(e, p.Err)
			require.Equal(e, c.payload(at.block), p.bytes)
		}
	})
	e.run("a prefetch goes on once it is wanted", func(e *env) {
		c := e.chain(e.space(hnd), n).put(0, n)
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: skep.TailFirst, Priority: -1,
			Compute: &skep.Compute{Cost: slow, LoadOnly: true, Background: true}})
		require.NoError(e, s.Reprioritise(e.ctx, 0, 1, time.Time{}))
		require.Len(e, e.drain(s), n)
	})
	e.run("of a chain without a cost nothing is planned", func(e *env) {
		c := e.chain(e.space(hnd), 2).put(0, 2)
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: skep.TailFirst})
		_, err := s.Claim(e.ctx, 0, skep.Only(0, 4), skep.Busy)
		require.NoError(e, err, "what else an engine has to do makes no difference")
		if err := s.ShareClaimWord(e.ctx, 0, new(atomic.Uint64)); !errors.Is(err, skep.Unsupported) { // no words here
			requireKind(e, skep.Invalid, err)
		}
		requireKind(e, skep.Invalid, s.Computed(e.ctx, 0, skep.Range{From: 0, To: 4}, time.Millisecond, 0))
		requireKind(e, skep.Invalid, s.Computed(e.ctx, 1, skep.Range{From: 0, To: 4}, time.Millisecond, 0))
	})
	e.run("an engine with other work asks again when something has landed", func(e *env) {
		c := e.chain(e.space(hnd), n).put(0, n)
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: skep.TailFirst, Compute: &skep.Compute{Cost: fast}})
		end, claimed, landed := n*hnd.BlockTokens, 0, 0
		load := skep.Busy
		for pos, into := 0, make([]skep.Chunk, 1); pos < end; {
			cl, err := s.Claim(e.ctx, 0, skep.Only(pos, end), load)
			require.NoError(e, err)
			claimed += cl.Granted.Len() / hnd.BlockTokens
			if load = skep.Busy; cl.Next == pos {
				load = skep.Idle
			}
			pos = cl.Next
			if cl.Granted.Len() > 0 {
				require.NoError(e, s.Computed(e.ctx, 0, cl.Granted, time.Microsecond, 0))
			}
			if _, err := s.Next(e.ctx, into); errors.Is(err, io.EOF) {
				continue
			}
			require.NoError(e, err)
			if into[0].Err == nil {
				landed++
			}
			into[0].Release()
		}
		for _, x := range e.drain(s) {
			if x.Err == nil {
				landed++
			}
		}
		require.Equal(e, n, claimed+landed)
	})
}
