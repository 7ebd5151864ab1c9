package replication

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/sched"
	"github.com/skepkv/skep/tools/drawn"
)

// twoPointed is a chain of a cluster that an engine computes from the head while it is loaded, in a bubble. Each node
// gives a block every so often, and is asked for few at a time, so that there is something to decide.
type twoPointed struct {
	*rig
	keys []skep.Key
	cost time.Duration // of a token
	ses  skep.Session
	mem  []byte
	word *skep.Claimer // nil: claims go by calls

	granted  []int   // how often each block was granted
	loaded   []int   // how often it came
	missed   []error // why it did not
	computed int
	took     time.Duration
}

const perToken = 125 * time.Microsecond // an engine that does a block in the half of a millisecond

// planned is a cluster in whose map is m, and a chain of n blocks that it has; each node gives a block every so often.
func plannedCluster(t *testing.T, m *clustermap.Map, n int, every ...time.Duration) *twoPointed {
	r := clusterOf(t, m, skep.Cache)
	r.plans = sched.New(sched.Options{Start: r.start, Done: r.ctx.Done(), Run: 1200, Rate: 6e5})
	x := &twoPointed{rig: r, keys: chainOf(1, n), cost: perToken}
	r.put(x.keys, 0, n)
	for i, d := range every {
		x.paceOf(i, d)
	}
	return x
}

func (x *twoPointed) paceOf(node int, d time.Duration) {
	x.nodes[node].asked.Store(0)
	x.nodes[node].wrap = every(d)
}

// begin begins the restore, with a claim word where there is one.
func (x *twoPointed) begin(byWord bool, c skep.Chain) {
	n := len(x.keys)
	x.granted, x.loaded, x.missed, x.computed = make([]int, n), make([]int, n), make([]error, n), 0
	x.mem, x.word = make([]byte, n*300), nil
	c.Scope, c.Keys, c.Direction = x.scope(), x.keys, skep.TailFirst
	c.Dest = skep.Destination{Memory: x.mem, Stride: 300}
	if c.Compute == nil {
		c.Compute = &skep.Compute{Cost: skep.RecomputeCost{PerToken: x.cost}}
	}
	var err error
	x.ses, err = x.Restore(x.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
	require.NoError(x, err)
	if byWord {
		word := new(atomic.Uint64)
		require.NoError(x, x.ses.ShareClaimWord(x.Context(), 0, word))
		x.word = skep.NewClaimer(x.ses, 0, word, shape.BlockTokens, n*shape.BlockTokens)
	}
}

// meet computes, as claims say, until all is there, and closes the session.
func (x *twoPointed) meet(rng *rand.Rand) {
	began := time.Now()
	delivered := make(chan skep.Chunk, len(x.keys))
	over := make(chan error, 1)
	go func() {
		into := make([]skep.Chunk, 8)
		for {
			n, err := x.ses.Next(context.Background(), into)
			if err != nil {
				over <- err
				return
			}
			for _, c := range into[:n] {
				delivered <- c
			}
		}
	}()
	end, done := len(x.keys)*shape.BlockTokens, false
	see := func(c skep.Chunk) {
		if c.Err != nil {
			require.NoError(x, x.missed[c.Block], "block %d is answered twice", c.Block)
			x.missed[c.Block] = c.Err
		} else {
			x.loaded[c.Block]++
		}
		c.Release()
	}
	for pos, rounds := 0, 0; ; rounds++ {
		require.Less(x, rounds, 100_000, "claims get somewhere")
		for empty := false; !empty; {
			select {
			case c := <-delivered:
				see(c)
			default:
				empty = true
			}
		}
		// What did not come is the engine's: it asks for that first, since what follows depends on it.
		if lost := x.firstLost(); lost >= 0 {
			pos = min(pos, lost*shape.BlockTokens)
		} else if pos >= end && done {
			break
		}
		stuck := pos >= end
		if !stuck {
			c := x.claim(rng, pos, end)
			for b := c.Granted.From / shape.BlockTokens; b < (c.Granted.To+shape.BlockTokens-1)/shape.BlockTokens; b++ {
				x.granted[b]++
				x.computed++
				copy(x.mem[300*b:], payload(x.keys[b]))
			}
			if n := c.Granted.Len(); n > 0 {
				<-time.After(time.Duration(n) * x.cost)
				require.NoError(x, x.ses.Computed(x.Context(), 0, c.Granted, time.Duration(n)*x.cost, 0))
			}
			stuck = c.Next == pos
			require.False(x, stuck && done, "once all was delivered every claim gets further")
			pos = c.Next
		}
		if stuck && !done {
			select {
			case c := <-delivered:
				see(c)
			case err := <-over:
				require.ErrorIs(x, err, io.EOF)
				done = true
			case <-time.After(time.Minute):
				require.Fail(x, "nobody waits for ever")
			}
		}
	}
	x.took = time.Since(began)
	require.NoError(x, x.ses.Close(x.Context()))
	for i, k := range x.keys {
		require.Equal(x, 1, x.loaded[i]+x.granted[i], "block %d: loaded %d times", i, x.loaded[i])
		require.Equal(x, payload(k), x.mem[300*i:300*i+300], "bytes of block %d", i)
		if x.granted[i] > 0 {
			require.Error(x, x.missed[i], "a granted block is a miss")
		}
	}
}

// firstLost is the first block that was missed and is yet to be computed; -1: there is none.
func (x *twoPointed) firstLost() int {
	for b, err := range x.missed {
		if err != nil && !errors.Is(err, skep.Claimed) && x.granted[b] == 0 {
			return b
		}
	}
	return -1
}

// claim claims from pos on; rng, where there is one, draws how much and how.
func (x *twoPointed) claim(rng *rand.Rand, pos, end int) skep.Claim {
	want, load, byWord := 16*shape.BlockTokens, skep.Idle, x.word != nil
	if rng != nil {
		want = shape.BlockTokens * (1 + rng.IntN(32))
		byWord = byWord && rng.IntN(4) > 0
	}
	r := skep.Range{From: pos, To: min(pos+want, end)}
	if byWord {
		c, err := x.word.Claim(x.Context(), r, load)
		require.NoError(x, err)
		return c
	}
	c, err := x.ses.Claim(x.Context(), 0, r.Subset(), load)
	require.NoError(x, err)
	return c
}

// A node that is slow holds up neither the others nor the engine: it loads less, the engine computes more, and all is
// there long before the slow node would have brought what is its own.
func TestASlowNodesShareShrinks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 1200
		x := plannedCluster(t, three(3, 4), n, ms, ms, ms)
		x.begin(false, skep.Chain{})
		x.meet(nil)
		computed, asked := x.computed, x.nodes[1].asked.Load()
		t.Logf("as quick as the others: %d of %d computed, %d of it, %v", computed, n, asked, x.took)
		require.Positive(t, computed)
		for i, d := range []time.Duration{ms, 16 * ms, ms} {
			x.paceOf(i, d)
		}
		x.begin(false, skep.Chain{})
		x.meet(nil) // it is learned how slow it is
		for i, d := range []time.Duration{ms, 16 * ms, ms} {
			x.paceOf(i, d)
		}
		x.begin(false, skep.Chain{})
		x.meet(nil)
		slow := x.nodes[1].asked.Load()
		t.Logf("slow: %d of %d computed, %d of it, %v", x.computed, n, slow, x.took)
		require.Less(t, slow, asked/2)
		require.Greater(t, x.computed, computed)
		require.Less(t, x.took, 400*ms, "its blocks alone take it 3 s")
	})
}

// A node that dies in the middle of a restore is read around: what it had comes from its replica, or is computed.
func TestANodeThatDiesBesideComputing(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*clustermap.Map{"one copy": three(3, 4), "two": twice(3, 4)} {
		for _, byWord := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				const n = 600
				x := plannedCluster(t, m, n, ms, ms, ms)
				x.nodes[1].dies.Store(20)
				x.begin(byWord, skep.Chain{})
				x.meet(nil)
				lost := 0
				for _, err := range x.missed {
					if err != nil && !errors.Is(err, skep.Claimed) {
						lost++
					}
				}
				t.Logf("%s, by a word %v: %d computed, %d of them lost, %v", name, byWord, x.computed, lost, x.took)
				require.True(t, x.nodes[1].down.Load())
				if m.Replicas == 2 {
					require.Zero(t, lost)
				} else {
					require.Positive(t, lost)
				}
				require.Less(t, x.took, 200*ms)
			})
		}
	}
}

// Whatever the nodes' speeds, whoever dies and however is claimed: each block has one owner, and its bytes are right.
func TestEachBlockHasOneOwner(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	for round := range uint64(24) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, round))
			m := three(3, 1+rng.IntN(8))
			m.Replicas = 1 + rng.IntN(2)
			x := plannedCluster(t, m, 50+rng.IntN(400))
			for i := range x.nodes {
				x.paceOf(i, time.Duration(1+rng.IntN(40))*ms/10<<rng.IntN(4))
			}
			x.cost = perToken << rng.IntN(4) / 2
			for range 1 + rng.IntN(3) {
				if rng.IntN(3) == 0 {
					x.nodes[rng.IntN(3)].dies.Store(1 + rng.Int64N(100))
				}
				x.begin(rng.IntN(2) > 0, skep.Chain{Priority: rng.IntN(3)})
				x.meet(rng)
			}
		})
	}
}

// A load that takes longer than computing is declined, with what either was expected to take, and judged when it has
// been computed.
func TestALoadOfNodesThatDoesNotPayIsDeclined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := plannedCluster(t, three(3, 4), 60)
		cost := skep.RecomputeCost{PerToken: 1}
		x.begin(true, skep.Chain{Compute: &skep.Compute{Cost: cost, LoadOnly: true}})
		into := make([]skep.Chunk, 60)
		n, err := x.ses.Next(t.Context(), into)
		require.NoError(t, err)
		require.Equal(t, 60, n)
		var why *skep.Error
		require.ErrorAs(t, into[0].Err, &why)
		require.Equal(t, skep.Claimed, why.Kind)
		require.Equal(t, 240*time.Nanosecond, why.Limit)
		require.Greater(t, why.Value, why.Limit)
		_, err = x.ses.Next(t.Context(), into)
		require.ErrorIs(t, err, io.EOF)
		c := x.claim(nil, 0, 240)
		require.Equal(t, 64, c.Granted.Len(), "all of it is the engine's")
		require.NoError(t, x.ses.Computed(t.Context(), 0, skep.Range{To: 240}, time.Microsecond, 0))
		require.NoError(t, x.ses.Close(t.Context()))
		st, err := x.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, skep.TwoPointerStats{Declined: 1, Judged: 1, Right: 1}, st.TwoPointers)
	})
}

// What an engine never claims is missed at the chain's deadline; what a deadline was put off for goes on.
func TestWhatIsNotClaimedIsMissedAtTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := plannedCluster(t, three(3, 4), 200, ms, ms, ms)
		began := time.Now()
		x.begin(false, skep.Chain{Deadline: skep.Steady().Add(50 * ms)})
		require.NoError(t, x.ses.Reprioritise(t.Context(), 0, 1, skep.Steady().Add(300*ms)))
		into := make([]skep.Chunk, 200)
		for err := error(nil); err == nil; {
			var n int
			n, err = x.ses.Next(t.Context(), into)
			for _, c := range into[:n] {
				if x.missed[c.Block] = c.Err; c.Err == nil {
					x.loaded[c.Block]++
				}
				c.Release()
			}
		}
		require.Equal(t, 300*ms, time.Since(began))
		require.ErrorIs(t, x.missed[0], skep.Deadline)
		require.Equal(t, 1, x.loaded[199], "the tail was loaded")
		c := x.claim(nil, 0, 800)
		require.Positive(t, c.Granted.Len(), "what it lacks is the engine's")
		require.NoError(t, x.ses.Close(t.Context()))
	})
}

// What a word is refused for; and a word that is written to by anybody else is shut, and the chain goes on by calls.
func TestClaimWordsOfACluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := plannedCluster(t, three(3, 4), 200, ms, ms, ms)
		x.begin(false, skep.Chain{})
		word := new(atomic.Uint64)
		require.ErrorIs(t, x.ses.ShareClaimWord(t.Context(), 0, nil), skep.Invalid)
		require.ErrorIs(t, x.ses.ShareClaimWord(t.Context(), 1, word), skep.Invalid)
		require.NoError(t, x.ses.ShareClaimWord(t.Context(), 0, word))
		require.ErrorIs(t, x.ses.ShareClaimWord(t.Context(), 0, word), skep.Conflict)
		by := skep.NewClaimer(x.ses, 0, word, shape.BlockTokens, 800)
		c, ok := by.ByWord(skep.Range{To: 8}, skep.Idle)
		require.True(t, ok)
		require.Equal(t, skep.Range{To: 8}, c.Granted)
		into := make([]skep.Chunk, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for claimed := 0; claimed < 2; { // they are told of although no call is made
			_, err := x.ses.Next(ctx, into)
			require.NoError(t, err)
			require.NotContains(t, []int{0, 1}, x.loadedOf(into[0]))
			if errors.Is(into[0].Err, skep.Claimed) {
				require.Less(t, into[0].Block, 2)
				claimed++
			}
			into[0].Release()
		}
		word.Store(uint64(skep.ClaimWordOf(190, 190, 200)))
		for !skep.ClaimWord(word.Load()).Closed() {
			<-time.After(ms)
		}
		_, ok = by.ByWord(skep.Range{From: 8, To: 12}, skep.Idle)
		require.False(t, ok)
		got, err := x.ses.Claim(t.Context(), 0, skep.Only(8, 12), skep.Idle)
		require.NoError(t, err)
		require.Equal(t, skep.Range{From: 8, To: 12}, got.Granted)
		require.NoError(t, x.ses.Close(t.Context()))
		require.ErrorIs(t, x.ses.ShareClaimWord(t.Context(), 0, word), skep.Closed)
	})
}

// loadedOf is the block of a chunk that came, -1 where it did not.
func (x *twoPointed) loadedOf(c skep.Chunk) int {
	if c.Err != nil {
		return -1
	}
	return c.Block
}
