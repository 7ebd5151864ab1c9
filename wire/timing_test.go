package wire

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/server"
)

// Whether a key of another tenant exists cannot be told from how long the answer takes.
//
// Stated test: tenant b looks up keys that tenant a has stored, and keys that nobody
// has, 10,000 times each, in an order drawn at random, first in its own namespace, then
// in a's (which is answered like one that is not there). The two samples are compared by
// the Mann-Whitney U test, which asks whether one tends to be larger. With no difference
// z is normal with deviation 1. The test fails when |z| > 5 in three runs out of three: a
// difference of a tenth of the spread would give |z| of about 4 in one run of its own and
// grow with the runs; chance gives three such runs once in 10^18.
//
// It is a benchmark, `make timing`, since it measures: for a machine that does nothing else.
func BenchmarkTimingTellsNothingOfOtherTenants(t *testing.B) {
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Auth: directory(t)})
	dial := func(token string) *Client {
		o := r.options()
		o.Token, o.Conns, o.Strict = token, 1, true
		return r.dial(t, o)
	}
	a, b := dial(tokenA), dial(tokenB)
	theirs := chainOf(t, a, "a", 64)
	own := chainOf(t, b, "b", 1)
	nobodys := make([]skep.Key, 64)
	for i := range nobodys {
		nobodys[i] = skep.KeyOf([]byte{byte(i), 'n'})
	}
	for name, scope := range map[string]skep.Scope{"in one's own namespace": own.Scope, "in theirs": theirs.Scope} {
		t.Run(name, func(t *testing.B) {
			var worst []float64
			for range 3 {
				z := math.Abs(compare(t, b, scope, theirs.Keys[1:], nobodys[1:]))
				t.ReportMetric(z, "z")
				worst = append(worst, z)
				if z <= 5 {
					return
				}
			}
			t.Fatalf("|z| = %.1f each time", worst)
		})
	}
}

func compare(t *testing.B, c *Client, scope skep.Scope, stored, none []skep.Key) float64 {
	t.Helper()
	const samples = 10_000
	var took [2][]float64
	for len(took[0]) < samples || len(took[1]) < samples {
		which := rand.IntN(2)
		if len(took[which]) == samples {
			which = 1 - which
		}
		keys := [2][]skep.Key{stored, none}[which]
		k := keys[rand.IntN(len(keys))]
		began := time.Now()
		_, err := c.Lookup(context.Background(), &skep.LookupRequest{Scope: scope, Keys: []skep.Key{k}, Lease: skep.NoLease})
		took[which] = append(took[which], float64(time.Since(began)))
		if err != nil {
			require.ErrorIs(t, err, skep.NotFound)
		}
	}
	return mannWhitney(took[0], took[1])
}

// mannWhitney is the standard score of U for two samples (normal approximation; ties
// share their ranks).
func mannWhitney(a, b []float64) float64 {
	type value struct {
		v     float64
		fromA bool
	}
	var all []value
	for _, v := range a {
		all = append(all, value{v, true})
	}
	for _, v := range b {
		all = append(all, value{v, false})
	}
	slices.SortFunc(all, func(x, y value) int {
		switch {
		case x.v < y.v:
			return -1
		case x.v > y.v:
			return 1
		}
		return 0
	})
	var ranks float64
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].v == all[i].v {
			j++
		}
		rank := float64(i+j+1) / 2
		for ; i < j; i++ {
			if all[i].fromA {
				ranks += rank
			}
		}
	}
	n, m := float64(len(a)), float64(len(b))
	u := ranks - n*(n+1)/2
	return (u - n*m/2) / math.Sqrt(n*m*(n+m+1)/12)
}

func TestMannWhitneySeesADifference(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	var a, b, shifted []float64
	for range 10_000 {
		a, b = append(a, rnd.NormFloat64()), append(b, rnd.NormFloat64())
		shifted = append(shifted, rnd.NormFloat64()+0.1)
	}
	require.Less(t, math.Abs(mannWhitney(a, b)), 4.0)
	require.Greater(t, math.Abs(mannWhitney(a, shifted)), 5.0)
}
