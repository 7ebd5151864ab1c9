package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/layout/twopointer/sim"
)

func emulated(t *testing.T) *Emulated {
	g, err := twopointer.GPUNamed("h100")
	require.NoError(t, err)
	m, err := twopointer.ModelNamed("qwen3-8b")
	require.NoError(t, err)
	return New(g, m, 1)
}

// The emulation does what engines are seen to do: 20,000 tokens in 0.7 to 1 s, and small steps at a
// fixed cost.
func TestMean(t *testing.T) {
	t.Parallel()
	e := emulated(t)
	require.InDelta(t, 0.85, e.Prefill(0, 20000, 8192), 0.2)
	one := e.Mean([]sim.Item{{From: 0, To: 1, Layers: 1}})
	require.Less(t, e.Mean([]sim.Item{{From: 0, To: 64, Layers: 1}}), 2.2*one, "64 tokens take little longer than one")
	require.InEpsilon(t, e.Mean([]sim.Item{{From: 0, To: 2048, Layers: 1}}), 2*e.Mean([]sim.Item{{From: 0, To: 2048, Layers: .5}}), 1e-9)
	require.Zero(t, e.Mean(nil))
}

// What is fitted to its points is close and not the same: another functional form.
func TestStatedIsCloseAndNotTheSame(t *testing.T) {
	t.Parallel()
	e := emulated(t)
	c := e.Stated()
	worst := 0.0
	for _, n := range []int{512, 700, 1500, 3000, 6000, 8192} {
		ratio := c.Of(n) / e.Mean([]sim.Item{{From: 0, To: n, Layers: 1}})
		require.InDelta(t, 1, ratio, 0.25, "%d tokens", n)
		worst = max(worst, ratio-1, 1-ratio)
	}
	require.Greater(t, worst, 0.01)
}

func TestNoiseAndTheStepInTheMiddle(t *testing.T) {
	t.Parallel()
	e, same := emulated(t), emulated(t)
	items := []sim.Item{{From: 0, To: 4096, Layers: 1}}
	sum := 0.0
	for range 2000 {
		s := e.Step(items)
		require.Equal(t, s, same.Step(items))
		require.InDelta(t, 1, s/e.Mean(items), Noise+1e-9)
		sum += s
	}
	require.InEpsilon(t, e.Mean(items), sum/2000, 0.02)
	e.Progress(0.4)
	require.Equal(t, 1.0, e.Slow())
	e.Progress(0.6)
	require.InDelta(t, 2, e.Step(items)/e.Mean(items), 2*Noise+1e-9)
}
