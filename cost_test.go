package skep_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func TestComputeValidate(t *testing.T) {
	t.Parallel()
	const cost, square = "recompute cost", "recompute cost of a token squared in ns"
	some := skep.RecomputeCost{PerToken: time.Microsecond}
	for _, c := range []struct {
		name  string
		c     skep.Compute
		field string // at fault; "" when there is none
	}{
		{"a cost", skep.Compute{Cost: some}, ""},
		{"none", skep.Compute{}, cost},
		{"negative", skep.Compute{Cost: skep.RecomputeCost{Fixed: -1, PerToken: 1}}, cost},
		{"the greatest square", skep.Compute{Cost: skep.RecomputeCost{PerTokenSquared: 1e9}}, ""},
		{"a square that is nothing in seconds", skep.Compute{Cost: skep.RecomputeCost{PerTokenSquared: 5e-324}}, cost},
		{"the least square", skep.Compute{Cost: skep.RecomputeCost{PerTokenSquared: 1e-300}}, ""},
		{"a greater square", skep.Compute{Cost: skep.RecomputeCost{PerTokenSquared: 1.001e9}}, square},
		{"a square that makes all else infinite", skep.Compute{Cost: skep.RecomputeCost{PerTokenSquared: 1e300}}, square},
		{"an infinite square", skep.Compute{Cost: skep.RecomputeCost{PerTokenSquared: math.Inf(1)}}, square},
		{"a negative square", skep.Compute{Cost: skep.RecomputeCost{PerToken: 1, PerTokenSquared: -1}}, cost},
		{"a square that is no number", skep.Compute{Cost: skep.RecomputeCost{PerToken: 1, PerTokenSquared: math.NaN()}}, cost},
		{"a negative suffix", skep.Compute{Cost: some, Suffix: -1}, "suffix in tokens"},
		{"an infinite weight", skep.Compute{Cost: some, Weight: math.Inf(1)}, "weight"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.c.Validate(); c.field == "" {
				require.NoError(t, err)
			} else {
				requireInvalid(t, err, c.field)
			}
		})
	}
}

// A lookup's cost may be nothing, and everything else that can be reckoned with.
func TestLookupRefusesACostThatIsNone(t *testing.T) {
	t.Parallel()
	const fixed, token, square = "fixed recompute cost", "recompute cost of a token", "recompute cost of a token squared in ns"
	for _, c := range []struct {
		name  string
		cost  *skep.RecomputeCost
		field string // at fault; "" when there is none
		value any
		limit string
	}{
		{"none", nil, "", nil, ""},
		{"nothing", &skep.RecomputeCost{}, "", nil, ""},
		{"the greatest", &skep.RecomputeCost{Fixed: math.MaxInt64, PerToken: math.MaxInt64, PerTokenSquared: 1e9}, "", nil, ""},
		{"negative", &skep.RecomputeCost{Fixed: -1}, fixed, time.Duration(-1), "0 or more"},
		{"negative for a token", &skep.RecomputeCost{PerToken: -2}, token, time.Duration(-2), "0 or more"},
		{"a negative square", &skep.RecomputeCost{PerTokenSquared: -3}, square, -3.0, "0 to 1e+09"},
		{"a greater square", &skep.RecomputeCost{PerTokenSquared: 1.5e9}, square, 1.5e9, "0 to 1e+09"},
		{"an infinite square", &skep.RecomputeCost{PerTokenSquared: math.Inf(1)}, square, math.Inf(1), "0 to 1e+09"},
		{"a square that is no number", &skep.RecomputeCost{PerTokenSquared: math.NaN()}, square, nil, "0 to 1e+09"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := (&skep.LookupRequest{Cost: c.cost}).Validate()
			if c.field == "" {
				require.NoError(t, err)
				return
			}
			requireInvalid(t, err, c.field)
			var e *skep.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.limit, e.Limit)
			if c.value == nil {
				v, ok := e.Value.(float64)
				require.True(t, ok && math.IsNaN(v), e.Value)
			} else {
				require.Equal(t, c.value, e.Value)
			}
		})
	}
}

// What a cost comes to ends at the longest time there is.
func TestRecomputeCostDoesNotOverflow(t *testing.T) {
	t.Parallel()
	const longest, least = time.Duration(math.MaxInt64), time.Duration(math.MinInt64)
	for _, c := range []struct {
		name   string
		cost   skep.RecomputeCost
		tokens int
		want   time.Duration
	}{
		{"nothing", skep.RecomputeCost{}, 1 << 20, 0},
		{"all three", skep.RecomputeCost{Fixed: time.Second, PerToken: time.Millisecond, PerTokenSquared: 2}, 1000, time.Second + time.Second + 2*time.Millisecond},
		{"exact beside a long one", skep.RecomputeCost{Fixed: longest - 1, PerToken: 1}, 1, longest},
		{"a square too long", skep.RecomputeCost{PerTokenSquared: 1e9}, 1 << 30, longest},
		{"tokens too long", skep.RecomputeCost{PerToken: longest}, 2, longest},
		{"a sum too long", skep.RecomputeCost{Fixed: longest, PerToken: time.Nanosecond}, 1, longest},
		{"no number", skep.RecomputeCost{PerTokenSquared: math.NaN()}, 1, longest},
		{"unvalidated, below all", skep.RecomputeCost{Fixed: least, PerToken: least}, 2, least},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, c.cost.Of(c.tokens)) })
	}
}
