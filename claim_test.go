package skep

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A store believes of a word what claims can have made of it, and nothing else.
func TestWordFollows(t *testing.T) {
	t.Parallel()
	w := ClaimWordOf(3, 7, 9)
	require.Equal(t, []int{3, 7, 9}, []int{w.Head(), w.May(), w.Tail()})
	for _, tt := range []struct {
		what string
		now  ClaimWord
		ok   bool
	}{
		{"nothing happened", w, true},
		{"a claim", ClaimWordOf(4, 7, 9), true},
		{"all there may be", ClaimWordOf(7, 7, 9), true},
		{"more than may be", ClaimWordOf(8, 7, 9), false},
		{"backwards", ClaimWordOf(2, 7, 9), false},
		{"another may", ClaimWordOf(4, 8, 9), false},
		{"another tail", ClaimWordOf(4, 7, 10), false},
		{"shut by the engine", ClaimWordOf(4, 7, 9).Shut(), false},
		{"more, says the engine", ClaimWordOf(4, 7, 9).WithMore(), false},
		{"a bit that means nothing", ClaimWordOf(4, 7, 9) | 1<<63, false},
		{"zero", 0, false},
		{"ones", ^ClaimWord(0), false},
	} {
		require.Equal(t, tt.ok, w.Follows(tt.now), tt.what)
	}
	require.False(t, w.Shut().Follows(ClaimWordOf(4, 7, 9).Shut()), "nothing is claimed by a closed word")
	require.True(t, w.Shut().Follows(w.Shut()))
}

// Threads of an engine claim while a store moves the frontier down: each block goes to one of them.
func TestEachBlockGoesToOne(t *testing.T) {
	t.Parallel()
	const seed, blocks, unit = 3, 5000, 16
	t.Logf("seed %d", seed)
	var at atomic.Uint64
	at.Store(uint64(ClaimWordOf(0, 64, blocks)))
	var took [blocks]atomic.Int32
	var wg sync.WaitGroup
	for k := range 3 {
		rng := rand.New(rand.NewPCG(seed, uint64(k)))
		b := NewClaimer(UnsupportedSession{}, 0, &at, unit, blocks*unit)
		wg.Go(func() {
			for pos := 0; pos < blocks*unit; {
				c, ok := b.ByWord(Range{From: pos, To: min(pos+1+rng.IntN(8*unit), blocks*unit)}, Idle)
				assert.LessOrEqual(t, c.Granted.From, c.Granted.To)
				for u := c.Granted.From / unit; u < (c.Granted.To+unit-1)/unit; u++ {
					took[u].Add(1)
				}
				if ok || c.Granted.Len() == 0 {
					pos = c.Next
				}
			}
		})
	}
	wg.Go(func() { // the store
		wrote := ClaimWord(at.Load())
		for wrote.Head() < wrote.Tail() {
			now := ClaimWord(at.Load())
			assert.True(t, wrote.Follows(now), "%v, then %v", wrote, now)
			tail := max(now.Tail()-1, now.Head())
			next := ClaimWordOf(now.Head(), min(now.Head()+64, tail), tail)
			if wrote = now; at.CompareAndSwap(uint64(now), uint64(next)) {
				for u := tail; u < now.Tail(); u++ {
					took[u].Add(1)
				}
				wrote = next
			}
		}
	})
	wg.Wait()
	for u := range took {
		require.Equal(t, int32(1), took[u].Load(), "block %d", u)
	}
}

// What the word does not say is asked for by a call.
func TestClaimerLeavesToCallsWhatTheWordCannotSay(t *testing.T) {
	t.Parallel()
	var at atomic.Uint64
	b := NewClaimer(UnsupportedSession{}, 0, &at, 16, 10*16-5) // the last block is not full
	ask := func(from, to int, load EngineLoad) (Claim, bool) { return b.ByWord(Range{From: from, To: to}, load) }
	for _, tt := range []struct {
		what     string
		w        ClaimWord
		from, to int
		load     EngineLoad
		ok       bool
		granted  int
		next     int
	}{
		{"a claim", ClaimWordOf(0, 4, 8), 0, 20, Busy, true, 32, 32},
		{"as far as it may", ClaimWordOf(0, 4, 8), 0, 155, Busy, true, 64, 64},
		{"nothing for who has other work", ClaimWordOf(2, 2, 8), 32, 64, Busy, true, 32, 32},
		{"who has none asks", ClaimWordOf(2, 2, 8), 32, 64, Idle, false, 32, 32},
		{"below the head: it may be before the chain's first block", ClaimWordOf(4, 6, 8), 32, 64, Busy, false, 32, 64},
		{"beyond it: not yet", ClaimWordOf(1, 6, 8), 32, 64, Busy, true, 32, 32},
		{"the pointers have met", ClaimWordOf(8, 8, 8), 128, 155, Busy, true, 128, 155},
		{"the last claim", ClaimWordOf(6, 8, 8), 96, 128, Busy, true, 128, 155},
		{"to the chain's end", ClaimWordOf(8, 10, 10), 128, 155, Busy, true, 155, 155},
		{"met, and there is more", ClaimWordOf(8, 8, 8).WithMore(), 128, 155, Busy, false, 128, 128},
		{"closed", ClaimWordOf(0, 4, 8).Shut(), 0, 32, Busy, false, 0, 0},
	} {
		at.Store(uint64(tt.w))
		c, ok := ask(tt.from, tt.to, tt.load)
		require.Equal(t, tt.ok, ok, tt.what)
		require.Equal(t, Claim{Granted: Range{From: tt.from, To: tt.granted}, Next: tt.next}, c, tt.what)
	}
	at.Store(uint64(ClaimWordOf(0, 2, 8)))
	_, ok := ask(0, 32, Busy)
	require.True(t, ok)
	_, ok = ask(32, 64, Busy)
	require.False(t, ok, "the store has not seen the last claim yet")
}

// called is a session that grants every claim, by a call.
type called struct {
	UnsupportedSession
	calls int
}

func (s *called) Claim(_ context.Context, chain int, want Subset, load EngineLoad) (Claim, error) {
	s.calls++
	r, _ := want.Bounds()
	return Claim{Granted: r, Next: r.To + chain + int(load)}, nil
}

func TestClaimerCallsWhereTheWordDoesNotSay(t *testing.T) {
	t.Parallel()
	var at atomic.Uint64
	at.Store(uint64(ClaimWordOf(0, 2, 8)))
	ses := &called{}
	b := NewClaimer(ses, 3, &at, 16, 160)
	c, err := b.Claim(t.Context(), Range{0, 32}, Busy)
	require.NoError(t, err)
	require.Equal(t, Claim{Granted: Range{0, 32}, Next: 32}, c)
	require.Zero(t, ses.calls)
	c, err = b.Claim(t.Context(), Range{32, 64}, Busy)
	require.NoError(t, err)
	require.Equal(t, Claim{Granted: Range{32, 64}, Next: 64 + 3 + 1}, c, "what the call says")
	require.Equal(t, 1, ses.calls)
}
