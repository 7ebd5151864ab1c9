package twopointer

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A store believes of a word what claims can have made of it, and nothing else.
func TestWordFollows(t *testing.T) {
	w := WordOf(3, 7, 9)
	require.Equal(t, []int{3, 7, 9}, []int{w.Head(), w.May(), w.Tail()})
	for _, tt := range []struct {
		what string
		now  Word
		ok   bool
	}{
		{"nothing happened", w, true},
		{"a claim", WordOf(4, 7, 9), true},
		{"all there may be", WordOf(7, 7, 9), true},
		{"more than may be", WordOf(8, 7, 9), false},
		{"backwards", WordOf(2, 7, 9), false},
		{"another may", WordOf(4, 8, 9), false},
		{"another tail", WordOf(4, 7, 10), false},
		{"shut by the engine", WordOf(4, 7, 9).Shut(), false},
		{"more, says the engine", WordOf(4, 7, 9).WithMore(), false},
		{"a bit that means nothing", WordOf(4, 7, 9) | 1<<63, false},
		{"zero", 0, false},
		{"ones", ^Word(0), false},
	} {
		require.Equal(t, tt.ok, w.Follows(tt.now), tt.what)
	}
	require.False(t, w.Shut().Follows(WordOf(4, 7, 9).Shut()), "nothing is claimed by a closed word")
	require.True(t, w.Shut().Follows(w.Shut()))
}

// Threads of an engine claim while a store moves the frontier down: each block goes to one of them.
func TestEachBlockGoesToOne(t *testing.T) {
	const seed, blocks, unit = 3, 5000, 16
	t.Logf("seed %d", seed)
	var at atomic.Uint64
	at.Store(uint64(WordOf(0, 64, blocks)))
	var took [blocks]atomic.Int32
	var wg sync.WaitGroup
	for k := range 3 {
		rng := rand.New(rand.NewPCG(seed, uint64(k)))
		b := NewBoard(&at, unit, blocks*unit)
		wg.Go(func() {
			for pos := 0; pos < blocks*unit; {
				c, ok := b.Claim(skep.Range{From: pos, To: min(pos+1+rng.IntN(8*unit), blocks*unit)}, true)
				require.LessOrEqual(t, c.Granted.From, c.Granted.To)
				for u := c.Granted.From / unit; u < (c.Granted.To+unit-1)/unit; u++ {
					took[u].Add(1)
				}
				if ok || c.Granted.Len() == 0 {
					pos = c.Jump
				}
			}
		})
	}
	wg.Go(func() { // the store
		wrote := Word(at.Load())
		for wrote.Head() < wrote.Tail() {
			now := Word(at.Load())
			require.True(t, wrote.Follows(now), "%v, then %v", wrote, now)
			tail := max(now.Tail()-1, now.Head())
			next := WordOf(now.Head(), min(now.Head()+64, tail), tail)
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
func TestBoardLeavesToCallsWhatItCannotSay(t *testing.T) {
	var at atomic.Uint64
	b := NewBoard(&at, 16, 10*16-5) // the last block is not full
	ask := func(from, to int, idle bool) (skep.Claim, bool) { return b.Claim(skep.Range{From: from, To: to}, idle) }
	for _, tt := range []struct {
		what     string
		w        Word
		from, to int
		idle, ok bool
		granted  int
		jump     int
	}{
		{"a claim", WordOf(0, 4, 8), 0, 20, false, true, 32, 32},
		{"as far as it may", WordOf(0, 4, 8), 0, 155, false, true, 64, 64},
		{"nothing for who has other work", WordOf(2, 2, 8), 32, 64, false, true, 32, 32},
		{"who has none asks", WordOf(2, 2, 8), 32, 64, true, false, 32, 32},
		{"below the head: it may be before the chain's first block", WordOf(4, 6, 8), 32, 64, false, false, 32, 64},
		{"beyond it: not yet", WordOf(1, 6, 8), 32, 64, false, true, 32, 32},
		{"the pointers have met", WordOf(8, 8, 8), 128, 155, false, true, 128, 155},
		{"the last claim", WordOf(6, 8, 8), 96, 128, false, true, 128, 155},
		{"to the chain's end", WordOf(8, 10, 10), 128, 155, false, true, 155, 155},
		{"met, and there is more", WordOf(8, 8, 8).WithMore(), 128, 155, false, false, 128, 128},
		{"closed", WordOf(0, 4, 8).Shut(), 0, 32, false, false, 0, 0},
	} {
		at.Store(uint64(tt.w))
		c, ok := ask(tt.from, tt.to, tt.idle)
		require.Equal(t, tt.ok, ok, tt.what)
		require.Equal(t, skep.Claim{Granted: skep.Range{From: tt.from, To: tt.granted}, Jump: tt.jump}, c, tt.what)
	}
	at.Store(uint64(WordOf(0, 2, 8)))
	_, ok := ask(0, 32, false)
	require.True(t, ok)
	_, ok = ask(32, 64, false)
	require.False(t, ok, "the store has not seen the last claim yet")
}

// What the engine took while a piece was decided is off the piece.
func TestTakenIsOffThePiece(t *testing.T) {
	s := scheduler(t, Config{Channels: []Channel{{BytesPerSecond: 1e6}}})
	join := func() int {
		d, err := s.Step(Event{Kind: Join, New: &Strand{Tokens: 1024, Cost: Cost{PerToken: 1}, BytesPerToken: 1}})
		require.NoError(t, err)
		return d.Strand
	}
	i := join()
	d, err := s.Step(Event{Kind: Ready})
	require.NoError(t, err)
	require.Equal(t, 512, d.From)
	require.Equal(t, 512.0, s.OnItsWay(0))
	_, err = s.Step(Event{Kind: Taken, Strand: i, To: 640})
	require.NoError(t, err)
	at, ok := s.Standing(i)
	require.True(t, ok)
	require.Equal(t, Standing{Head: 640, May: 640, Tail: 640}, at)
	require.InDelta(t, 384, s.OnItsWay(0), 1e-9)
	for _, to := range []int{0, 640, 1025} {
		_, err = s.Step(Event{Kind: Taken, Strand: i, To: to})
		require.ErrorIs(t, err, skep.Invalid)
	}
	_, err = s.Step(Event{Kind: Landed, Strand: i, From: 640, To: 1024})
	require.NoError(t, err)
	_, err = s.Step(Event{Kind: Computed, Strand: i, From: 0, To: 640})
	require.NoError(t, err)
	st, _ := s.State(i)
	require.Zero(t, st.Left)
}
