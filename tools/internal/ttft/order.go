package ttft

import (
	"cmp"
	"math"
	"slices"

	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/layout/twopointer/sim"
	"github.com/skepkv/skep/tools/internal/engine"
)

// served is what a request of a closed loop needs of engine and channel, and between which completions it is there.
type served struct {
	tokens              float64 // stored
	perToken, perSquare float64 // engine seconds
	load                float64 // channel seconds a token
	suffix              float64 // engine seconds
	first, last         int     // intervals: the k-th ends with the k-th completion
}

// priced is the least of engine·p + channel·q over all splits, and the seconds of both.
func (s *served) priced(p, q float64) (value, compute, load float64) {
	x, gain := 0.0, q*s.load-p*s.perToken
	switch {
	case gain <= 0:
	case p*s.perSquare > 0:
		x = min(s.tokens, gain/(2*p*s.perSquare))
	default:
		x = s.tokens
	}
	compute = s.suffix + x*s.perToken + x*x*s.perSquare
	load = (s.tokens - x) * s.load
	return p*compute + q*load, compute, load
}

// orderBound is the least mean TTFT, in seconds, that a closed loop can have whose requests complete in the order of outcomes: a
// request can be served only from when it is sent, which is when the one a loop before it in that
// order completes, until it completes itself. Launches cost nothing, splits fall anywhere, a suffix waits for
// nothing. With t(k) from one completion to the next and n(k) requests under way, Σ n(k)·t(k) is
// minimised; of that the dual is reckoned,
//
//	max over 0 ≤ θ(k) ≤ n(k) of  Σ over requests of  min over splits of  compute · min θ + load · min (n − θ),
//
// the minima over a request's intervals. Any θ gives a bound; a subgradient ascent finds a good one.
func orderBound(w *Workload, outcomes []sim.Outcome, e *engine.Emulated, m twopointer.Model, gbps float64, loop int) float64 {
	n := len(outcomes)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(outcomes[a].First, outcomes[b].First) })
	last := make([]int, n)
	for k, i := range order {
		last[i] = k
	}
	work, load := e.Work(budget), float64(m.BytesPerToken())/(gbps/8*1e9)
	all := make([]served, n)
	for i, q := range w.Requests {
		c := work
		if 2*i >= n && e.Factor > 0 {
			c = work.Times(e.Factor)
		}
		all[i] = served{tokens: float64(q.Prefix), perToken: c.PerToken, perSquare: c.PerSquare, load: load,
			suffix: c.Span(q.Prefix, q.Prefix+q.Suffix), first: max(0, i-loop+1), last: last[i]}
	}
	return ascend(all, loop)
}

// ascend looks for the prices of the intervals that give the largest bound.
func ascend(all []served, loop int) float64 {
	const rounds = 1500
	n := len(all)
	there := make([]float64, n) // requests under way
	for k := range there {
		there[k] = float64(min(loop, n-k))
	}
	theta, up, mean, square := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	best, at := 0.0, 0.0
	for t := 0.0; t <= 1; t += 1.0 / 64 {
		for k := range theta {
			theta[k] = t * there[k]
		}
		if v := dual(all, there, theta, up); v > best {
			best, at = v, t
		}
	}
	for k := range theta {
		theta[k] = at * there[k]
	}
	for r := range rounds { // steps of Adam, upwards, that shrink a thousandfold
		best = max(best, dual(all, there, theta, up))
		rate := 0.03 * float64(loop) * math.Pow(0.001, float64(r)/rounds)
		for k := range theta {
			mean[k] += (up[k] - mean[k]) * .1
			square[k] += (up[k]*up[k] - square[k]) * .01
			if square[k] > 0 {
				theta[k] = min(max(theta[k]+rate*mean[k]/math.Sqrt(square[k]), 0), there[k])
			}
		}
	}
	return best / float64(n)
}

// dual is the bound on Σ n(k)·t(k) that theta gives; up is set to where it rises.
func dual(all []served, there, theta, up []float64) float64 {
	clear(up)
	sum := 0.0
	for i := range all {
		s := &all[i]
		p, q, pk, qk := math.Inf(1), math.Inf(1), 0, 0
		for k := s.first; k <= s.last; k++ {
			if theta[k] < p {
				p, pk = theta[k], k
			}
			if f := there[k] - theta[k]; f < q {
				q, qk = f, k
			}
		}
		v, compute, load := s.priced(p, q)
		sum += v
		up[pk] += compute
		up[qk] -= load
	}
	return sum
}
