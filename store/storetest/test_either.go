package storetest

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// testEither is of chains that go either way, by tokens or by layers. Which, is the Store's affair; that it says so, keeps to
// it, and is right by it, is not.
func testEither(t *testing.T, open Open) {
	e := start(t, open, Config{})
	cost := skep.RecomputeCost{Fixed: time.Millisecond, PerToken: time.Microsecond}
	deep := hnd
	deep.Layers = 8
	flat := hnd
	flat.Layers = 1
	const n = 12
	begin := func(e *env, ch skep.Chain) skep.Session {
		s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{ch}})
		require.NoError(e, err)
		e.Cleanup(func() { require.NoError(e, s.Close(e.ctx)) })
		return s
	}
	// way is by which way a chain goes that was asked for either way.
	way := func(e *env, s skep.Session) skep.Direction {
		got, err := s.Direction(e.ctx, 0)
		if errors.Is(err, skep.Unsupported) { // a connection to a Store that does not say
			e.Skip("nobody says which way here")
		}
		require.NoError(e, err)
		require.Contains(e, []skep.Direction{skep.TailFirst, skep.LayersDown}, got)
		again, err := s.Direction(e.ctx, 0)
		require.NoError(e, err)
		require.Equal(e, got, again)
		return got
	}
	e.run("refused without a cost", func(e *env) {
		c := e.chain(e.space(deep), 2).put(0, 2)
		_, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys, Direction: skep.Auto}}})
		requireKind(e, skep.Invalid, err)
	})
	e.run("other ways are as they were asked for", func(e *env) {
		c := e.chain(e.space(deep), 2).put(0, 2)
		for _, dir := range directions {
			s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: dir})
			got, err := s.Direction(e.ctx, 0)
			require.NoError(e, err)
			require.Equal(e, dir, got)
			for _, chain := range []int{-1, 1} {
				_, err = s.Direction(e.ctx, chain)
				requireKind(e, skep.Invalid, err)
			}
		}
	})
	for _, x := range []struct {
		what  string
		shape skep.Shape
		sel   selection
		with  skep.Compute
		way   skep.Direction // Auto: either
	}{
		{"several layers", deep, selection{}, skep.Compute{Cost: cost}, skep.Auto},
		{"of some of the layers", deep, selection{layers: skep.Only(2, 6)}, skep.Compute{Cost: cost}, skep.Auto},
		{"what is only loaded", deep, selection{}, skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}, LoadOnly: true}, skep.TailFirst},
		{"from a later block on", deep, selection{blocks: skep.Only(2, n)}, skep.Compute{Cost: cost}, skep.TailFirst},
		{"of one of the layers", deep, selection{layers: skep.Only(3, 4)}, skep.Compute{Cost: cost}, skep.TailFirst},
		{"one layer", flat, selection{}, skep.Compute{Cost: cost}, skep.TailFirst},
		{"no layers", fixed, selection{}, skep.Compute{Cost: cost}, skep.TailFirst},
	} {
		e.run(x.what+" all come by the way that was said", func(e *env) {
			c := e.chain(e.space(x.shape), n).put(0, n)
			s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: skep.Auto, Blocks: x.sel.blocks, Layers: x.sel.layers, Compute: &x.with})
			d := way(e, s)
			if x.way != skep.Auto {
				require.Equal(e, x.way, d)
			}
			c.requireMet(s, x.sel, d)
		})
	}
	e.run("memory is filled, whichever way", func(e *env) {
		c := e.chain(e.space(deep), n).put(0, n)
		mem, stride := poison(n*c.size()), int64(c.size())
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: skep.Auto, Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}},
			Dest: skep.Destination{Memory: mem, Stride: stride}})
		got := e.drain(s)
		d := skep.TailFirst
		for at := range got {
			if at.layers.Len() == 1 {
				d = skep.LayersDown
			}
		}
		require.Len(e, got, len(selection{}.places(deep, n, d)))
		for at, p := range got {
			require.NoError(e, p.Err, "%+v", at)
		}
		for i := range n {
			require.Equal(e, c.payload(i), mem[i*c.size():(i+1)*c.size()], "block %d", i)
		}
		was, err := s.Direction(e.ctx, 0)
		require.NoError(e, err, "it can be asked when all is there")
		require.Equal(e, d, was)
	})
	e.run("misses come by the way that was said", func(e *env) {
		c := e.chain(e.space(deep), n)
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: skep.Auto, Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}}})
		d := way(e, s)
		got := e.drain(s)
		require.Len(e, got, len(selection{}.places(deep, n, d)))
		for at, p := range got {
			require.Contains(e, selection{}.places(deep, n, d), at)
			requireKind(e, skep.NotFound, p.Err)
		}
	})
}

// requireMet computes the chain from its head, unit by unit of the way d, while the session loads it: what is
// granted is not loaded, what is loaded is right, and the chunks are those of that way.
func (c *chain) requireMet(s skep.Session, x selection, d skep.Direction) {
	e, shape := c.e, c.n.Shape
	e.Helper()
	blocks, _ := x.blocks.In(len(c.keys))
	unit, from, end := shape.BlockTokens, blocks.From*shape.BlockTokens, len(c.keys)*shape.BlockTokens
	if d.ByLayer() {
		layers, _ := x.layers.In(shape.Layers)
		unit, from, end = 1, layers.From, layers.To
	}
	computed, got := make([]bool, end), map[place]piece{}
	over := false
	for pos, into := from, make([]skep.Chunk, 1); pos < end; {
		cl, err := s.Claim(e.ctx, 0, skep.Only(pos, min(pos+unit, end)), skep.Idle)
		require.NoError(e, err)
		for i := cl.Granted.From; i < cl.Granted.To; i++ {
			computed[i] = true
		}
		if cl.Granted.Len() > 0 {
			require.NoError(e, s.Computed(e.ctx, 0, cl.Granted, 4*time.Microsecond, 0))
		}
		require.True(e, !over || cl.Next > pos, "once all was delivered every claim gets further")
		pos = cl.Next
		switch _, err := s.Next(e.ctx, into); {
		case err == nil:
			e.keep(got, &into[0])
		default:
			require.True(e, errors.Is(err, io.EOF), "%v", err)
			over = true
		}
	}
	for at, p := range e.drain(s) {
		require.NotContains(e, got, at)
		got[at] = p
	}
	want := x.places(shape, len(c.keys), d)
	require.Len(e, got, len(want))
	for at, p := range got {
		require.True(e, want[at], "%+v", at)
		pos := at.block * shape.BlockTokens
		if d.ByLayer() {
			pos = at.layers.From
		}
		if computed[pos] {
			requireKind(e, skep.Claimed, p.Err)
			continue
		}
		require.NoError(e, p.Err)
		want := c.payload(at.block)
		if shape.Kind != skep.Opaque {
			want = pick(want, asked(shape, at.layers, skep.All))
		}
		require.Equal(e, want, p.bytes)
	}
}
