package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout/twopointer"
)

// preset is qwen3-8b on an H100 with a channel of gbit Gb/s.
func preset(t testing.TB, gbit float64) (twopointer.Problem, Params) {
	g, err := twopointer.GPUNamed("h100")
	require.NoError(t, err)
	m, err := twopointer.ModelNamed("qwen3-8b")
	require.NoError(t, err)
	p := twopointer.Problem{Layers: m.Layers, Cost: twopointer.PresetCost(g, m), BytesPerToken: float64(m.BytesPerToken()), BytesPerSecond: gbit / 8 * 1e9, Latency: 100e-6}
	ch := twopointer.Channel{BytesPerSecond: p.BytesPerSecond, Latency: p.Latency}
	return p, Params{Cost: p.Cost, BytesPerToken: p.BytesPerToken, Layers: m.Layers, Boundary: float64(m.BoundaryPerToken()), Channel: ch,
		Budget: 1 << 20, Truth: Stated(p.Cost, ch)}
}

// One request alone comes within 2 % of the best split there is.
func TestOneRequestReachesItsBound(t *testing.T) {
	t.Parallel()
	for _, gbit := range []float64{10, 40, 80} {
		for n := 1024; n <= 65536; n *= 2 {
			t.Run(fmt.Sprintf("%v Gb/s, %d tokens", gbit, n), func(t *testing.T) {
				p, params := preset(t, gbit)
				p.Tokens = n
				params.Requests = []Request{{Prefix: n}}
				r, err := Run(params)
				require.NoError(t, err)
				o := r.Outcomes[0]
				bound := p.Bound()
				t.Logf("%.1f ms by %s, bound %.1f by %s (tokens %.1f), harmonic %.1f, ratio %.4f", o.Restored*1e3, o.Mode, bound.Seconds*1e3, bound.Mode, p.Best(twopointer.ByTokens).Seconds*1e3, p.Harmonic()*1e3, o.Restored/bound.Seconds)
				require.LessOrEqual(t, o.Restored, 1.02*bound.Seconds)
			})
		}
	}
}

// shaken is a truth that is not what the scheduler believes: costs scaled and noisy.
func shaken(rng *rand.Rand, p Params) Truth {
	cost := p.Cost.Times(0.3 + 2*rng.Float64())
	rate := p.Channel.BytesPerSecond * (0.3 + 2*rng.Float64())
	return Truth{
		Step:    func(_ float64, _ int, items []Item) float64 { return StepTime(cost, items) * (0.8 + 0.4*rng.Float64()) },
		Rate:    func(float64, int) float64 { return rate * (0.8 + 0.4*rng.Float64()) },
		Latency: 1e-3 * rng.Float64(),
	}
}

// cases is how many random runs a test makes.
func cases() int {
	if testing.Short() {
		return 30
	}
	return 150
}

func randomParams(t testing.TB, rng *rand.Rand, policy twopointer.Policy) Params {
	_, p := preset(t, []float64{1, 10, 40, 80, 400}[rng.IntN(5)])
	p.Policy = policy
	p.Kind = twopointer.Engine(rng.IntN(2))
	p.Budget = []int{512, 2048, 8192}[rng.IntN(3)]
	p.Stages = []int{1, 1, 2, 4}[rng.IntN(4)]
	p.Channels = []int{1, p.Stages}[rng.IntN(2)]
	p.Loop = rng.IntN(4)
	for range 1 + rng.IntN(12) {
		q := Request{At: rng.Float64() * 0.2, Prefix: rng.IntN(9000), Suffix: rng.IntN(2000), Weight: float64(rng.IntN(3))}
		if rng.IntN(8) == 0 {
			q.Prefix = 0
		}
		p.Requests = append(p.Requests, q)
	}
	p.Truth = shaken(rng, p)
	return p
}

// Whatever is believed and whatever is true: every token of every request on every stage
// is computed or loaded exactly once, pointers only move towards each other, and every
// request gets its first token (Run and Scheduler check, and say which did not).
func TestRandomRunsRestoreEverythingOnce(t *testing.T) {
	t.Parallel()
	seed := uint64(20261120)
	t.Logf("seed %d", seed)
	for _, policy := range twopointer.Policies() {
		t.Run(policy.String(), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(policy)))
			for i := range cases() {
				p := randomParams(t, rng, policy)
				r, err := Run(p)
				require.NoError(t, err, "case %d: %+v", i, p.Requests)
				for k, o := range r.Outcomes {
					require.GreaterOrEqual(t, o.Restored, o.Arrived)
					require.GreaterOrEqual(t, o.First, o.Restored, "case %d request %d", i, k)
				}
			}
		})
	}
}

// Pieces that fail are computed instead, from boundary activations that are brought for them, and nothing
// else is.
func TestRandomFailuresAreIslands(t *testing.T) {
	t.Parallel()
	seed := uint64(4)
	t.Logf("seed %d", seed)
	for _, policy := range []twopointer.Policy{twopointer.Skep, twopointer.CacheFlow, twopointer.PerRequest, twopointer.LoadOnly} {
		rng := rand.New(rand.NewPCG(seed, uint64(policy)))
		for i := range cases() {
			p := randomParams(t, rng, policy)
			p.Truth.Fails = func(int, int, int) bool { return rng.IntN(4) == 0 }
			_, err := Run(p)
			require.NoError(t, err, "%v, case %d: %+v", policy, i, p.Requests)
		}
	}
}

// Stages that restore on their own, from stored boundary activations, beside the same four GPUs as a
// pipeline of prefill chunks: of 2,048 tokens as engines have them, and of the best of five sizes. Both
// have the same channels (one for each GPU, or their sum) and load every byte they need. What came
// out: 1.02 to 2.7 × as fast as chunks of 2,048, and 0.92 to 1.9 × as the best size; the longer the
// prompt, the less a pipeline has to fill, and the less is won.
func TestStagesAgainstThePipeline(t *testing.T) {
	t.Parallel()
	const stages = 4
	for _, gbit := range []float64{40, 160} {
		_, base := preset(t, gbit)
		for _, n := range []int{2048, 4096, 8192, 16384, 32768} {
			pipeline, chunk, usual := math.Inf(1), 0, 0.0
			for _, budget := range []int{256, 512, 1024, 2048, 4096} {
				p := base
				p.Policy, p.Stages, p.Channels, p.Budget = twopointer.NoStages, stages, 1, budget
				p.Requests = []Request{{Prefix: n}}
				p.Truth = Stated(p.Cost, p.Channel) // through all stages; the next chunk follows a stage behind
				r, err := Run(p)
				require.NoError(t, err)
				if budget == 2048 {
					usual = r.Outcomes[0].Restored
				}
				if r.Outcomes[0].Restored < pipeline {
					pipeline, chunk = r.Outcomes[0].Restored, budget
				}
			}
			p := base
			p.Policy, p.Stages, p.Channels = twopointer.Skep, stages, stages
			p.Channel.BytesPerSecond /= stages
			p.Requests = []Request{{Prefix: n}}
			p.Truth = Stated(p.Cost.Times(1./stages), p.Channel)
			r, err := Run(p)
			require.NoError(t, err)
			own := r.Outcomes[0]
			require.Less(t, own.Restored, 1.1*pipeline)
			require.Less(t, own.Restored, usual)
			kv := float64(n) * p.BytesPerToken
			t.Logf("%3.0f Gb/s in all, %5d tokens: pipeline %.1f ms (chunks of %d), on their own %.1f ms: %.2f ×; of chunks of 2048: %.2f ×; %.0f %% of the KV loaded, boundaries included", gbit, n, pipeline*1e3, chunk, own.Restored*1e3, pipeline/own.Restored, usual/own.Restored, 100*own.Loaded/kv)
		}
	}
}
