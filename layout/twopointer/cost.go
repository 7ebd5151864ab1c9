package twopointer

import (
	"fmt"
	"math"
	"time"

	"github.com/skepkv/skep"
)

// Cost is what computing costs, in seconds: a launch that computes tokens [from, to) of a
// prompt takes Fixed + (to−from)·PerToken + (to²−from²)·PerSquare. The square is
// attention's share; Fixed is the kernels' launch and the reading of the weights.
type Cost struct {
	Fixed     float64
	PerToken  float64
	PerSquare float64
}

// CostOf turns an engine's statement into a Cost.
func CostOf(c skep.RecomputeCost) Cost {
	return Cost{c.Fixed.Seconds(), c.PerToken.Seconds(), c.PerTokenSquared / 1e9}
}

// Recompute turns c into the API's form, rounded to nanoseconds a token.
func (c Cost) Recompute() skep.RecomputeCost {
	return skep.RecomputeCost{Fixed: seconds(c.Fixed), PerToken: seconds(c.PerToken), PerTokenSquared: c.PerSquare * 1e9}
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }

// Span is the time of tokens [from, to) without the launch.
func (c Cost) Span(from, to int) float64 {
	f, t := float64(from), float64(to)
	return (t-f)*c.PerToken + (t*t-f*f)*c.PerSquare
}

// Of is the time of one launch that computes the first n tokens; 0 for none.
func (c Cost) Of(n int) float64 {
	if n <= 0 {
		return 0
	}
	return c.Fixed + c.Span(0, n)
}

// Times is c with everything f times as slow.
func (c Cost) Times(f float64) Cost {
	return Cost{c.Fixed * f, c.PerToken * f, c.PerSquare * f}
}

// Valid says whether c can be reckoned with: finite, nothing negative, something positive.
func (c Cost) Valid() bool {
	sum := c.Fixed + c.PerToken + c.PerSquare
	return c.Fixed >= 0 && c.PerToken >= 0 && c.PerSquare >= 0 && sum > 0 && !math.IsInf(sum, 0)
}

// Point is one measurement of an engine: computing tokens [From, To) took Seconds.
type Point struct {
	From, To int
	Seconds  float64
}

// Fit finds the Cost closest to the points, by least squares of the relative error, with
// nothing negative. Few points give fewer terms: one point gives a cost a token, two give
// two terms. Points without tokens or time are Invalid.
func Fit(points []Point) (Cost, error) {
	const op = "fit recompute cost"
	if len(points) == 0 {
		return Cost{}, skep.Invalidf(op, "points", 0, "at least 1")
	}
	rows := make([][3]float64, len(points))
	for i, p := range points {
		if p.From < 0 || p.To <= p.From {
			return Cost{}, skep.Invalidf(op, fmt.Sprintf("tokens of point %d", i), fmt.Sprintf("%d to %d", p.From, p.To), "at least 1 token")
		}
		if !(p.Seconds > 0) || math.IsInf(p.Seconds, 0) {
			return Cost{}, skep.Invalidf(op, fmt.Sprintf("seconds of point %d", i), p.Seconds, "above 0")
		}
		f, t := float64(p.From), float64(p.To)
		rows[i] = [3]float64{1 / p.Seconds, (t - f) / p.Seconds, (t*t - f*f) / p.Seconds}
	}
	best, bestErr := Cost{}, math.Inf(1)
	// Of all subsets of terms, the best that comes out without a negative one. The least
	// squares solution under x ≥ 0 is the unconstrained one of some subset, so none is missed.
	for terms := 1; terms < 8; terms++ {
		x, ok := solve(rows, terms)
		if !ok {
			continue
		}
		err := 0.0
		for _, r := range rows {
			d := r[0]*x[0] + r[1]*x[1] + r[2]*x[2] - 1
			err += d * d
		}
		// Ties go to what came first, which has the fewer terms.
		if c := (Cost{x[0], x[1], x[2]}); c.Valid() && err < bestErr*(1-1e-9)-1e-15 {
			best, bestErr = c, err
		}
	}
	if math.IsInf(bestErr, 1) {
		return Cost{}, skep.Invalidf(op, "points", len(points), "points that a cost can be fitted to")
	}
	return best, nil
}

// solve is least squares of rows·x = 1 over the terms whose bits are set.
func solve(rows [][3]float64, terms int) (x [3]float64, ok bool) {
	var at []int
	for i := range 3 {
		if terms&(1<<i) != 0 {
			at = append(at, i)
		}
	}
	if len(at) > len(rows) {
		return x, false
	}
	// Columns are scaled to length 1, so that seconds and seconds a square token compare.
	var scale [3]float64
	for _, i := range at {
		for _, r := range rows {
			scale[i] += r[i] * r[i]
		}
		scale[i] = math.Sqrt(scale[i])
	}
	n := len(at)
	m := make([][4]float64, n)
	for a, i := range at {
		for b, j := range at {
			for _, r := range rows {
				m[a][b] += r[i] * r[j] / (scale[i] * scale[j])
			}
		}
		for _, r := range rows {
			m[a][3] += r[i] / scale[i]
		}
	}
	for col := range n {
		pivot := col
		for r := col + 1; r < n; r++ {
			if math.Abs(m[r][col]) > math.Abs(m[pivot][col]) {
				pivot = r
			}
		}
		m[col], m[pivot] = m[pivot], m[col]
		if math.Abs(m[col][col]) < 1e-12 {
			return x, false
		}
		for r := range n {
			if r == col {
				continue
			}
			f := m[r][col] / m[col][col]
			for k := range m[r] {
				m[r][k] -= f * m[col][k]
			}
		}
	}
	for a, i := range at {
		x[i] = m[a][3] / m[a][a] / scale[i]
	}
	return x, true
}
