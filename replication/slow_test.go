package replication

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/errand"
	"github.com/skepkv/skep/replication/pace"
	"github.com/skepkv/skep/replication/underway"
)

const ms = time.Millisecond

// slowly is a cluster of two copies in a bubble, whose nodes answer within a millisecond, and a chain that it has.
func slowly(t *testing.T, n int) (*rig, []skep.Key) {
	r := clusterOf(t, twice(3, 4), skep.Cache)
	r.judged()
	keys := chainOf(1, n)
	r.put(keys, 0, n)
	for _, x := range r.nodes {
		x.lag.Store(int64(ms))
	}
	for range 20 {
		require.Equal(t, n, r.find(keys, skep.NoLease).Blocks)
	}
	return r, keys
}

func (r *rig) hedged() skep.HedgeStats {
	st, err := r.Stats(r.Context())
	require.NoError(r, err)
	return st.Hedges
}

// A node that answers no lookups keeps nobody waiting for longer than is usual: what is its another one is asked for,
// and others are not even asked of it. The lease of an answer that comes late is given back. It is asked again when it
// answers quickly again.
func TestALookupDoesNotWaitForASlowNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 80
		r, keys := slowly(t, n)
		require.Zero(t, r.hedged())
		slow := r.nodes[1]
		slow.lag.Store(int64(10 * time.Second))
		began := time.Now()
		found := r.find(keys, time.Minute)
		require.Equal(t, n, found.Blocks)
		require.LessOrEqual(t, time.Since(began), 10*ms, "once it is late")
		h := r.hedged()
		require.Positive(t, h.Lookups)
		require.Equal(t, h.Lookups, h.LookupsWon)
		before := slow.runs.Load()
		for range 50 {
			began := time.Now()
			require.Equal(t, n, r.find(keys, skep.NoLease).Blocks)
			require.Equal(t, ms, time.Since(began), "others are not sent there")
		}
		require.Equal(t, before, slow.runs.Load())
		require.Equal(t, h, r.hedged())
		time.Sleep(time.Minute / 2)
		for i, err := range r.restore(keys, found.Lease.ID) {
			require.NoError(t, err, "block %d", i)
		}
		require.NoError(t, r.Release(t.Context(), found.Lease.ID))
		time.Sleep(time.Second)
		synctest.Wait()
		leases, _ := r.held()
		require.Zero(t, leases, "what came late is given back")

		slow.lag.Store(int64(ms))
		asked := func() bool { return slow.runs.Load() > before }
		for i := 0; !asked(); i++ {
			require.Less(t, i, 100, "it is quick again")
			time.Sleep(time.Second)
			r.find(keys, skep.NoLease)
		}
	})
}

// A part of a chain is found without a node that is slow, too.
func TestAPartIsFoundWithoutASlowNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, keys := slowly(t, 40)
		r.nodes[0].lag.Store(int64(10 * time.Second))
		for _, most := range []time.Duration{600 * ms, 50 * ms} { // it might have what others do not; and then it is known
			began := time.Now()
			for i, err := range r.restore(keys[22:30], 0) { // begins inside a group
				require.NoError(t, err, "block %d", i)
			}
			require.Less(t, time.Since(began), most)
		}
	})
}

// What a node has lost is found at the other one, although that is late.
func TestWhatALateNodeHasIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, keys := slowly(t, 40)
		_, err := r.nodes[1].Store.Delete(t.Context(), skep.Scope{Namespace: 1}, keys)
		require.NoError(t, err)
		for _, i := range []int{0, 2} {
			r.nodes[i].lag.Store(int64(300 * ms))
		}
		require.Equal(t, 40, r.find(keys, skep.NoLease).Blocks)
	})
}

// A lookup whose caller gives up leaves nothing behind.
func TestALookupThatIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, keys := slowly(t, 40)
		for _, x := range r.nodes {
			x.lag.Store(int64(time.Second))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*ms)
		defer cancel()
		_, err := r.Lookup(ctx, &skep.LookupRequest{Scope: r.scope(), Keys: keys, Lease: time.Minute})
		require.ErrorIs(t, err, skep.Deadline)
		time.Sleep(10 * time.Second)
		leases, _ := r.held()
		require.Zero(t, leases)
	})
}

// However many lookups there are at once, all are answered.
func TestManyLookupsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, keys := slowly(t, 40)
		var wait sync.WaitGroup
		for range 4 * errand.Most {
			wait.Go(func() {
				out, err := r.Lookup(t.Context(), &skep.LookupRequest{Scope: r.scope(), Keys: keys, Lease: skep.NoLease})
				assert.NoError(t, err)
				assert.Equal(t, 40, out.Blocks)
			})
		}
		wait.Wait()
	})
}

// Where all nodes are slow, a lookup waits for them.
func TestALookupOfASlowCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, keys := slowly(t, 80)
		for _, x := range r.nodes {
			x.lag.Store(int64(50 * ms))
		}
		for range 100 {
			require.Equal(t, 80, r.find(keys, skep.NoLease).Blocks)
		}
		asked := r.hedged().Lookups
		require.Less(t, asked, int64(60), "until it is usual")
		for range 100 {
			require.Equal(t, 80, r.find(keys, skep.NoLease).Blocks)
		}
		require.Equal(t, asked, r.hedged().Lookups)
	})
}

// stall is how a node restores that comes to a standstill.
type stall struct {
	after int           // chunks; from then on nothing comes
	stops time.Duration // how long a stop takes, until which the node may write

	mu       sync.Mutex
	sessions int
	stopped  int
}

func (s *stall) wrap(of skep.Session, r *skep.RestoreRequest) skep.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions++
	return &stalledSession{Session: of, s: s, r: r, left: s.after, over: make(chan struct{})}
}

type stalledSession struct {
	skep.Session
	s        *stall
	r        *skep.RestoreRequest
	stopping atomic.Bool
	over     chan struct{}

	mu   sync.Mutex
	left int
	gave map[[2]int]bool
}

func (s *stalledSession) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	s.mu.Lock()
	stalled := s.left == 0
	s.mu.Unlock()
	if stalled {
		<-s.over
	}
	n, err := s.Session.Next(ctx, into[:1])
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range into[:n] {
		ch := &into[i]
		if !stalled {
			s.left--
			if s.gave == nil {
				s.gave = map[[2]int]bool{}
			}
			s.gave[[2]int{ch.Chain, ch.Block}] = true
			continue
		}
		ch.Release()
		*ch = skep.Chunk{Chain: ch.Chain, Block: ch.Block, Layers: ch.Layers, Err: skep.Stopped}
	}
	return n, err
}

// Stop takes its time, and until it is over the node writes what nobody wants.
func (s *stalledSession) Stop(ctx context.Context, chain int) error {
	if s.stopping.Swap(true) {
		<-s.over
		return nil
	}
	<-time.After(s.s.stops)
	s.mu.Lock()
	for i := range s.r.Chains {
		c := &s.r.Chains[i]
		blocks, _ := c.Blocks.In(len(c.Keys))
		for b := blocks.From; b < blocks.To; b++ {
			if at := int64(b-blocks.From) * c.Dest.Stride; c.Dest.Memory != nil && !s.gave[[2]int{i, b}] {
				clear(c.Dest.Memory[at : at+300])
			}
		}
	}
	s.mu.Unlock()
	s.s.mu.Lock()
	s.s.stopped++
	s.s.mu.Unlock()
	close(s.over)
	return nil
}

// A run that comes to a standstill is loaded from another node, into the same memory, when the first node writes nothing
// there any more; and what follows is not even begun there.
func TestARestoreDoesNotWaitForANodeThatStalls(t *testing.T) {
	t.Parallel()
	for _, lent := range []bool{false, true} {
		for _, direction := range []skep.Direction{skep.HeadFirst, skep.TailFirst} {
			synctest.Test(t, func(t *testing.T) {
				const n = 4000
				r, keys := slowly(t, n)
				for range 10 {
					for i, err := range r.restore(keys, 0) {
						require.NoError(t, err, "block %d", i)
					}
				}
				found := r.find(keys, time.Minute)
				w := &writers{of: map[skep.Key]int{}}
				for _, x := range r.nodes {
					x.writers = w
				}
				s := &stall{after: 7, stops: 100 * ms}
				r.nodes[1].wrap = s.wrap
				before := r.hedged()
				began := time.Now()
				mem := make([]byte, n*300)
				chain := skep.Chain{Scope: r.scope(), Keys: keys, Lease: found.Lease.ID, Direction: direction}
				if !lent {
					chain.Dest = skep.Destination{Memory: mem, Stride: 300}
				}
				seen := map[int]bool{}
				err := skep.Load(t.Context(), r.Store, &skep.RestoreRequest{Chains: []skep.Chain{chain}}, func(ch *skep.Chunk) error {
					require.False(t, seen[ch.Block], "block %d twice", ch.Block)
					seen[ch.Block] = true
					got := mem[300*ch.Block : 300*ch.Block+300]
					if lent {
						got = ch.AppendTo(nil)
					}
					require.Equal(t, payload(keys[ch.Block]), got, "block %d", ch.Block)
					return ch.Err
				})
				require.NoError(t, err)
				require.Len(t, seen, n)
				if !lent {
					for i, k := range keys {
						require.Equal(t, payload(k), mem[300*i:300*i+300], "block %d, at the end", i)
					}
				}
				require.False(t, w.two, "two nodes at once wrote to one block")
				require.Less(t, time.Since(began), 400*ms)
				h := r.hedged()
				require.Equal(t, int64(s.sessions), h.Runs-before.Runs)
				require.LessOrEqual(t, s.sessions, underway.OfChain, "no more is begun there")
				require.Equal(t, s.sessions, s.stopped)
				require.Equal(t, h.Runs, h.RunsWon)
				require.NoError(t, r.Release(t.Context(), found.Lease.ID))
			})
		}
	}
}

// A node whose server writes to the caller's memory by itself, and that is late with its answer, is waited for until it
// has begun: a call that is given up leaves that memory in doubt, and then no other node could write there.
func TestALateNodeThatWritesByItselfIsHeardOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 4000
		r, keys := slowly(t, n)
		for range 10 {
			for i, err := range r.restore(keys, 0) {
				require.NoError(t, err, "block %d", i)
			}
		}
		gate := make(chan struct{})
		for _, x := range r.nodes {
			x.lends = true
		}
		r.nodes[1].gate = gate
		time.AfterFunc(300*ms, func() { close(gate) })
		mem := make([]byte, n*300)
		chain := skep.Chain{Scope: r.scope(), Keys: keys, Dest: skep.Destination{Memory: mem, Stride: 300}}
		err := skep.Load(t.Context(), r.Store, &skep.RestoreRequest{Chains: []skep.Chain{chain}}, func(ch *skep.Chunk) error {
			return ch.Err
		})
		require.NoError(t, err)
		for i, k := range keys {
			require.Equal(t, payload(k), mem[300*i:300*i+300], "block %d", i)
		}
	})
}

// A session whose restore was given up while a node's server may write to its destinations is not over: Stop and Close
// say so, as long as it is so.
func TestMemoryInDoubtIsNotGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 400
		r, keys := slowly(t, n)
		gate := make(chan struct{})
		defer close(gate)
		r.nodes[1].gate, r.nodes[1].lends = gate, true
		chain := skep.Chain{Scope: r.scope(), Keys: keys, Dest: skep.Destination{Memory: make([]byte, n*300), Stride: 300}}
		ses, err := r.Store.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{chain}})
		require.NoError(t, err)
		synctest.Wait() // node 1 is asked, and does not answer
		require.ErrorIs(t, ses.Stop(t.Context(), 0), skep.NotReleased)
		require.ErrorIs(t, ses.Close(t.Context()), skep.NotReleased)
		r.nodes[1].doubt.Store(false) // it has ended
		require.NoError(t, ses.Close(t.Context()))
	})
}

// steady is how a node restores that takes some time for each chunk.
type steady struct {
	skep.Session
	each time.Duration
	over chan struct{}
	once sync.Once
}

func every(d time.Duration) func(s skep.Session, r *skep.RestoreRequest) skep.Session {
	return func(s skep.Session, _ *skep.RestoreRequest) skep.Session {
		return &steady{Session: s, each: d, over: make(chan struct{})}
	}
}

func (s *steady) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	select {
	case <-time.After(s.each):
	case <-s.over:
	}
	return s.Session.Next(ctx, into[:1])
}

func (s *steady) Stop(ctx context.Context, chain int) error {
	s.once.Do(func() { close(s.over) })
	return s.Session.Stop(ctx, chain)
}

// A cluster that becomes slow as a whole is not made to restore everything twice: at most a twentieth, and a burst.
func TestASlowClusterRestoresOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 800
		r, keys := slowly(t, n)
		r.hedges.Bytes = pace.NewBucket(n*300/10, 20)
		for _, x := range r.nodes {
			x.wrap = every(ms)
		}
		restored := int64(0)
		whole := func() {
			for i, err := range r.restore(keys, 0) {
				require.NoError(t, err, "block %d", i)
			}
			restored += n * 300
		}
		for range 10 {
			whole()
		}
		require.Zero(t, r.hedged().Runs)
		for d := 100 * ms; d <= 800*ms; d *= 2 { // slower and slower, so that nothing is usual
			for _, x := range r.nodes {
				x.wrap = every(d)
			}
			whole()
		}
		h := r.hedged()
		require.Positive(t, h.Runs, "for all that is known the first of them is slow alone")
		require.LessOrEqual(t, h.Bytes, restored/20+n*300/10)
		for i, last := 0, int64(-1); last != r.hedged().Runs; i++ {
			require.Less(t, i, 100, "it is usual some time")
			last = r.hedged().Runs
			whole()
		}
		require.LessOrEqual(t, r.hedged().Bytes, restored/20+n*300/10)
	})
}

// A node whose runs were slow gets its share of them again when it is quick again.
func TestANodeWhoseRunsWereSlowIsUsedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 400
		r, keys := slowly(t, n)
		for _, x := range r.nodes {
			x.wrap = every(ms)
		}
		slow := r.nodes[2]
		part := func() int64 {
			before := slow.asked.Load()
			found := r.find(keys, time.Minute)
			for i, err := range r.restore(keys, found.Lease.ID) {
				require.NoError(t, err, "block %d", i)
			}
			require.NoError(t, r.Release(t.Context(), found.Lease.ID))
			return slow.asked.Load() - before
		}
		for range 10 {
			require.Greater(t, part(), int64(n/5))
		}
		slow.wrap = every(500 * ms)
		part()
		began := time.Now()
		for range 10 {
			require.Less(t, part(), int64(n/5))
		}
		require.Less(t, time.Since(began), 10*time.Second)
		slow.wrap = every(ms)
		for i := 0; part() < n/5; i++ {
			require.Less(t, i, 100)
			time.Sleep(time.Second)
		}
	})
}
