package page

import (
	"bytes"
	"fmt"
	"io"
	"math"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/hist"
)

// Report is what a page says.
type Report struct {
	Title    string
	Subtitle string // what was measured, on what
	Summary  []Row  // the figures to see first
	Charts   []Chart
	Notes    []string // how it was measured, what to mind; a paragraph each
}

// Row is one figure of the summary, its value formatted with its unit.
type Row struct {
	Name  string
	Value string
	Note  string // small print: a goal, a comparison, a spread
}

// Kind is how a chart draws its series.
type Kind int

const (
	// Line draws each series' Points, joined; X must not decrease.
	Line Kind = iota
	// GroupedBars draws each series' Values side by side, a group for each category.
	GroupedBars
	// StackedBars draws each series' Values on top of each other, a bar for each category.
	StackedBars
	// CDF draws the share of each series' Buckets at or below a value.
	CDF
	// Histogram draws the share of each series' Buckets around a value.
	Histogram
)

// Units that are scaled when printed. Any other Unit is printed as it is.
const (
	Seconds        = "s"     // 0.0012 is 1.2 ms
	Bytes          = "B"     // decimal prefixes
	BytesPerSecond = "B/s"   // decimal prefixes
	Ratio          = "ratio" // .364 is 36.4 %
)

// Axis is a direction of a chart.
type Axis struct {
	Label string
	Unit  string
	Log   bool // base 10; every value must be > 0. The X axis of distributions is always logarithmic
}

// Chart is one figure. Bars have no X axis but Categories; the Y axis of
// distributions is a share, and their Y is ignored.
type Chart struct {
	Kind       Kind
	Title      string
	Note       string // one sentence under the title
	X, Y       Axis
	Categories []string // bars only
	Series     []Series // at most MaxSeries
	Limits     []Limit  // level dashed lines; not for distributions
}

// Series is one line, one colour of bars or one distribution: exactly the
// field that the chart's Kind calls for is used.
type Series struct {
	Name    string
	Points  []Point   // Line
	Values  []float64 // bars: one for each category, ≥ 0
	Buckets []Bucket  // CDF, Histogram: ascending, not overlapping
}

// Point is a place in a Line chart.
type Point struct{ X, Y float64 }

// Bucket says that Count values lie in [Low, High], 0 ≤ Low ≤ High.
type Bucket struct{ Low, High, Count float64 }

// Limit is a bound to compare with, such as what the devices can do.
type Limit struct {
	Name string
	Y    float64
}

// Latencies makes a series of a histogram, in seconds.
func Latencies(name string, h *hist.Hist) Series {
	s := Series{Name: name}
	for b := range h.Buckets() {
		// The outermost buckets are as wide as their counters; what was
		// recorded is known more exactly.
		lo, hi := max(b.Low, h.Min()), min(b.High, h.Max())
		s.Buckets = append(s.Buckets, Bucket{lo.Seconds(), hi.Seconds(), float64(b.Count)})
	}
	return s
}

// What a page may hold.
const (
	MaxSeries     = 8 // in a chart
	MaxCategories = 64
	MaxPoints     = 1 << 20 // in a series
	MaxCharts     = 256
)

// Render writes the page. It returns skep.Invalid, with nothing written, for
// a report that cannot be drawn, and w's error.
func Render(w io.Writer, r Report) error {
	if err := r.validate(); err != nil {
		return err
	}
	var b bytes.Buffer
	drawPage(&b, &r)
	_, err := w.Write(b.Bytes())
	return err
}

func invalid(field string, value, limit any) error {
	return skep.Invalidf("render report", field, value, limit)
}

func (r *Report) validate() error {
	if len(r.Charts) > MaxCharts {
		return invalid("Charts", len(r.Charts), MaxCharts)
	}
	for i := range r.Charts {
		if err := r.Charts[i].validate(fmt.Sprintf("Charts[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

// finite is what can be drawn: magnitudes far from overflow and underflow.
func finite(x float64) bool {
	m := math.Abs(x)
	return m == 0 || m >= 1e-100 && m <= 1e100
}

func (c *Chart) validate(at string) error {
	if c.Kind < Line || c.Kind > Histogram {
		return invalid(at+".Kind", int(c.Kind), "Line..Histogram")
	}
	if len(c.Series) > MaxSeries {
		return invalid(at+".Series", len(c.Series), MaxSeries)
	}
	bars := c.Kind == GroupedBars || c.Kind == StackedBars
	if n := len(c.Categories); n > MaxCategories || n > 0 && !bars {
		return invalid(at+".Categories", n, map[bool]any{true: MaxCategories, false: "none without bars"}[bars])
	}
	if c.distribution() && len(c.Limits) > 0 {
		return invalid(at+".Limits", len(c.Limits), "none on a distribution")
	}
	if bars && c.Y.Log {
		return invalid(at+".Y.Log", true, "false: a bar has no length on a log axis")
	}
	for i, l := range c.Limits {
		if !finite(l.Y) || c.Y.Log && l.Y <= 0 {
			return invalid(fmt.Sprintf("%s.Limits[%d].Y", at, i), l.Y, numberOn(c.Y))
		}
	}
	for i := range c.Series {
		at := fmt.Sprintf("%s.Series[%d]", at, i)
		s := &c.Series[i]
		var err error
		switch {
		case bars:
			err = s.validateValues(at, len(c.Categories))
		case c.distribution():
			err = s.validateBuckets(at)
		default:
			err = s.validatePoints(at, c.X, c.Y)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Chart) distribution() bool { return c.Kind == CDF || c.Kind == Histogram }

func numberOn(a Axis) string {
	if a.Log {
		return "finite and > 0 on a log axis"
	}
	return "finite"
}

func (s *Series) validatePoints(at string, x, y Axis) error {
	if len(s.Points) > MaxPoints {
		return invalid(at+".Points", len(s.Points), MaxPoints)
	}
	for i, p := range s.Points {
		at := fmt.Sprintf("%s.Points[%d]", at, i)
		switch {
		case !finite(p.X) || x.Log && p.X <= 0:
			return invalid(at+".X", p.X, numberOn(x))
		case !finite(p.Y) || y.Log && p.Y <= 0:
			return invalid(at+".Y", p.Y, numberOn(y))
		case i > 0 && p.X < s.Points[i-1].X:
			return invalid(at+".X", p.X, fmt.Sprintf("≥ %g, the point before it", s.Points[i-1].X))
		}
	}
	return nil
}

func (s *Series) validateValues(at string, categories int) error {
	if len(s.Values) != categories {
		return invalid(at+".Values", fmt.Sprintf("%d long", len(s.Values)), fmt.Sprintf("%d long, as Categories", categories))
	}
	for i, v := range s.Values {
		if !finite(v) || v < 0 {
			return invalid(fmt.Sprintf("%s.Values[%d]", at, i), v, "finite and ≥ 0")
		}
	}
	return nil
}

func (s *Series) validateBuckets(at string) error {
	if len(s.Buckets) > MaxPoints {
		return invalid(at+".Buckets", len(s.Buckets), MaxPoints)
	}
	last := 0.0
	for i, b := range s.Buckets {
		at := fmt.Sprintf("%s.Buckets[%d]", at, i)
		switch {
		case !finite(b.Low) || b.Low < last:
			return invalid(at+".Low", b.Low, fmt.Sprintf("≥ %g and finite", last))
		case !finite(b.High) || b.High < b.Low:
			return invalid(at+".High", b.High, fmt.Sprintf("≥ %g and finite", b.Low))
		case !finite(b.Count) || b.Count < 0:
			return invalid(at+".Count", b.Count, "finite and ≥ 0")
		}
		last = b.High
	}
	return nil
}
