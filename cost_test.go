package skep_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func TestComputeValidate(t *testing.T) {
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
