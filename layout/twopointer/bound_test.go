package twopointer

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func randomProblem(rng *rand.Rand) Problem {
	p := Problem{Tokens: 1 + rng.IntN(3000), Layers: rng.IntN(40), BytesPerToken: 1000 + 200000*rng.Float64(),
		BytesPerSecond: math.Pow(10, 7+4*rng.Float64()), Latency: rng.Float64() * 1e-3}
	p.Cost = Cost{Fixed: rng.Float64() * 0.02 * float64(rng.IntN(2)), PerToken: rng.Float64() * 1e-4, PerSquare: rng.Float64() * 1e-8 * float64(rng.IntN(2))}
	if rng.IntN(3) == 0 {
		p.Boundary = p.BytesPerToken * rng.Float64() * 0.5
	}
	return p
}

// The bound is the least over all splits: trying every one finds none better.
func TestBoundIsTheLeastOfAllSplits(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 1))
	for i := range 400 {
		p := randomProblem(rng)
		least := math.Inf(1)
		for n := 0; n <= p.Tokens; n++ {
			least = min(least, p.time(ByTokens, n))
		}
		for l := 0; p.Layers > 1 && l <= p.Layers; l++ {
			least = min(least, p.time(ByLayers, l))
		}
		got := p.Bound()
		require.InDelta(t, least, got.Seconds, 1e-12+least*1e-12, "case %d: %+v: %+v", i, p, got)
		require.Equal(t, got.Seconds, p.time(got.Mode, got.At))
	}
}

// With linear costs and no overheads the bound is the paper's harmonic T*, to a token.
func TestHarmonicIsTheBoundOfLinearCosts(t *testing.T) {
	t.Parallel()
	p := Problem{Tokens: 100000, Cost: Cost{PerToken: 30e-6}, BytesPerToken: 147456, BytesPerSecond: 5e9}
	require.InEpsilon(t, p.Harmonic(), p.Bound().Seconds, 1e-4)
	p.Cost.PerSquare = 6e-10
	require.Less(t, p.Bound().Seconds, 0.95*p.Harmonic(), "attention makes heads cheaper than tails, which T* does not know")
}

// A batch of one, without overheads, is the problem itself; more only take longer.
func TestBatchBound(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 9))
	for range 200 {
		p := randomProblem(rng)
		p.Latency, p.Cost.Fixed, p.Boundary, p.Layers = 0, 0, 0, 0
		p.Cost.PerToken += 1e-6
		one := Batch{Problems: []Problem{p}}
		// A split may fall within a token there.
		step := p.Cost.Span(p.Tokens-1, p.Tokens) + p.BytesPerToken/p.BytesPerSecond
		require.InDelta(t, p.Bound().Seconds, one.Bound(), step)
		require.LessOrEqual(t, one.Bound(), p.Bound().Seconds*(1+1e-9))
		two := Batch{Problems: []Problem{p, p}}
		require.GreaterOrEqual(t, two.Bound(), one.Bound()*1.2)
		mean := MeanBound([]Problem{p, p}, nil)
		require.GreaterOrEqual(t, mean, one.Bound()*0.99)
		require.LessOrEqual(t, mean, two.Bound()*1.01)
		work := Batch{Problems: []Problem{p}, Work: 1000}
		require.InDelta(t, 1000, work.Bound(), one.Bound())
	}
}

// L_Δ separates short prompts, which go by layers, from long ones.
func TestCrossover(t *testing.T) {
	t.Parallel()
	g, _ := GPUNamed("h100")
	m, _ := ModelNamed("qwen3-8b")
	p := Problem{Layers: m.Layers, Cost: PresetCost(g, m), BytesPerToken: float64(m.BytesPerToken()), BytesPerSecond: 5e9, Latency: 1e-4}
	at := p.Crossover(512)
	require.Greater(t, at, 512)
	require.Less(t, at, crossoverLimit)
	q := p
	q.Tokens = at
	require.LessOrEqual(t, q.ByChunks(512).Seconds, q.Best(ByLayers).Seconds)
	q.Tokens = at - 512
	require.Greater(t, q.ByChunks(512).Seconds, q.Best(ByLayers).Seconds)
	slower := p
	slower.Cost.Fixed *= 4
	require.Greater(t, slower.Crossover(512), at, "the more a launch costs, the longer layers pay")
}
