package resp

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/wire/auth"
)

// BenchmarkAnotherTenantsKeysCannotBeTimed is the stated test of invariant "a namespace never
// sees another's blocks, hit times included": 10,000 EXISTS of a key another tenant has
// and 10,000 of one nobody has, in random order over one connection. The rank sum of
// their times (Mann and Whitney) must be within 5 standard deviations of what chance
// gives; a hit of one's own, which is told to be one, is far outside, so the test would
// notice. The claim rests on the design, that a tenant's name is resolved to its own
// namespaces before any key is looked at; this is its check. It is a benchmark, `make timing`,
// since it measures: for a machine that does nothing else.
func BenchmarkAnotherTenantsKeysCannotBeTimed(t *testing.B) {
	d, err := auth.New([]auth.Credential{credential(t, "owner", tokenOwner, auth.All), credential(t, "other", tokenOther, auth.All)}, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d})
	owner, other := f.dial(), f.dial()
	require.Equal(t, "+OK", owner.do("AUTH", tokenOwner))
	require.Equal(t, "+OK", other.do("AUTH", tokenOther))
	require.Equal(t, "+OK", owner.words("SET theirs-key v"))
	require.Equal(t, "+OK", other.words("SET own-my-key v"))
	const n = 10_000
	_ = other.SetDeadline(time.Now().Add(2 * time.Minute))
	z := func(a, b, replyA string) float64 {
		samples := make([]sample, 0, 2*n)
		for i := range 2 * n {
			samples = append(samples, sample{first: i < n})
		}
		rand.Shuffle(len(samples), func(i, j int) { samples[i], samples[j] = samples[j], samples[i] })
		for i := range samples {
			key, want := b, "0"
			if samples[i].first {
				key, want = a, replyA
			}
			start := time.Now()
			got := other.do("EXISTS", key)
			samples[i].took = time.Since(start)
			require.Equal(t, want, got)
		}
		return rankSum(samples)
	}
	theirs := z("theirs-key", "nobody-key", "0")
	own := z("own-my-key", "nobody-key", "1")
	t.ReportMetric(math.Abs(theirs), "z-theirs")
	t.ReportMetric(math.Abs(own), "z-own")
	assert.Less(t, math.Abs(theirs), 5.0)
	assert.Greater(t, math.Abs(own), 20.0, "the test can tell a hit")
}

type sample struct {
	first bool
	took  time.Duration
}

// rankSum is the standard score of the rank sum of the first kind.
func rankSum(s []sample) float64 {
	slices.SortFunc(s, func(a, b sample) int { return int(a.took - b.took) })
	var sum, n1, n2 float64
	for i, x := range s {
		if x.first {
			sum += float64(i + 1)
			n1++
		} else {
			n2++
		}
	}
	mean := n1 * (n1 + n2 + 1) / 2
	return (sum - mean) / math.Sqrt(n1*n2*(n1+n2+1)/12)
}
