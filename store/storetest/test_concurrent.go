package storetest

import (
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// testConcurrent: writers, readers, lookups, deletes and a reader of events at once,
// on the same chains. Every byte restored is checked, every lookup is of a prefix, and
// in the end, with nobody deleting, everything is there.
func testConcurrent(t *testing.T, open Open) {
	const workers, rounds, chains, length = 8, 30, 6, 12
	e := start(t, open, Config{})
	n := e.space(hnd)
	var all []*chain
	for i := range chains {
		c := e.chain(n, length)
		if i%2 == 1 {
			c = c.salted("s")
		}
		all = append(all, c)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	events, err := e.st.Events(e.ctx, skep.Cursor{}, true)
	require.NoError(e, err)
	var g, watching sync.WaitGroup
	watching.Go(func() {
		into := make([]skep.Event, 16)
		for {
			if _, err := events.Next(e.ctx, into); err != nil {
				if !errors.Is(err, skep.Closed) {
					e.Errorf("events: %v", err)
				}
				return
			}
		}
	})
	for w := range workers {
		g.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			for range rounds {
				c := all[rnd.IntN(chains)]
				if err := e.oneOf(rnd, c); err != nil {
					e.Errorf("worker %d: %v", w, err)
					return
				}
			}
		})
	}
	g.Wait()
	require.NoError(e, events.Close())
	watching.Wait()
	require.False(e, t.Failed())
	for _, c := range all {
		_, err := e.st.Put(e.ctx, c.request(0, length))
		require.NoError(e, err)
		require.Equal(e, length, c.found())
		c.check(0, length)
	}
	require.Zero(e, e.stats().Damaged)
}

// oneOf does one random thing with c. It returns errors: it does not run on the
// test's goroutine.
func (e *env) oneOf(rnd *rand.Rand, c *chain) error {
	from := rnd.IntN(len(c.keys))
	to := from + 1 + rnd.IntN(len(c.keys)-from)
	switch rnd.IntN(6) {
	case 0, 1:
		r := c.request(from, to)
		r.Ack = skep.Ack(rnd.IntN(2))
		res, err := e.st.Put(e.ctx, r)
		if err != nil {
			return err
		}
		for _, x := range res {
			if x.Differs || x.Outcome == skep.Declined {
				return errors.New("put: " + x.Outcome.String() + ", differs or declined")
			}
		}
	case 2:
		w, err := e.st.Begin(e.ctx, c.beginRequest(from))
		if err != nil {
			return err
		}
		p := c.payload(from)
		half := rnd.IntN(len(p))
		if err := w.Write(e.ctx, skep.PartKV, int64(half), p[half:]); err != nil {
			return err
		}
		if rnd.IntN(3) == 0 {
			return w.Abort(e.ctx)
		}
		if err := w.Write(e.ctx, skep.PartKV, 0, p[:half]); err != nil {
			return err
		}
		if _, err = w.Commit(e.ctx, skep.AckCommitted); err != nil {
			return err
		}
	case 3:
		if rnd.IntN(3) > 0 {
			return nil // fewer deletes than puts
		}
		_, err := e.st.Delete(e.ctx, c.scope, c.keys[from:to])
		return err
	default:
		found, err := e.st.Lookup(e.ctx, &skep.LookupRequest{Scope: c.scope, Keys: c.keys, Lease: time.Second})
		if err != nil || found.Blocks == 0 {
			return err
		}
		if found.Tokens != found.Blocks*c.n.Shape.BlockTokens {
			return errors.New("lookup: tokens and blocks do not agree")
		}
		if err := e.readSome(rnd, c, found); err != nil {
			return err
		}
		return e.st.Release(e.ctx, found.Lease.ID)
	}
	return nil
}

// readSome restores what was found into memory of its own, perhaps claims and stops,
// and checks what landed.
func (e *env) readSome(rnd *rand.Rand, c *chain, found skep.LookupResult) error {
	mem := make([]byte, found.Blocks*c.size())
	s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{
		Scope: c.scope, Keys: c.keys[:found.Blocks], Direction: skep.Direction(rnd.IntN(4)), Lease: found.Lease.ID,
		Dest: skep.Destination{Memory: mem, Stride: int64(c.size())},
	}}})
	if err != nil {
		return err
	}
	if rnd.IntN(4) == 0 {
		if _, err := s.Claim(e.ctx, 0, skep.Only(0, 1), skep.Idle); err != nil {
			return err
		}
	}
	if rnd.IntN(4) == 0 {
		if err := s.Stop(e.ctx, 0); err != nil {
			return err
		}
	}
	for into := make([]skep.Chunk, 4); ; {
		n, err := s.Next(e.ctx, into)
		if errors.Is(err, io.EOF) {
			return s.Close(e.ctx)
		}
		if err != nil {
			return err
		}
		for _, ch := range into[:n] {
			if ch.Err != nil {
				continue // deleted, claimed or stopped
			}
			mask := asked(c.n.Shape, ch.Layers, skep.All)
			got, want := mem[ch.Block*c.size():][:c.size()], c.payload(ch.Block)
			if string(pick(got, mask)) != string(pick(want, mask)) {
				return errors.New("wrong bytes")
			}
		}
	}
}
