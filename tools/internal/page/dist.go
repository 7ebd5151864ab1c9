package page

import (
	"bytes"
	"fmt"
	"math"
	"strings"
)

// drawDistribution draws CDF and Histogram over a log axis of the values.
func drawDistribution(b *bytes.Buffer, c *Chart) {
	var ex extent
	for _, s := range c.Series {
		for _, k := range s.Buckets {
			if k.Count > 0 {
				lo, hi := k.ends()
				ex.add(lo)
				ex.add(hi)
			}
		}
	}
	xs, xv := logarithmic(ex.lo, ex.hi, false)
	xs.from, xs.to = plotLeft, plotRight
	x, y := c.X, Axis{Label: "share at or below", Unit: Ratio}
	x.Log = true
	if c.Kind == Histogram {
		drawHistogram(b, c, x, xs, xv)
		return
	}
	ys, yv := linear(0, 1, 5, true)
	ys.from, ys.to = plotBottom, plotTop
	drawGrid(b, x, y, xs, ys, xv, yv)
	for i, s := range c.Series {
		n := total(s.Buckets)
		if n == 0 {
			continue
		}
		sum := 0.0
		points := []Point{}
		for _, k := range s.Buckets {
			if k.Count == 0 {
				continue
			}
			// Straight from a bucket's one end to the other: values are
			// taken to be spread evenly between.
			lo, hi := k.ends()
			points = append(points, Point{lo, sum / n})
			sum += k.Count
			points = append(points, Point{hi, sum / n})
		}
		fmt.Fprintf(b, "\n"+`<path class="line s%d" d="%s"/>`, i, pathData(thin(points, xs, ys)))
		for _, q := range []float64{.5, .99} {
			v := quantile(s.Buckets, q)
			fmt.Fprintf(b, `<circle class="s%d" cx="%s" cy="%s" r="4"><title>%s</title></circle>`,
				i, num(xs.at(v)), num(ys.at(q)), esc(fmt.Sprintf("%s: p%g is %s", s.Name, q*100, format(x.Unit, v))))
		}
	}
	drawHover(b, xs, func(v float64) string {
		lines := []string{"at or below " + format(x.Unit, v)}
		for _, s := range c.Series {
			lines = append(lines, s.Name+": "+format(Ratio, below(s.Buckets, v)))
		}
		return strings.Join(lines, "\n")
	})
}

// bins is how many columns a histogram has.
const bins = 64

func drawHistogram(b *bytes.Buffer, c *Chart, x Axis, xs scale, xv []float64) {
	shares := make([][]float64, len(c.Series))
	top := 0.0
	for i, s := range c.Series {
		shares[i] = rebin(s.Buckets, xs)
		for _, v := range shares[i] {
			top = max(top, v)
		}
	}
	ys, yv := linear(0, top, 5, true)
	ys.from, ys.to = plotBottom, plotTop
	drawGrid(b, x, Axis{Label: "share", Unit: Ratio}, xs, ys, xv, yv)
	w := (plotRight - plotLeft) / bins
	for i := range c.Series {
		var d strings.Builder
		fmt.Fprintf(&d, "M%s %s", num(plotLeft), num(plotBottom))
		for k, v := range shares[i] {
			fmt.Fprintf(&d, "V%sH%s", num(ys.at(v)), num(plotLeft+float64(k+1)*w))
		}
		fmt.Fprintf(&d, "V%s", num(plotBottom))
		fmt.Fprintf(b, "\n"+`<path class="area s%d" d="%s"/>`, i, d.String())
	}
	b.WriteByte('\n')
	for k := range bins {
		left := plotLeft + float64(k)*w
		lines := []string{format(x.Unit, xs.value(left)) + " to " + format(x.Unit, xs.value(left+w))}
		for i, s := range c.Series {
			lines = append(lines, s.Name+": "+format(Ratio, shares[i][k]))
		}
		fmt.Fprintf(b, `<rect class="hit" x="%s" y="%s" width="%s" height="%s"><title>%s</title></rect>`,
			num(left), num(plotTop), num(w), num(plotBottom-plotTop), esc(strings.Join(lines, "\n")))
	}
}

// ends are a bucket's bounds on a log axis, where zero has no place: what is
// counted there stands at a thousandth of the bucket's upper end.
func (k Bucket) ends() (lo, hi float64) {
	if k.High == 0 {
		return smallest, smallest
	}
	return max(k.Low, k.High/1000), k.High
}

// smallest stands for a bucket of zeros: a nanosecond, in the unit that
// distributions nearly always have.
const smallest = 1e-9

// rebin spreads buckets over bins columns of equal width on the log axis, and
// returns the share in each.
func rebin(buckets []Bucket, xs scale) []float64 {
	out := make([]float64, bins)
	n := total(buckets)
	if n == 0 {
		return out
	}
	column := func(v float64) float64 { return (xs.at(v) - xs.from) / (xs.to - xs.from) * bins }
	for _, k := range buckets {
		if k.Count == 0 {
			continue
		}
		lo, hi := k.ends()
		a, z := column(lo), column(hi)
		first := min(max(int(a), 0), bins-1)
		last := min(max(int(z), first), bins-1)
		if z-a < 1e-9 || first == last {
			out[first] += k.Count / n
			continue
		}
		for i := first; i <= last; i++ {
			overlap := math.Min(z, float64(i+1)) - math.Max(a, float64(i))
			out[i] += k.Count / n * max(overlap, 0) / (z - a)
		}
	}
	return out
}

// quantile is where a share q of the counts lies at or below, straight inside
// its bucket.
func quantile(buckets []Bucket, q float64) float64 {
	want, sum, last := q*total(buckets), 0.0, 0.0
	for _, k := range buckets {
		if k.Count == 0 {
			continue
		}
		lo, hi := k.ends()
		if sum+k.Count >= want {
			return lo + (hi-lo)*(want-sum)/k.Count
		}
		sum += k.Count
		last = hi
	}
	return last
}

// below is the share of the counts at or below v, the inverse of quantile.
func below(buckets []Bucket, v float64) float64 {
	n, sum := total(buckets), 0.0
	if n == 0 {
		return 0
	}
	for _, k := range buckets {
		lo, hi := k.ends()
		switch {
		case v >= hi:
			sum += k.Count
		case v > lo:
			sum += k.Count * (v - lo) / (hi - lo)
		}
	}
	return sum / n
}
