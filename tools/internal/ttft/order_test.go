package ttft

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/layout/twopointer/sim"
)

// No schedule of a closed loop, by whatever policy and engine, is below the bound of its own order of completion, but for what the
// fit of the engine's cost is off by.
func TestNoLoopIsBelowTheBoundOfItsOrder(t *testing.T) {
	t.Parallel()
	const seed = 3
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	g, err := twopointer.GPUNamed("h100")
	require.NoError(t, err)
	m, err := twopointer.ModelNamed("llama-3.1-8b")
	require.NoError(t, err)
	closest := 9.0
	for range 60 {
		w := &Workload{Name: "made up"}
		for range 20 + rng.IntN(40) {
			w.Requests = append(w.Requests, Prompt{Request: sim.Request{Prefix: 64 * (1 + rng.IntN(1500)), Suffix: 1 + rng.IntN(8000)}})
		}
		p := Point{Policy: twopointer.Policy(rng.IntN(len(twopointer.Policies()))), Engine: twopointer.Engine(rng.IntN(2)), Bandwidth: 5 + 80*rng.Float64(), Loop: 2 + rng.IntN(7), Steady: true}
		e := p.engine(g, m, 1)
		res, err := virtual(w, e, m, p)
		require.NoError(t, err)
		mean := 0.0
		for _, o := range res.Outcomes {
			mean += (o.First - o.Arrived) / float64(len(w.Requests))
		}
		least := orderBound(w, res.Outcomes, e, m, p.Bandwidth, p.Loop)
		closest = min(closest, mean/least)
		require.Greater(t, mean, 0.995*least, "%v, %v, %d requests, %d at once, %.0f Gb/s", p.Policy, p.Engine, len(w.Requests), p.Loop, p.Bandwidth)
	}
	t.Logf("closest: %.3f × its bound", closest)
}

// Where it can be said what is least: two requests at once of which one has nothing to load need both their engine seconds.
func TestOrderBoundOfSuffixes(t *testing.T) {
	t.Parallel()
	all := []served{{suffix: 1, first: 0, last: 0}, {suffix: 1, first: 0, last: 1}, {suffix: 1, first: 1, last: 2}}
	// One second each: the first completes at 1, the second at 2, the third, sent at 1, at 3: 1 + 2 + 2.
	require.InDelta(t, 5.0/3, ascend(all, 2), 1e-6)
}
