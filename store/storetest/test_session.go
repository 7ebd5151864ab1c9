package storetest

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func testSession(t *testing.T, open Open) {
	e := start(t, open, Config{})
	begin := func(e *env, chains ...skep.Chain) skep.Session {
		s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: chains})
		require.NoError(e, err)
		e.Cleanup(func() { _ = s.Close(e.ctx) })
		return s
	}
	e.run("io.EOF stays io.EOF", func(e *env) {
		c := e.chain(e.space(hnd), 2).put(0, 2)
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys})
		require.Len(e, e.drain(s), 2)
		_, err := s.Next(e.ctx, make([]skep.Chunk, 1))
		require.ErrorIs(e, err, io.EOF)
		require.NoError(e, s.Stop(e.ctx, -1), "there is nothing left to stop")
		require.NoError(e, s.Close(e.ctx))
	})
	e.run("cancelling ends the wait and not the session", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(0, 3)
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys})
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		// A Store that has chunks at hand may hand them out all the same.
		got := map[place]piece{}
		into := make([]skep.Chunk, 1)
		if n, err := s.Next(ctx, into); err != nil {
			require.ErrorIs(e, err, context.Canceled)
			require.Zero(e, n)
		} else {
			e.keep(got, &into[0])
		}
		for at, p := range e.drain(s) {
			got[at] = p
		}
		require.Len(e, got, 3)
		for at, p := range got {
			require.NoError(e, p.Err)
			require.Equal(e, c.payload(at.block), p.bytes)
		}
	})
	e.run("closing a session nobody read", func(e *env) {
		c := e.chain(e.space(pages4K), 8).put(0, 8)
		mem := make([]byte, 8*c.size())
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Dest: skep.Destination{Memory: mem}})
		require.NoError(e, s.Close(e.ctx))
		copy(mem, poison(len(mem)))
		require.NoError(e, s.Close(e.ctx), "closing again is not an error")
		c.check(0, 8)
		c.requireSame(poison(len(mem)), mem, "after Close")
	})
	e.run("calls on a closed session", func(e *env) {
		c := e.chain(e.space(hnd), 1).put(0, 1)
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys})
		require.NoError(e, s.Close(e.ctx))
		_, err := s.Next(e.ctx, make([]skep.Chunk, 1))
		requireKind(e, skep.Closed, err)
		_, err = s.Claim(e.ctx, 0, skep.All, skep.Idle)
		requireKind(e, skep.Closed, err)
		requireKind(e, skep.Closed, s.Reprioritise(e.ctx, 0, 1, time.Time{}))
	})
	e.run("no byte is written after Stop has returned", func(e *env) {
		c := e.chain(e.space(pages4K), 16).put(0, 16)
		for read := range 4 {
			mem := make([]byte, 16*c.size())
			s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys, Direction: directions[read], Dest: skep.Destination{Memory: mem}})
			got := map[place]piece{}
			into := make([]skep.Chunk, read+1)
			n, err := s.Next(e.ctx, into)
			require.NoError(e, err)
			for i := range into[:n] {
				e.keep(got, &into[i])
			}
			require.NoError(e, s.Stop(e.ctx, 0))
			kept := append([]byte(nil), mem...)
			copy(mem, poison(len(mem)))
			require.NoError(e, s.Stop(e.ctx, 0), "stopping again is not an error")
			for at, p := range e.drain(s) {
				require.NotContains(e, got, at, "delivered once")
				got[at] = p
			}
			require.Len(e, got, len(selection{}.places(pages4K, 16, directions[read])))
			size := c.size()
			for at, p := range got {
				if p.Err != nil {
					requireKind(e, skep.Stopped, p.Err)
					continue
				}
				mask := asked(pages4K, at.layers, skep.All)
				require.Equal(e, pick(c.payload(at.block), mask), pick(kept[at.block*size:][:size], mask), "what landed before")
			}
			require.NoError(e, s.Close(e.ctx))
			c.requireSame(poison(len(mem)), mem, "after Stop")
		}
	})
	e.run("stopping one chain leaves the others", func(e *env) {
		n := e.space(hnd)
		a, b := e.chain(n, 6).put(0, 6), e.chain(n, 6).put(0, 6)
		s := begin(e, skep.Chain{Scope: a.scope, Keys: a.keys}, skep.Chain{Scope: b.scope, Keys: b.keys})
		require.NoError(e, s.Stop(e.ctx, 0))
		_, err := s.Claim(e.ctx, 0, skep.All, skep.Idle)
		requireKind(e, skep.Stopped, err)
		requireKind(e, skep.Stopped, s.Reprioritise(e.ctx, 0, 1, time.Time{}))
		got := e.drain(s)
		require.Len(e, got, 12)
		for at, p := range got {
			if at.chain == 0 && p.Err != nil {
				requireKind(e, skep.Stopped, p.Err)
				continue
			}
			require.NoError(e, p.Err)
			require.Equal(e, []*chain{a, b}[at.chain].payload(at.block), p.bytes)
		}
	})
	e.run("stopping all", func(e *env) {
		c := e.chain(e.space(hnd), 4).put(0, 4)
		one := skep.Chain{Scope: c.scope, Keys: c.keys}
		s := begin(e, one, one)
		require.NoError(e, s.Stop(e.ctx, -1))
		got := e.drain(s)
		require.Len(e, got, 8)
		for _, p := range got {
			if p.Err != nil {
				requireKind(e, skep.Stopped, p.Err)
			}
		}
	})
	e.run("a session goes on while its blocks are deleted", func(e *env) {
		c := e.chain(e.space(hnd), 8).put(0, 8)
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys})
		_, err := e.st.Delete(e.ctx, c.scope, c.keys)
		require.NoError(e, err)
		got := e.drain(s)
		require.Len(e, got, 8)
		for at, p := range got {
			if p.Err != nil {
				requireGone(e, p.Err)
			} else {
				require.Equal(e, c.payload(at.block), p.bytes)
			}
		}
	})
	e.run("a new priority and a new deadline", func(e *env) {
		c := e.chain(e.space(hnd), 6).put(0, 6)
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys})
		require.NoError(e, s.Reprioritise(e.ctx, 0, 7, time.Now().Add(patience)))
		require.NoError(e, s.Reprioritise(e.ctx, 0, -7, time.Time{}))
		for _, p := range e.drain(s) {
			require.NoError(e, p.Err)
		}
		s = begin(e, skep.Chain{Scope: c.scope, Keys: c.keys})
		require.NoError(e, s.Reprioritise(e.ctx, 0, 0, time.Now().Add(-time.Minute)))
		got := e.drain(s)
		require.Len(e, got, 6)
		for at, p := range got {
			if p.Err != nil {
				requireKind(e, skep.Deadline, p.Err)
			} else {
				require.Equal(e, c.payload(at.block), p.bytes, "was on its way")
			}
		}
	})
	e.run("lent bytes stay until they are released", func(e *env) {
		c := e.chain(e.space(hnd), 4).put(0, 4)
		s := begin(e, skep.Chain{Scope: c.scope, Keys: c.keys})
		var held []skep.Chunk
		for {
			into := make([]skep.Chunk, 1)
			_, err := s.Next(e.ctx, into)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(e, err)
			held = append(held, into[0])
		}
		_, err := e.st.Delete(e.ctx, c.scope, c.keys)
		require.NoError(e, err)
		for i := range held {
			var b []byte
			for _, d := range held[i].Data {
				b = append(b, d...)
			}
			require.Equal(e, c.payload(held[i].Block), b)
			held[i].Release()
			held[i].Release()
			require.Nil(e, held[i].Free)
		}
	})
}

func testClaim(t *testing.T, open Open) {
	e := start(t, open, Config{})
	const n = 16
	// Positions are tokens in the block directions and layers in the others.
	for _, d := range directions {
		e.run("what is granted is not loaded, what is not is: "+d.String(), func(e *env) {
			shape := hnd
			shape.Layers = 8
			c := e.chain(e.space(shape), n).put(0, n)
			per, end := shape.BlockTokens, n*shape.BlockTokens
			if d.ByLayer() {
				per, end = 1, shape.Layers
			}
			for _, ask := range []skep.Subset{skep.All, skep.Only(0, per), skep.Only(2*per, 5*per), skep.Only(end-per, end)} {
				mem := make([]byte, n*c.size())
				s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{
					Scope: c.scope, Keys: c.keys, Direction: d,
					Dest: skep.Destination{Memory: mem, Stride: int64(c.size())},
				}}})
				require.NoError(e, err)
				cl, err := s.Claim(e.ctx, 0, ask, skep.Idle)
				require.NoError(e, err)
				whole, _ := ask.In(end)
				g := cl.Granted
				require.Equal(e, whole.From, g.From, "the leading part of what was asked for")
				require.LessOrEqual(e, g.From, g.To)
				require.LessOrEqual(e, g.To, whole.To)
				require.Zero(e, g.To%per, "whole blocks are granted here")
				require.GreaterOrEqual(e, cl.Next, g.To)
				require.LessOrEqual(e, cl.Next, end)
				got := e.drain(s)
				require.NoError(e, s.Close(e.ctx))
				require.Len(e, got, len(selection{}.places(shape, n, d)))
				for at, p := range got {
					pos := at.block * per
					if d.ByLayer() {
						pos = at.layers.From
					}
					if pos >= g.From && pos < g.To {
						requireKind(e, skep.Claimed, p.Err)
						continue
					}
					require.NoError(e, p.Err)
					mask := asked(shape, at.layers, skep.All)
					require.Equal(e, pick(c.payload(at.block), mask), pick(mem[at.block*c.size():][:c.size()], mask))
				}
			}
		})
		e.run("of what has landed nothing is granted: "+d.String(), func(e *env) {
			c := e.chain(e.space(hnd), 3).put(0, 3)
			end := 3 * hnd.BlockTokens
			if d.ByLayer() {
				end = hnd.Layers
			}
			s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys, Direction: d}}})
			require.NoError(e, err)
			defer func() { require.NoError(e, s.Close(e.ctx)) }()
			e.drain(s)
			cl, err := s.Claim(e.ctx, 0, skep.All, skep.Idle)
			require.NoError(e, err)
			require.Zero(e, cl.Granted.Len())
			require.Equal(e, end, cl.Next, "the chain's end means done")
		})
	}
	e.run("of what is not stored everything is granted", func(e *env) {
		c := e.chain(e.space(hnd), 3)
		s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys}}})
		require.NoError(e, err)
		defer func() { require.NoError(e, s.Close(e.ctx)) }()
		e.drain(s)
		cl, err := s.Claim(e.ctx, 0, skep.All, skep.Idle)
		require.NoError(e, err)
		require.Equal(e, skep.Range{From: 0, To: 3 * hnd.BlockTokens}, cl.Granted)
	})
	e.run("a prefix computed block by block until it meets what was loaded", func(e *env) {
		c := e.chain(e.space(hnd), n).put(0, n)
		b, end := hnd.BlockTokens, n*hnd.BlockTokens
		s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys, Direction: skep.TailFirst}}})
		require.NoError(e, err)
		defer func() { require.NoError(e, s.Close(e.ctx)) }()
		computed, got := map[int]bool{}, map[place]piece{}
		for pos, into := 0, make([]skep.Chunk, 1); pos < end; {
			cl, err := s.Claim(e.ctx, 0, skep.Only(pos, pos+b), skep.Idle)
			require.NoError(e, err)
			for at := cl.Granted.From; at < cl.Granted.To; at += b {
				computed[at/b] = true
			}
			require.True(e, cl.Granted.Len() > 0 || cl.Next > pos, "every claim gets further")
			pos = cl.Next
			if _, err := s.Next(e.ctx, into); err == nil {
				e.keep(got, &into[0])
			} else {
				require.ErrorIs(e, err, io.EOF)
			}
		}
		for at, p := range e.drain(s) {
			require.NotContains(e, got, at)
			got[at] = p
		}
		require.Len(e, got, n)
		for at, p := range got {
			if computed[at.block] {
				requireKind(e, skep.Claimed, p.Err)
			} else {
				require.NoError(e, p.Err)
				require.Equal(e, c.payload(at.block), p.bytes)
			}
		}
	})
}
