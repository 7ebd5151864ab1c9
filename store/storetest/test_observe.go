package storetest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func testStats(t *testing.T, open Open) {
	e := start(t, open, Config{})
	e.run("what an empty store says", func(e *env) {
		s := e.stats()
		require.Zero(e, s.Blocks)
		require.Zero(e, s.BlockBytes)
		require.Zero(e, s.Leases)
		require.Equal(e, "ok", s.State)
		require.False(e, s.Opened.IsZero())
		require.NotZero(e, s.Epoch)
		_, err := json.Marshal(s)
		require.NoError(e, err)
	})
	e.run("what was done is counted", func(e *env) {
		was := e.stats()
		c := e.chain(e.space(hnd), 6).put(0, 4)
		size := int64(c.size())
		r := c.request(2, 4)
		r.Blocks[0].Parts[0].Bytes[0] ^= 1
		_, err := e.st.Put(e.ctx, r)
		require.NoError(e, err)
		require.Equal(e, 4, c.found())
		for _, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys}) {
			_ = p
		}
		now := e.stats()
		require.EqualValues(e, 4, now.Blocks-was.Blocks)
		require.Equal(e, 4*size, now.BlockBytes-was.BlockBytes)
		require.EqualValues(e, 4, now.PutBlocks-was.PutBlocks)
		require.Equal(e, 4*size, now.PutBytes-was.PutBytes)
		require.EqualValues(e, 2, now.PutExists-was.PutExists)
		require.EqualValues(e, 1, now.PutDiffers-was.PutDiffers)
		require.EqualValues(e, 1, now.Lookups-was.Lookups)
		require.EqualValues(e, 6, now.LookupKeys-was.LookupKeys)
		require.EqualValues(e, 4, now.LookupHits-was.LookupHits)
		require.EqualValues(e, 4, now.RestoredBlocks-was.RestoredBlocks)
		require.Equal(e, 4*size, now.RestoredBytes-was.RestoredBytes)
		require.Equal(e, 4*size, sum(now.RestoreTiers)-sum(was.RestoreTiers))
		require.EqualValues(e, 2, sum(now.RestoreMisses)-sum(was.RestoreMisses))
		require.Zero(e, now.BrokenPromises)
		require.Zero(e, now.Damaged)
	})
	e.run("hidden blocks are stored blocks", func(e *env) {
		was := e.stats()
		c := e.chain(e.space(hnd), 3).put(1, 3)
		require.EqualValues(e, 2, e.stats().Blocks-was.Blocks)
		_, err := e.st.Delete(e.ctx, c.scope, c.keys)
		require.NoError(e, err)
		require.Equal(e, was.Blocks, e.stats().Blocks)
		require.Equal(e, was.BlockBytes, e.stats().BlockBytes)
	})
	e.run("the caller's copy is the caller's", func(e *env) {
		s := e.stats()
		for _, m := range []map[string]int64{s.PutDeclined, s.RestoreTiers, s.RestoreMisses} {
			for k := range m {
				m[k] = -1
			}
		}
		for k, v := range e.stats().RestoreMisses {
			require.NotEqual(e, int64(-1), v, k)
		}
	})
}

func sum(m map[string]int64) (n int64) {
	for _, v := range m {
		n += v
	}
	return n
}

// reader follows a stream of events.
type reader struct {
	e    *env
	st   skep.EventStream
	last skep.Cursor
	into []skep.Event
	have []skep.Event
}

func (e *env) follow(from skep.Cursor, snapshot bool) *reader {
	e.Helper()
	st, err := e.st.Events(e.ctx, from, snapshot)
	require.NoError(e, err)
	e.Cleanup(func() { require.NoError(e, st.Close()) })
	return &reader{e: e, st: st, into: make([]skep.Event, 3)}
}

// next is the next event; the sequence must go on by one.
func (r *reader) next() skep.Event {
	r.e.Helper()
	if len(r.have) == 0 {
		n, err := r.st.Next(r.e.ctx, r.into)
		require.NoError(r.e, err)
		require.Positive(r.e, n)
		r.have = append(r.have, r.into[:n]...)
	}
	ev := r.have[0]
	r.have = r.have[1:]
	if ev.Kind != skep.EventStored && ev.Kind != skep.EventGap {
		if r.last.Epoch != 0 {
			require.Equal(r.e, skep.Cursor{Epoch: r.last.Epoch, Seq: r.last.Seq + 1}, ev.Cursor, "sequence numbers grow by one an event")
		}
	}
	r.last = ev.Cursor
	return ev
}

// until reads on to the first event of a kind in a namespace.
func (r *reader) until(kind skep.EventKind, n skep.NamespaceID) skep.Event {
	r.e.Helper()
	for {
		if ev := r.next(); ev.Kind == kind && ev.Namespace == n {
			return ev
		}
	}
}

func testEvents(t *testing.T, open Open) {
	e := start(t, open, Config{})
	t.Run("commits are told, with key, parent and depth", func(t *testing.T) {
		e := start(t, open, Config{ChainEvents: true})
		r := e.follow(skep.Cursor{}, false)
		c := e.chain(e.space(hnd), 3).put(0, 3)
		for i := range 3 {
			ev := r.until(skep.EventCommitted, c.n.ID)
			require.Equal(e, c.keys[i], ev.Key)
			require.Equal(e, i, ev.Depth)
			require.False(e, ev.Salted)
			require.False(e, ev.Time.IsZero())
			if i == 0 {
				require.Nil(e, ev.Parent)
			} else {
				require.Equal(e, c.keys[i-1], *ev.Parent)
			}
		}
	})
	e.run("a commit follows what was accepted", func(e *env) {
		r := e.follow(skep.Cursor{}, false)
		c := e.chain(e.space(hnd), 2)
		req := c.request(0, 2)
		req.Ack = skep.AckAccepted
		e.put(req)
		require.NoError(e, e.st.Flush(e.ctx))
		committed := map[skep.Key]bool{}
		for len(committed) < 2 {
			ev := r.next()
			require.False(e, ev.Kind == skep.EventAccepted && committed[ev.Key], "accepted after it was committed")
			if ev.Kind == skep.EventCommitted && ev.Namespace == c.n.ID {
				committed[ev.Key] = true
			}
		}
	})
	e.run("deletes, replacements and later writers are told", func(e *env) {
		c := e.chain(e.space(hnd), 2).put(0, 1)
		req := c.request(1, 2)
		req.Blocks[0].ValidTokens = 1
		e.put(req)
		r := e.follow(skep.Cursor{}, false)
		_, err := e.st.Delete(e.ctx, c.scope, c.keys[1:])
		require.NoError(e, err)
		require.Equal(e, c.keys[1], r.until(skep.EventDeleted, c.n.ID).Key)

		e.put(req)
		whole := e.chain(c.n, 2)
		whole.keys[0] = c.keys[0]
		req = whole.request(1, 2)
		req.Blocks[0].Replaces = &c.keys[1]
		e.put(req)
		require.Equal(e, c.keys[1], r.until(skep.EventDeleted, c.n.ID).Key)

		spec := specOf(free)
		spec.Chained = false
		u := e.chain(e.open(spec), 1).put(0, 1).put(0, 1)
		require.Equal(e, u.keys[0], r.until(skep.EventDeleted, u.n.ID).Key)
	})
	e.run("purges are told", func(e *env) {
		c := e.chain(e.space(hnd), 2).put(0, 2)
		r := e.follow(skep.Cursor{}, false)
		require.NoError(e, e.st.Purge(e.ctx, skep.Purge{Namespace: c.n.ID}))
		r.until(skep.EventPurged, c.n.ID)
	})
	e.run("a salted block does not show its key", func(e *env) {
		r := e.follow(skep.Cursor{}, false)
		c := e.chain(e.space(hnd), 2).salted("secret").put(0, 2)
		a, b := r.until(skep.EventCommitted, c.n.ID), r.until(skep.EventCommitted, c.n.ID)
		require.True(e, a.Salted)
		require.NotContains(e, c.keys, a.Key)
		require.NotContains(e, c.keys, b.Key)
		require.Equal(e, a.Key, *b.Parent, "the stored form of the parent")
	})
	e.run("a snapshot tells of every block stored, then follows", func(e *env) {
		c := e.chain(e.space(hnd), 5).put(0, 4)
		hidden := e.chain(c.n, 3).put(2, 3)
		stored := int(e.stats().Blocks)
		r := e.follow(skep.Cursor{}, true)
		c.put(4, 5)
		of := map[skep.Key]int{}
		for n := 0; ; n++ {
			ev := r.next()
			if ev.Kind != skep.EventStored {
				require.Equal(e, stored, n, "the snapshot comes first and is whole")
				require.Equal(e, skep.EventCommitted, ev.Kind)
				require.Equal(e, c.keys[4], ev.Key)
				break
			}
			if ev.Namespace == c.n.ID {
				of[ev.Key] = ev.Depth
			}
		}
		want := map[skep.Key]int{hidden.keys[2]: 2}
		for i, k := range c.keys[:4] {
			want[k] = i
		}
		require.Equal(e, want, of)
	})
	e.run("a reader goes on where another one was", func(e *env) {
		c := e.chain(e.space(hnd), 4)
		r := e.follow(skep.Cursor{}, false)
		c.put(0, 3)
		first := r.until(skep.EventCommitted, c.n.ID)
		second := r.until(skep.EventCommitted, c.n.ID)
		again := e.follow(second.Cursor, false)
		require.Equal(e, second.Cursor, again.next().Cursor, "a stream starts at its cursor")
		require.Equal(e, first.Epoch, e.stats().Epoch)
	})
	e.run("a place in another run of the store is a gap", func(e *env) {
		r := e.follow(skep.Cursor{Epoch: e.stats().Epoch ^ 1, Seq: 3}, false)
		c := e.chain(e.space(hnd), 1).put(0, 1)
		require.Equal(e, skep.EventGap, r.next().Kind)
		require.NotNil(e, c)
	})
	e.run("a closed stream is closed", func(e *env) {
		st, err := e.st.Events(e.ctx, skep.Cursor{}, false)
		require.NoError(e, err)
		require.NoError(e, st.Close())
		require.NoError(e, st.Close())
		_, err = st.Next(e.ctx, make([]skep.Event, 1))
		requireKind(e, skep.Closed, err)
	})
	e.run("closing a stream ends its wait", func(e *env) {
		st, err := e.st.Events(e.ctx, skep.Cursor{}, false)
		require.NoError(e, err)
		done, began := make(chan error), make(chan struct{})
		go func() {
			close(began)
			_, err := st.Next(e.ctx, make([]skep.Event, 1))
			done <- err
		}()
		<-began // most likely it waits now
		require.NoError(e, st.Close())
		requireKind(e, skep.Closed, <-done)
	})
}
