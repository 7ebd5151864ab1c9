package twopointer

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func TestFitFindsTheCostBehindExactPoints(t *testing.T) {
	t.Parallel()
	want := Cost{Fixed: 5e-3, PerToken: 30e-6, PerSquare: 6e-10}
	var points []Point
	for _, n := range []int{256, 1024, 4096, 16384} {
		points = append(points, Point{0, n, want.Of(n)}, Point{n, 2 * n, want.Fixed + want.Span(n, 2*n)})
	}
	got, err := Fit(points)
	require.NoError(t, err)
	require.InEpsilon(t, want.Fixed, got.Fixed, 1e-6)
	require.InEpsilon(t, want.PerToken, got.PerToken, 1e-6)
	require.InEpsilon(t, want.PerSquare, got.PerSquare, 1e-6)
}

func TestFitIsNeverNegative(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var points []Point
		for range 1 + rng.IntN(6) {
			n := 1 + rng.IntN(50000)
			points = append(points, Point{0, n, rng.Float64() + 1e-3})
		}
		c, err := Fit(points)
		require.NoError(t, err, "%v", points)
		require.True(t, c.Valid(), "%v gave %+v", points, c)
	}
}

func TestFitWithFewPoints(t *testing.T) {
	t.Parallel()
	one, err := Fit([]Point{{0, 1000, 0.03}})
	require.NoError(t, err)
	require.InEpsilon(t, 0.03, one.Of(1000), 1e-9)
	two, err := Fit([]Point{{0, 1000, 0.03}, {0, 4000, 0.15}})
	require.NoError(t, err)
	require.InEpsilon(t, 0.03, two.Of(1000), 1e-6)
	require.InEpsilon(t, 0.15, two.Of(4000), 1e-6)
	for _, bad := range [][]Point{nil, {{0, 0, 1}}, {{5, 2, 1}}, {{0, 5, 0}}, {{0, 5, math.NaN()}}, {{0, 5, math.Inf(1)}}} {
		_, err := Fit(bad)
		require.ErrorIs(t, err, skep.Invalid)
	}
}

func TestCostRoundTripsThroughTheAPI(t *testing.T) {
	t.Parallel()
	c := skep.RecomputeCost{Fixed: 5 * time.Millisecond, PerToken: 30 * time.Microsecond, PerTokenSquared: 0.6}
	require.Equal(t, c, CostOf(c).Recompute())
	require.InEpsilon(t, c.Of(20000).Seconds(), CostOf(c).Of(20000), 1e-6)
}

// A preset says what engines are seen to do: 20,000 tokens of an 8B model in about 0.9 s on an H100.
func TestPresets(t *testing.T) {
	t.Parallel()
	g, err := GPUNamed("h100")
	require.NoError(t, err)
	m, err := ModelNamed("qwen3-8b")
	require.NoError(t, err)
	require.InDelta(t, 0.9, PresetCost(g, m).Of(20000), 0.1)
	require.Equal(t, int64(147456), m.BytesPerToken())
	for _, m := range Models() {
		require.NoError(t, m.Shape(64).Validate(), m.Name)
		require.NotEmpty(t, m.Source)
		for _, g := range GPUs() {
			require.True(t, PresetCost(g, m).Valid(), "%s on %s", m.Name, g.Name)
		}
	}
	_, err = ModelNamed("nonesuch")
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "qwen3-8b")
}
