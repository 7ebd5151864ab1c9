package storetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// beginRequest opens block i of c for writing.
func (c *chain) beginRequest(i int) *skep.BeginRequest {
	r := &skep.BeginRequest{
		Scope: c.scope, Key: c.keys[i],
		Manifest: skep.Manifest{{Name: skep.PartKV, Size: int64(c.size())}},
	}
	if c.n.Chained && i > 0 {
		r.Parent, r.Depth = &c.keys[i-1], i
	}
	return r
}

func (c *chain) begin(i int) skep.BlockWriter {
	c.e.Helper()
	w, err := c.e.st.Begin(c.e.ctx, c.beginRequest(i))
	require.NoError(c.e, err)
	return w
}

func testBlockWriter(t *testing.T, open Open) {
	e := start(t, open, Config{})
	e.run("a block is visible from its commit on", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		w := c.begin(0)
		require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, c.payload(0)))
		require.Zero(e, c.found())
		res, err := w.Commit(e.ctx, skep.AckCommitted)
		require.NoError(e, err)
		require.Equal(e, skep.PutResult{Outcome: skep.Committed}, res)
		require.Equal(e, 1, c.found())
		c.check(0, 1)
	})
	e.run("a block begun before a purge is not committed after it", func(e *env) {
		for _, salt := range []skep.Salt{"", "salt"} {
			c := e.chain(e.space(hnd), 1)
			c.scope.Salt = salt
			w := c.begin(0)
			require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, c.payload(0)))
			p := skep.Purge{Namespace: c.scope.Namespace}
			if salt != "" {
				p = skep.Purge{Salt: &c.scope}
			}
			require.NoError(e, e.st.Purge(e.ctx, p))
			_, err := w.Commit(e.ctx, skep.AckCommitted)
			requireKind(e, skep.NotFound, err)
			require.Zero(e, c.found())
			w = c.begin(0)
			require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, c.payload(0)))
			_, err = w.Commit(e.ctx, skep.AckCommitted)
			require.NoError(e, err)
			c.check(0, 1)
		}
	})
	e.run("accepted is readable", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		w := c.begin(0)
		require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, c.payload(0)))
		res, err := w.Commit(e.ctx, skep.AckAccepted)
		require.NoError(e, err)
		require.True(e, isStored(res))
		c.check(0, 1)
		require.NoError(e, e.st.Flush(e.ctx))
		c.check(0, 1)
	})
	e.run("ranges come in any order, from many writers, and their bytes are reused", func(e *env) {
		c := e.chain(e.space(pages4K), 1)
		w, p := c.begin(0), c.payload(0)
		const pieces = 16
		n := len(p) / pieces
		var g sync.WaitGroup
		for i := range pieces {
			g.Go(func() {
				at := (i*7 + 3) % pieces * n
				mine := append([]byte(nil), p[at:at+n]...)
				if err := w.Write(e.ctx, skep.PartKV, int64(at), mine); err != nil {
					e.Errorf("write at %d: %v", at, err)
				}
				copy(mine, poison(n))
			})
		}
		g.Wait()
		_, err := w.Commit(e.ctx, skep.AckCommitted)
		require.NoError(e, err)
		c.check(0, 1)
	})
	e.run("several parts", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		r := c.beginRequest(0)
		state := Payload(c.keys[0], "state", 999)
		r.Manifest = append(r.Manifest, skep.PartSpec{Name: "state", Size: 999}, skep.PartSpec{Name: "empty"})
		w, err := e.st.Begin(e.ctx, r)
		require.NoError(e, err)
		require.NoError(e, w.Write(e.ctx, "state", 0, state))
		_, err = w.Commit(e.ctx, skep.AckCommitted)
		requireKind(e, skep.Invalid, err, "kv is missing")
		require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, c.payload(0)))
		_, err = w.Commit(e.ctx, skep.AckCommitted)
		require.NoError(e, err)
		c.check(0, 1)
		for _, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Part: "state"}) {
			require.NoError(e, p.Err)
			require.Equal(e, state, p.bytes)
		}
	})
	e.run("a commit that lacks bytes is invalid and the writer stays open", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		w, p := c.begin(0), c.payload(0)
		third := len(p) / 3
		for _, next := range []struct{ step, from, to int }{
			{step: 0, from: third, to: 2 * third},       // all is missing, then the two ends
			{step: 1, from: 0, to: third - 1},           // then a byte before the middle, and the end
			{step: 2, from: 2*third + 1, to: len(p)},    // then a byte on either side of it
			{step: 3, from: 2 * third, to: 2*third + 1}, // then the byte before it
			{step: 4, from: third - 1, to: third},
		} {
			_, err := w.Commit(e.ctx, skep.AckCommitted)
			requireInvalid(e, err, "step %d", next.step)
			require.Zero(e, c.found())
			require.NoError(e, w.Write(e.ctx, skep.PartKV, int64(next.from), p[next.from:next.to]))
		}
		_, err := w.Commit(e.ctx, skep.AckCommitted)
		require.NoError(e, err)
		c.check(0, 1)
	})
	e.run("ranges neither overlap nor pass the part's end", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		w, p := c.begin(0), c.payload(0)
		n := int64(len(p))
		require.NoError(e, w.Write(e.ctx, skep.PartKV, 100, p[100:200]))
		bad := poison(len(p))
		for _, x := range []struct {
			name, part string
			off, n     int64
		}{
			{"the same again", skep.PartKV, 100, 100},
			{"its front", skep.PartKV, 50, 51},
			{"its back", skep.PartKV, 199, 10},
			{"within it", skep.PartKV, 150, 1},
			{"around it", skep.PartKV, 0, n},
			{"past the end", skep.PartKV, n - 1, 2},
			{"after the end", skep.PartKV, n + 1, 1},
			{"before the start", skep.PartKV, -1, 1},
			{"far away", skep.PartKV, 1 << 62, 10},
			{"of another part", "state", 0, 1},
		} {
			requireInvalid(e, w.Write(e.ctx, x.part, x.off, bad[:x.n]), x.name)
		}
		require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, p[:100]))
		require.NoError(e, w.Write(e.ctx, skep.PartKV, 200, p[200:]))
		_, err := w.Commit(e.ctx, skep.AckCommitted)
		require.NoError(e, err)
		c.check(0, 1)
	})
	e.run("an aborted block never was", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		w := c.begin(0)
		require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, c.payload(0)))
		require.NoError(e, w.Abort(e.ctx))
		require.NoError(e, w.Abort(e.ctx), "aborting again is not an error")
		requireKind(e, skep.Closed, w.Write(e.ctx, skep.PartKV, 0, c.payload(0)))
		_, err := w.Commit(e.ctx, skep.AckCommitted)
		requireKind(e, skep.Closed, err)
		require.Zero(e, c.found())
		c.put(0, 1)
		c.check(0, 1)
	})
	e.run("a committed writer is closed, and aborting it drops nothing", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		w := c.begin(0)
		require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, c.payload(0)))
		_, err := w.Commit(e.ctx, skep.AckCommitted)
		require.NoError(e, err)
		requireKind(e, skep.Closed, w.Write(e.ctx, skep.PartKV, 0, c.payload(0)))
		_, err = w.Commit(e.ctx, skep.AckCommitted)
		requireKind(e, skep.Closed, err)
		require.NoError(e, w.Abort(e.ctx))
		c.check(0, 1)
	})
	e.run("of two writers of one key the first to commit wins", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		a, b := c.begin(0), c.begin(0)
		require.NoError(e, a.Write(e.ctx, skep.PartKV, 0, poison(c.size())))
		require.NoError(e, b.Write(e.ctx, skep.PartKV, 0, c.payload(0)))
		_, err := b.Commit(e.ctx, skep.AckCommitted)
		require.NoError(e, err)
		res, err := a.Commit(e.ctx, skep.AckCommitted)
		require.NoError(e, err)
		require.Equal(e, skep.PutResult{Outcome: skep.Exists, Differs: true}, res)
		c.check(0, 1)
	})
	e.run("an open block is aborted when its time is up", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		r := c.beginRequest(0)
		r.Timeout = 20 * time.Millisecond
		w, err := e.st.Begin(e.ctx, r)
		require.NoError(e, err)
		Eventually(e, "its time is up", func() bool { // until then what was written is not written again
			err = w.Write(e.ctx, skep.PartKV, 0, c.payload(0))
			return errors.Is(err, skep.Closed)
		})
		_, err = w.Commit(e.ctx, skep.AckCommitted)
		requireKind(e, skep.Closed, err, "commit")
		require.NoError(e, w.Abort(e.ctx))
		require.Zero(e, c.found())
	})
	e.run("blocks of a chain, the tail first, with a partial tail and what it replaces", func(e *env) {
		n := e.space(hnd)
		c, tail := e.chain(n, 2), e.chain(n, 2)
		tail.keys[0] = c.keys[0]
		write := func(c *chain, i int, r *skep.BeginRequest) {
			w, err := e.st.Begin(e.ctx, r)
			require.NoError(e, err)
			require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, c.payload(i)))
			_, err = w.Commit(e.ctx, skep.AckCommitted)
			require.NoError(e, err)
		}
		r := tail.beginRequest(1)
		r.ValidTokens = 2
		write(tail, 1, r)
		require.Zero(e, tail.found())
		write(c, 0, c.beginRequest(0))
		require.Equal(e, hnd.BlockTokens+2, tail.lookup().Tokens)
		r = c.beginRequest(1)
		r.Replaces = &tail.keys[1]
		write(c, 1, r)
		require.Equal(e, 2, c.found())
		require.Equal(e, 1, tail.found())
	})
}
