package store

import (
	"bytes"
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/storetest"
)

// boarded is a chain restored by two pointers whose claims go by a word.
type boarded struct {
	t     *testing.T
	ses   skep.Session
	keys  []skep.Key
	dest  []byte
	word  *atomic.Uint64
	board *skep.Claimer
	unit  int // of claims
	end   int

	mu      sync.Mutex
	granted map[int]int // how often each unit was granted
	by      struct{ word, call, refused int }
}

// beginBoarded restores keys and gives the chain a word.
func beginBoarded(t *testing.T, s *Store, sc skep.Scope, keys []skep.Key, dir skep.Direction, cost *skep.Compute) *boarded {
	t.Helper()
	b := &boarded{t: t, keys: keys, dest: device.AlignedBuffer(len(keys) * modelBlock), word: new(atomic.Uint64), granted: map[int]int{}, unit: model.BlockTokens, end: len(keys) * model.BlockTokens}
	var err error
	b.ses, err = s.Restore(testContext(t), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: dir, Compute: cost,
		Dest: skep.Destination{Memory: b.dest, Stride: modelBlock}}}})
	require.NoError(t, err)
	way, err := b.ses.Direction(testContext(t), 0)
	require.NoError(t, err)
	if way.ByLayer() {
		b.unit, b.end = 1, model.Layers
	}
	require.NoError(t, b.ses.ShareClaimWord(testContext(t), 0, b.word))
	b.board = skep.NewClaimer(b.ses, 0, b.word, b.unit, b.end)
	return b
}

// claim claims by the word, or by a call, and notes what was granted.
func (b *boarded) claim(r skep.Range, load skep.EngineLoad, byWord bool) skep.Claim {
	c, ok := skep.Claim{}, false
	if byWord {
		c, ok = b.board.ByWord(r, load)
	}
	if !ok {
		var err error
		c, err = b.ses.Claim(b.t.Context(), 0, r.Subset(), load)
		if err != nil {
			assert.ErrorIs(b.t, err, skep.Stopped)
			return skep.Claim{Granted: skep.Range{From: r.From, To: r.From}, Next: b.end}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case c.Granted.Len() == 0:
		b.by.refused++
	case ok:
		b.by.word++
	default:
		b.by.call++
	}
	for u := c.Granted.From / b.unit; u < (c.Granted.To+b.unit-1)/b.unit; u++ {
		b.granted[u]++
	}
	return c
}

// compute claims and "computes" from pos on until the pointers have met; rng draws how much is asked for, how,
// and how long it takes.
func (b *boarded) compute(ctx context.Context, rng *rand.Rand, pos int, took time.Duration) {
	for pos < b.end && ctx.Err() == nil {
		want := b.unit * (1 + rng.IntN(8))
		load := skep.Idle
		if rng.IntN(3) == 0 {
			load = skep.Busy
		}
		c := b.claim(skep.Range{From: pos, To: min(pos+want, b.end)}, load, rng.IntN(4) > 0)
		if n := c.Granted.Len(); n > 0 {
			time.Sleep(time.Duration(n) * took)
			b.write(c.Granted)
			assert.NoError(b.t, b.ses.Computed(b.t.Context(), 0, c.Granted, time.Duration(n)*took, 0))
		} else if c.Next == pos {
			runtime.Gosched()
			time.Sleep(50 * time.Microsecond)
		}
		pos = c.Next
	}
}

func (b *boarded) write(r skep.Range) {
	e := &engine{keys: b.keys, dest: b.dest, byLayer: b.unit == 1}
	e.write(r)
}

// requireOnce holds what was landed and what was granted against each other: each chunk is one of both.
func (b *boarded) requireOnce(landed, claimed map[int]int) {
	b.t.Helper()
	for u := range b.end / b.unit {
		require.Equal(b.t, 1, landed[u]+b.granted[u], "unit %d: %d times loaded, %d times granted", u, landed[u], b.granted[u])
		require.Equal(b.t, b.granted[u], claimed[u], "unit %d: granted %d times, %d times a miss of kind claimed", u, b.granted[u], claimed[u])
	}
	for i, k := range b.keys {
		require.True(b.t, bytes.Equal(content(k, skep.PartKV, 1, modelBlock), b.dest[i*modelBlock:(i+1)*modelBlock]), "bytes of block %d", i)
	}
}

// drain takes the session's chunks to the end, by block or layer.
func (b *boarded) drain(ctx context.Context) (landed, claimed, missed map[int]int) {
	landed, claimed, missed = map[int]int{}, map[int]int{}, map[int]int{}
	into := make([]skep.Chunk, 16)
	for {
		n, err := b.ses.Next(ctx, into)
		for _, c := range into[:n] {
			u := c.Block
			if b.unit == 1 {
				u = c.Layers.From
				if c.Block > 0 { // a layer counts with its first block
					require.True(b.t, c.Err == nil || skep.KindOf(c.Err) == skep.Claimed, "%v", c.Err)
					continue
				}
			}
			switch {
			case c.Err == nil:
				landed[u]++
			case skep.KindOf(c.Err) == skep.Claimed:
				claimed[u]++
			default:
				missed[u]++
			}
		}
		if err != nil {
			return landed, claimed, missed
		}
	}
}

// Engines that claim by a word, by calls, and by both at random while drives load: each block (or layer) is
// loaded or granted, never both, never neither, and every byte is right.
func TestClaimsByAWord(t *testing.T) {
	t.Parallel()
	const seed = 20261122
	t.Logf("seed %d", seed)
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for _, dir := range []skep.Direction{skep.TailFirst, skep.LayersDown} {
		t.Run(dir.String(), func(t *testing.T) {
			ctx := testContext(t)
			s := openSlow(t, 64<<20, nil)
			sc := openModel(t, s)
			keys := chainKeys(1, 128)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
			rng := rand.New(rand.NewPCG(seed, uint64(dir)))
			word, call := 0, 0
			for round := range rounds {
				per := time.Duration(1+rng.IntN(60)) * time.Microsecond
				cost := &skep.Compute{Cost: skep.RecomputeCost{PerToken: per}}
				if dir.ByLayer() {
					per *= time.Duration(len(keys) * model.BlockTokens / model.Layers)
				}
				b := beginBoarded(t, s, sc, keys, dir, cost)
				var wg sync.WaitGroup
				for range 1 + rng.IntN(2) { // at times two of the engine's threads claim the same chain
					mine := rand.New(rand.NewPCG(seed, rng.Uint64()))
					wg.Go(func() { b.compute(ctx, mine, 0, per) })
				}
				landed, claimed, missed := b.drain(ctx)
				wg.Wait()
				require.NoError(t, b.ses.Close(ctx))
				require.Empty(t, missed, "round %d", round)
				b.requireOnce(landed, claimed)
				word, call = word+b.by.word, call+b.by.call
			}
			t.Logf("%d claims granted by words, %d by calls", word, call)
			require.Positive(t, word)
			require.Positive(t, call)
		})
	}
}

// A chain stopped while an engine claims by its word: what the word granted before is claimed, the rest
// stopped, and a claim afterwards goes by a call and hears of it.
func TestStopShutsTheWord(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 16<<20, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 128)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	for range 5 {
		b := beginBoarded(t, s, sc, keys, skep.TailFirst, &skep.Compute{Cost: skep.RecomputeCost{PerToken: 50 * time.Microsecond}})
		c, ok := b.board.ByWord(skep.Range{From: 0, To: b.end / 2}, skep.Busy)
		require.True(t, ok)
		require.Positive(t, c.Granted.Len())
		require.NoError(t, b.ses.Stop(ctx, 0))
		require.True(t, skep.ClaimWord(b.word.Load()).Closed())
		rest := skep.Range{From: c.Granted.To, To: b.end}
		_, ok = b.board.ByWord(rest, skep.Idle)
		require.False(t, ok)
		_, err := b.ses.Claim(ctx, 0, rest.Subset(), skep.Idle)
		requireKind(t, skep.Stopped, err)
		_, claimed, missed := b.drain(ctx)
		require.Len(t, claimed, c.Granted.Len()/model.BlockTokens)
		for u := range c.Granted.To / model.BlockTokens {
			require.Equal(t, 1, claimed[u], "block %d", u)
		}
		require.NotEmpty(t, missed)
		require.NoError(t, b.ses.Close(ctx))
		was := b.word.Load()
		b.word.Store(was + 1)
		next := beginBoarded(t, s, sc, keys[:16], skep.TailFirst, &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}})
		next.drain(ctx) // words are written meanwhile
		require.NoError(t, next.ses.Close(ctx))
		require.Equal(t, was+1, b.word.Load(), "nobody touches the word of a closed session")
	}
}

// What a stray or hostile engine writes into its word costs nobody but itself: the word is shut, its
// claims go by calls, and other chains are restored as if nothing had been.
func TestAWrongWordHurtsNobodyElse(t *testing.T) {
	t.Parallel()
	const seed = 7
	t.Logf("seed %d", seed)
	ctx := testContext(t)
	s := openSlow(t, 64<<20, nil)
	sc := openModel(t, s)
	bad, good := chainKeys(1, 96), chainKeys(2, 96)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, bad, modelBlock))
	requireOutcome(t, skep.Committed, putRun(t, s, sc, good, modelBlock))
	cost := &skep.Compute{Cost: skep.RecomputeCost{PerToken: 10 * time.Microsecond}}
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 6 {
		x, y := beginBoarded(t, s, sc, bad, skep.TailFirst, cost), beginBoarded(t, s, sc, good, skep.TailFirst, cost)
		stop := make(chan struct{})
		wg := storetest.NewCrew(t)
		wg.Go(func(testing.TB) {
			noise := rand.New(rand.NewPCG(seed, rng.Uint64()))
			for {
				select {
				case <-stop:
					return
				default:
				}
				switch v := noise.Uint64(); noise.IntN(4) {
				case 0:
					x.word.Store(v)
				case 1:
					x.word.Add(1 << noise.IntN(64))
				case 2: // back
					x.word.Store(uint64(skep.ClaimWordOf(0, 96, 96)))
				case 3:
					x.word.Store(uint64(skep.ClaimWordOf(96, 96, 96)))
				}
				time.Sleep(time.Duration(noise.IntN(300)) * time.Microsecond)
			}
		})
		wg.Go(func(testing.TB) { y.compute(ctx, rand.New(rand.NewPCG(seed, 1)), 0, 10*time.Microsecond) })
		// Its own claims by calls are answered, and the session comes to its end.
		wg.Go(func(t testing.TB) {
			for pos := 0; pos < x.end; {
				c, err := x.ses.Claim(ctx, 0, skep.Only(pos, x.end), skep.Idle)
				require.NoError(t, err)
				if c.Next == pos {
					time.Sleep(100 * time.Microsecond)
				}
				pos = c.Next
			}
		})
		wg.Go(func(t testing.TB) { collect(ctx, t, x.ses) })
		landed, claimed, missed := y.drain(ctx)
		require.Empty(t, missed)
		close(stop)
		wg.Wait()
		y.requireOnce(landed, claimed)
		require.NoError(t, x.ses.Close(ctx))
		require.NoError(t, y.ses.Close(ctx))
	}
}

// Blocks that do not come are said by the word before anybody hears of them: claims then go by calls, and are sent
// there.
func TestTheWordSaysThatThereIsMore(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 1<<30, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 64)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	_, err := s.Delete(ctx, sc, keys[60:])
	require.NoError(t, err)
	per := 100 * time.Microsecond
	b := beginBoarded(t, s, sc, keys, skep.TailFirst, &skep.Compute{Cost: skep.RecomputeCost{PerToken: per}})
	into := make([]skep.Chunk, 1)
	_, err = b.ses.Next(ctx, into)
	require.NoError(t, err)
	requireKind(t, skep.NotFound, into[0].Err)
	require.True(t, skep.ClaimWord(b.word.Load()).More())
	landed, _, missed := b.drain(ctx)
	missed[into[0].Block]++
	b.compute(ctx, rand.New(rand.NewPCG(1, 1)), 0, 0)
	for u := 60; u < 64; u++ {
		require.Equal(t, 1, missed[u])
		require.Equal(t, 1, b.granted[u], "block %d", u)
	}
	for u := range 60 {
		require.Equal(t, 1, landed[u]+b.granted[u])
	}
	require.NoError(t, b.ses.Close(ctx))
}

// Words are for chains that say what computing costs, one each, of a session that is open.
func TestBoardIsChecked(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 1<<30, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 4)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{
		{Scope: sc, Keys: keys, Direction: skep.TailFirst, Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}}},
		{Scope: sc, Keys: keys, Direction: skep.TailFirst},
	}})
	require.NoError(t, err)
	word := new(atomic.Uint64)
	requireKind(t, skep.Invalid, ses.ShareClaimWord(ctx, 0, nil))
	requireKind(t, skep.Invalid, ses.ShareClaimWord(ctx, 1, word))
	requireKind(t, skep.Invalid, ses.ShareClaimWord(ctx, 2, word))
	require.NoError(t, ses.ShareClaimWord(ctx, 0, word))
	requireKind(t, skep.Conflict, ses.ShareClaimWord(ctx, 0, word))
	require.NoError(t, ses.Close(ctx))
	requireKind(t, skep.Closed, ses.ShareClaimWord(ctx, 0, word))
}

// What claims cost in overlap. In memory there is none: not a block is read that was granted. In time it is
// what is on its way when the pointers meet and cannot be called back: at most a chunk and what the drives
// move while one answers and dispatch reacts.
func TestOverlapIsAChunkAtMost(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	const mbps = 64 << 20
	s := openSlow(t, mbps, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 512) // 8,192 tokens, 16 MiB: 250 ms
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	per := 30 * time.Microsecond
	const perToken = modelBlock / 16
	var most, meeting, rate, over float64
	for range 5 {
		before := statsOf(t, s).Devices[0].BytesRead
		b := beginBoarded(t, s, sc, keys, skep.TailFirst, &skep.Compute{Cost: skep.RecomputeCost{PerToken: per}})
		crew := storetest.NewCrew(t)
		crew.Go(func(t testing.TB) {
			for pos := 0; pos < b.end; {
				c := b.claim(skep.Range{From: pos, To: min(pos+512, b.end)}, skep.Idle, true)
				now := s.restores.State()
				rate = max(rate, now.Rate) // what is away was sent at an earlier one
				away, bound := now.Ahead, max(restore.FewestBytes, restore.OnItsWay*perToken+rate*restore.Reaction)
				over = max(over, away/bound)
				if most = max(most, away); c.Next == b.end {
					meeting = max(meeting, away)
				}
				if n := c.Granted.Len(); n > 0 {
					time.Sleep(time.Duration(n) * per)
					b.write(c.Granted)
					require.NoError(t, b.ses.Computed(ctx, 0, c.Granted, time.Duration(n)*per, 0))
				} else if c.Next == pos {
					time.Sleep(200 * time.Microsecond)
				}
				pos = c.Next
			}
		})
		landed, claimed, _ := b.drain(ctx)
		crew.Wait()
		require.NoError(t, b.ses.Close(ctx))
		b.requireOnce(landed, claimed)
		require.LessOrEqual(t, over, 1.1, "what is away, in parts of what may be; the rate moves between two looks")
		read := statsOf(t, s).Devices[0].BytesRead - before
		require.LessOrEqual(t, read, int64(len(landed))*modelBlock+128<<10, "records are read besides")
	}
	t.Logf("on its way: at most %.0f KiB, when the pointers met %.0f KiB; a chunk is %d KiB, 500 µs at %d MiB/s %.0f KiB", most/1024, meeting/1024,
		restore.OnItsWay*perToken/1024, mbps>>20, mbps*restore.Reaction/1024)
}
