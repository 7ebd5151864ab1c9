package store

import (
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/store/internal/restore"
)

// launches is a cost that is all launch but for a little: short prompts go by layers.
var launches = skep.RecomputeCost{Fixed: 2 * time.Millisecond, PerToken: 10 * time.Microsecond, PerTokenSquared: 1}

// either begins restoring keys either way and says which it is.
func either(t *testing.T, s *Store, sc skep.Scope, keys []skep.Key, also ...skep.Chain) (skep.Session, skep.Direction) {
	t.Helper()
	chains := append([]skep.Chain{{Scope: sc, Keys: keys, Direction: skep.Auto, Compute: &skep.Compute{Cost: launches}}}, also...)
	ses, err := s.Restore(testContext(t), &skep.RestoreRequest{Chains: chains})
	require.NoError(t, err)
	d, err := ses.Direction(testContext(t), 0)
	require.NoError(t, err)
	return ses, d
}

// speed tells the scheduler what the drives were seen to move.
func speed(t *testing.T, s *Store, bps float64) {
	t.Helper()
	require.NoError(t, s.restores.SawRate(bps))
}

// A prompt that is alone goes by layers below L_Δ and by tokens from there on; beside another it goes by tokens. L_Δ
// is reckoned when a cost is new or a speed has moved, and follows it: at a quarter of the drives' speed the same
// prompt goes the other way.
func TestEitherWayBySpeedsAsTheyAre(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 0, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 256)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	other := skep.Chain{Scope: sc, Keys: chainKeys(9, 4), Direction: skep.TailFirst, Compute: &skep.Compute{Cost: launches}}
	turn := func() int64 { return statsOf(t, s).TwoPointers.Crossover }
	ends := func(ses skep.Session, d skep.Direction, want skep.Direction) {
		t.Helper()
		require.Equal(t, want, d)
		require.NoError(t, ses.Close(ctx))
	}
	const fast = 256 << 20
	at := map[float64]int64{}
	for _, bps := range []float64{fast, fast / 4} {
		speed(t, s, bps)
		ses, _ := either(t, s, sc, keys[:1])
		require.NoError(t, ses.Close(ctx))
		at[bps] = turn()
		p := twopointer.Problem{Layers: model.Layers, Cost: twopointer.CostOf(launches), BytesPerToken: modelBlock / 16, BytesPerSecond: bps, Latency: restore.FirstLatency}
		require.Equal(t, int64(p.Turn()), at[bps])
	}
	require.Equal(t, int64(2), statsOf(t, s).TwoPointers.Reckoned)
	between := keys[:(at[fast]+at[fast/4])/2/16]
	ways := map[bool]skep.Direction{true: skep.LayersDown, false: skep.TailFirst}
	require.NotEqual(t, at[fast], at[fast/4], "a drive four times slower")
	length := int64(len(between) * model.BlockTokens)
	require.NotEqual(t, length < at[fast], length < at[fast/4])
	for _, bps := range []float64{fast, fast / 4, fast} {
		speed(t, s, bps)
		ses, d := either(t, s, sc, between)
		ends(ses, d, ways[length < at[bps]])
	}
	before := statsOf(t, s).TwoPointers
	for range 10 {
		speed(t, s, fast*.95)
		ses, d := either(t, s, sc, keys[:2])
		ends(ses, d, skep.LayersDown)
	}
	after := statsOf(t, s).TwoPointers
	require.Equal(t, before.Reckoned, after.Reckoned, "5 % is no reason to reckon anew")
	require.Equal(t, before.ByLayers+10, after.ByLayers)

	ses, d := either(t, s, sc, keys[:2], other)
	ends(ses, d, skep.TailFirst)
	first, d := either(t, s, sc, keys[:2])
	require.Equal(t, skep.LayersDown, d)
	second, d := either(t, s, sc, keys[:2])
	require.NoError(t, first.Close(ctx))
	ends(second, d, skep.TailFirst)
	require.Positive(t, statsOf(t, s).TwoPointers.ByTokens)
}

// Drives that become slower while prompts are restored are seen to be, and L_Δ follows without being told.
func TestEitherWayLearnsOfSlowerDrives(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 16<<20, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 64)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	speed(t, s, 1<<30) // as it was believed
	ses, _ := either(t, s, sc, keys[:1])
	require.NoError(t, ses.Close(ctx))
	was := statsOf(t, s).TwoPointers
	for range 20 {
		ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: skep.TailFirst,
			Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}}}}})
		require.NoError(t, err)
		into := make([]skep.Chunk, 8)
		for {
			n, err := ses.Next(ctx, into)
			for i := range into[:n] {
				into[i].Release()
			}
			if err != nil {
				break
			}
		}
		require.NoError(t, ses.Close(ctx))
		if s.restores.State().Rate < 64<<20 {
			break
		}
	}
	ses, _ = either(t, s, sc, keys[:1])
	require.NoError(t, ses.Close(ctx))
	now := statsOf(t, s).TwoPointers
	require.Greater(t, now.Reckoned, was.Reckoned)
	require.NotEqual(t, was.Crossover, now.Crossover)
}

// Prompts of random lengths that go either way, with claims by words and by calls in the units of the way that was
// chosen: each block or layer is loaded or granted, once, and every byte is right.
func TestClaimsEitherWay(t *testing.T) {
	t.Parallel()
	const seed = 20261123
	t.Logf("seed %d", seed)
	ctx := testContext(t)
	s := openSlow(t, 64<<20, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 96)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	rng := rand.New(rand.NewPCG(seed, 0))
	ways := map[skep.Direction]int{}
	for range 16 {
		n := 8 + rng.IntN(len(keys)-8)
		cost := &skep.Compute{Cost: skep.RecomputeCost{Fixed: time.Duration(rng.IntN(20)) * time.Millisecond, PerToken: time.Duration(1+rng.IntN(60)) * time.Microsecond}}
		var wg sync.WaitGroup
		var all []*boarded
		var checks []func()
		for range 1 + rng.IntN(2) {
			b := beginBoarded(t, s, sc, keys[:n], skep.Auto, cost)
			all = append(all, b)
			per := cost.Cost.PerToken
			if b.unit == 1 {
				ways[skep.LayersDown]++
				per *= time.Duration(n * model.BlockTokens / model.Layers)
			} else {
				ways[skep.TailFirst]++
			}
			mine := rand.New(rand.NewPCG(seed, rng.Uint64()))
			wg.Go(func() { b.compute(ctx, mine, 0, per) })
		}
		for _, b := range all {
			landed, claimed, missed := b.drain(ctx)
			require.Empty(t, missed)
			checks = append(checks, func() { b.requireOnce(landed, claimed) })
		}
		wg.Wait()
		for _, check := range checks {
			check()
		}
		for _, b := range all {
			require.NoError(t, b.ses.Close(ctx))
		}
	}
	t.Logf("%v", ways)
	require.Len(t, ways, 2)
}

// When a layer does not come, computing it goes through all below it. What is not on its way of those is answered at
// once: nobody waits for it, also where the engine claims nothing.
func TestBelowALayerThatDidNotComeNothingIsAwaited(t *testing.T) {
	t.Parallel()
	const n = 192
	s := openSlow(t, 64<<20, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, n)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[:n-1], modelBlock))
	ctx := testContext(t)
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: skep.LayersDown,
		Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}}}}})
	require.NoError(t, err)
	kinds := map[skep.Kind]int{}
	into := make([]skep.Chunk, 64)
	for {
		k, err := ses.Next(ctx, into)
		for i := range into[:k] {
			kinds[skep.KindOf(into[i].Err)]++
			into[i].Release()
		}
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
	}
	require.NoError(t, ses.Close(ctx))
	require.Equal(t, model.Layers, kinds[skep.NotFound], "of the block that is not there")
	require.Positive(t, kinds[skep.Stopped])
	require.Equal(t, n*model.Layers, kinds[skep.NotFound]+kinds[skep.Stopped]+kinds[skep.KindOf(nil)])
}
