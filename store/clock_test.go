package store

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/storetest"
)

// The clock: the machine's is set by hours in both directions while a store works. What it
// promised for a while holds for that while, by the steady clock, and no longer.

// clockRig is a store under load whose steady clock stands until the test moves it, while the
// machine's clock steps.
type clockRig struct {
	*testing.T
	s      *Store
	sc     skep.Scope
	steady *testClock
	wall   *storetest.SteppingClock
	held   []skep.Key // put first, which load would evict
}

func newClockRig(t *testing.T) *clockRig {
	c := &clockRig{T: t, steady: &testClock{now: time.Unix(1_700_000_000, 0)}}
	c.wall = storetest.NewSteppingClock(testSeed(t), c.steady.get)
	c.s, _, _ = openRig(t, func(o *Options) {
		o.Clock, o.Wall = c.steady.get, c.wall.Read
	})
	t.Cleanup(func() { require.NoError(t, c.s.Close()) })
	c.sc = openSpace(t, c.s, "n", skep.Cache, 1, false)
	c.held = chainKeys(1, 12)
	requireOutcome(t, skep.Committed, putRun(t, c.s, c.sc, c.held, faultBlock))
	return c
}

// load puts twice what the store has room for.
func (c *clockRig) load(round int) {
	for i := range 60 {
		putRun(c, c.s, c.sc, chainKeys(1000*round+i, 12), faultBlock)
		c.s.index.Tick(c.s.options.Clock())
	}
}

func (c *clockRig) found() int { return len(present(c.T, c.s, c.sc, c.held)) }

// protected is how many of what was put first the cleaner must keep.
func (c *clockRig) protected() (n int) {
	ns, tg, err := c.s.names.Resolve("test", c.sc)
	require.NoError(c, err)
	for _, k := range c.held {
		if c.s.index.Protected(c.s.names.Fingerprint(ns.Instance, tg, k)) {
			n++
		}
	}
	return n
}

func TestClockStepsEndNoLease(t *testing.T) {
	t.Parallel()
	c := newClockRig(t)
	res, err := c.s.Lookup(testContext(t), &skep.LookupRequest{Scope: c.sc, Keys: c.held, Lease: skep.MaxLease})
	require.NoError(t, err)
	require.Equal(t, len(c.held), res.Blocks)
	require.False(t, res.LeaseDenied)
	for round := range 3 {
		c.load(1 + round)
		require.Equal(t, len(c.held), c.found(), "round %d: leased, and evicted", round)
	}
	require.Positive(t, c.wall.Steps())
	require.Positive(t, c.s.count.Evicted.Load(), "there was no load")
	_, err = c.s.Renew(testContext(t), res.Lease.ID, skep.MaxLease)
	require.NoError(t, err)

	c.steady.pass(skep.MaxLease + time.Second) // by now it is over, whatever the machine says
	_, err = c.s.Renew(testContext(t), res.Lease.ID, skep.MaxLease)
	requireKind(t, skep.LeaseExpired, err)
	c.s.index.Tick(c.s.options.Clock())
	require.Zero(t, c.protected(), "its lease is over, and it must be kept")
	leased, _ := c.s.index.Held(0)
	require.Zero(t, leased)
}

// A store that is told of no clock promises by the steady one, whatever the machine's shows.
func TestClockStepsByDefault(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	keys := chainKeys(1, 2)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	res, err := s.Lookup(testContext(t), &skep.LookupRequest{Scope: sc, Keys: keys, Lease: skep.MaxLease})
	require.NoError(t, err)
	for range 200 {
		s.index.Tick(s.options.Clock())
		_, err = s.Renew(testContext(t), res.Lease.ID, skep.MaxLease)
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
}

// The cleaner ends leases by the steady clock, too, every second, however far from it the machine's is.
func TestTheCleanerEndsLeasesByTheSteadyClock(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"the machine's is ahead": -1000 * time.Hour, "the machine's is behind": 1000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			steady := &testClock{now: time.Now().Add(off)}
			s, _, _ := openRig(t, func(o *Options) { o.Clock = steady.get })
			sc := openSpace(t, s, "n", skep.Cache, 1, false)
			keys := chainKeys(1, 4)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
			lease := func(d time.Duration, keys []skep.Key) (skep.LeaseID, int64) {
				before, _ := s.index.Held(0)
				res, err := s.Lookup(testContext(t), &skep.LookupRequest{Scope: sc, Keys: keys, Lease: d})
				require.NoError(t, err)
				after, _ := s.index.Held(0)
				require.Greater(t, after, before)
				return res.Lease.ID, after
			}
			id, long := lease(skep.MaxLease, keys[:2])
			lease(time.Second, keys)
			steady.pass(2 * time.Second)
			eventually(t, "the short one ends", func() bool { held, _ := s.index.Held(0); return held <= long })
			_, err := s.Renew(testContext(t), id, skep.MaxLease)
			require.NoError(t, err, "the long one ended with it")
			held, _ := s.index.Held(0)
			require.Equal(t, long, held)
			require.NoError(t, s.Close())
		})
	}
}

func TestClockStepsEndNoPin(t *testing.T) {
	t.Parallel()
	c := newClockRig(t)
	n, err := c.s.Hint(testContext(t), c.sc, c.held, skep.Hint{Pin: time.Hour})
	require.NoError(t, err)
	require.Equal(t, len(c.held), n)
	for round := range 3 {
		c.load(1 + round)
		require.Equal(t, len(c.held), c.found(), "round %d: pinned, and evicted", round)
	}
	c.steady.pass(time.Hour + time.Second)
	c.s.index.Tick(c.s.options.Clock())
	require.Zero(t, c.protected(), "its pin is over, and it must be kept")
	_, pinned := c.s.index.Held(0)
	require.Zero(t, pinned)
}

func TestClockStepsEndNoHint(t *testing.T) {
	t.Parallel()
	c := newClockRig(t)
	_, err := c.s.Hint(testContext(t), c.sc, c.held, skep.Hint{TTL: time.Hour})
	require.NoError(t, err)
	for range 200 {
		c.s.index.Tick(c.s.options.Clock())
		require.Equal(t, len(c.held), c.s.index.Stats().Hints)
	}
	c.steady.pass(time.Hour)
	c.s.index.Tick(c.s.options.Clock())
	require.Zero(t, c.s.index.Stats().Hints)
}

// Sessions and writers have deadlines by the process's own clock: one in which the machine's
// clock is set all the time ends none of them.
func TestClockStepsUnderSessions(t *testing.T) {
	t.Parallel()
	c := newClockRig(t)
	_, err := c.s.Hint(testContext(t), c.sc, c.held, skep.Hint{Pin: time.Hour})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				c.wall.Read()
				list, err := fetch(context.Background(), c.s, skep.Chain{Scope: c.sc, Keys: c.held, Deadline: time.Now().Add(hangs)})
				if err != nil {
					c.Error(err)
					return
				}
				for _, g := range list {
					if g.err != nil {
						c.Error(g.err)
					}
				}
			}
		})
	}
	wg.Wait()
}

// What is kept with a time to live goes by a time that never goes back, over restarts in which
// the machine's clock was set back neither, and that goes on by what passes.
func TestLastingNeverGoesBack(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"closed", "killed"} {
		t.Run(how, func(t *testing.T) {
			wall := &testClock{now: time.UnixMilli(1_700_000_000_000)}
			s, _, crash := crashRig(t, func(o *Options) { o.Wall, o.Clock = wall.get, wall.get })
			o := s.options
			require.Equal(t, wall.get().UnixMilli(), s.Lasting().UnixMilli())
			sc := openSpace(t, s, "n", skep.Durable, 1, false)
			keys := chainKeys(1, 2)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
			wall.pass(3 * time.Hour)
			_, err := s.Delete(testContext(t), sc, keys[:1])
			require.NoError(t, err)
			latest := s.Lasting()
			if how == "killed" {
				o = crash("killed")
			}
			require.NoError(t, s.Close())
			wall.pass(-5 * time.Hour)
			s, err = Open(context.Background(), o)
			require.NoError(t, err)
			require.False(t, s.Lasting().Before(latest), "%v after %v", s.Lasting(), latest)
			wall.pass(time.Minute)
			require.Equal(t, latest.Add(time.Minute).UnixMilli(), s.Lasting().UnixMilli())
			require.NoError(t, s.Close())

			wall.pass(400 * 24 * time.Hour) // right again, and later than all that was known
			s, err = Open(context.Background(), o)
			require.NoError(t, err)
			if how == "closed" {
				require.Equal(t, wall.get().UnixMilli(), s.Lasting().UnixMilli())
			}
			require.NoError(t, s.Close())
		})
	}
}

// The machine's clock is set back while the store is open. What the store notes is the time it lasted, not what the
// clock says: after a restart time goes on from there.
func TestLastingOfAStoreWhoseClockIsSetBack(t *testing.T) {
	t.Parallel()
	steady := &testClock{now: time.UnixMilli(1_700_000_000_000)}
	wall := &testClock{now: steady.now}
	s, _, o := openRig(t, func(o *Options) { o.Wall, o.Clock = wall.get, steady.get })
	steady.pass(3 * time.Hour)
	wall.pass(-5 * time.Hour)
	latest := s.Lasting()
	require.NoError(t, s.Close())

	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	require.False(t, s.Lasting().Before(latest), "%v after %v", s.Lasting(), latest)
	require.NoError(t, s.Close())
}

// An idle store notes the time, so that what expired while it was idle stays so after a kill.
func TestIdleStoreNotesTheTime(t *testing.T) {
	t.Parallel() // it waits
	clock := &testClock{now: time.UnixMilli(1_700_000_000_000)}
	s, _, _ := openRig(t, func(o *Options) { o.Clock = clock.get })
	ctx := testContext(t)
	for range 2 {
		clock.pass(2 * watermark.NotedEvery)
		eventually(t, "the time is noted", func() bool {
			root, err := s.catalog.Store(ctx)
			require.NoError(t, err)
			return root.Lasting == uint64(clock.get().UnixMilli())
		})
	}
	require.NoError(t, s.Close())
}
