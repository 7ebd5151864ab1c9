package page

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// The picture, in SVG user units: the plot lies between these margins, ticks
// and axis titles outside them.
const (
	width, height = 640, 300
	plotLeft      = 66.0
	plotRight     = width - 16.0
	plotTop       = 30.0
	plotBottom    = height - 46.0
)

// esc makes any text safe in HTML text and attributes, and in XML: control
// characters, which XML has no way to write, are dropped.
func esc(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || r == 0xFFFE || r == 0xFFFF {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return html.EscapeString(s)
}

// num prints a coordinate: tenths of a unit are finer than any screen.
func num(x float64) string {
	return strconv.FormatFloat(math.Round(x*10)/10+0, 'f', -1, 64) // +0: no "-0"
}

// drawChart writes one figure: caption, legend, picture, table.
func drawChart(b *bytes.Buffer, c *Chart, id string) {
	fmt.Fprintf(b, "<figure id=\"%s\">\n<figcaption><h2>%s</h2>", id, esc(c.Title))
	if c.Note != "" {
		fmt.Fprintf(b, "<p>%s</p>", esc(c.Note))
	}
	b.WriteString("</figcaption>\n")
	drawLegend(b, c)
	fmt.Fprintf(b, `<svg viewBox="0 0 %d %d" role="img" aria-labelledby="%s-t %s-d"><title id="%s-t">%s</title><desc id="%s-d">%s</desc>`+"\n",
		width, height, id, id, id, esc(c.Title), id, esc(describe(c)))
	switch {
	case c.empty():
		fmt.Fprintf(b, `<text class="none" x="%d" y="%d">no data</text>`, width/2, height/2)
	case c.Kind == Line:
		drawLine(b, c)
	case c.distribution():
		drawDistribution(b, c)
	default:
		drawBars(b, c)
	}
	b.WriteString("\n</svg>\n")
	drawTable(b, c)
	b.WriteString("</figure>\n")
}

func (c *Chart) empty() bool {
	for _, s := range c.Series {
		switch {
		case c.Kind == Line && len(s.Points) > 0:
			return false
		case c.distribution() && total(s.Buckets) > 0:
			return false
		case !c.distribution() && len(s.Values) > 0:
			return false
		}
	}
	return true
}

func total(bs []Bucket) (n float64) {
	for _, b := range bs {
		n += b.Count
	}
	return n
}

func drawLegend(b *bytes.Buffer, c *Chart) {
	if len(c.Series) < 2 && len(c.Limits) == 0 && c.Kind != CDF {
		return // one colour: the title says what it is
	}
	mark := "bar"
	if c.Kind == Line || c.Kind == CDF {
		mark = "dash"
	}
	b.WriteString(`<ul class="legend">`)
	for i, s := range c.Series {
		fmt.Fprintf(b, `<li><i class="%s s%d"></i>%s</li>`, mark, i, esc(s.Name))
	}
	for _, l := range c.Limits {
		fmt.Fprintf(b, `<li><i class="limit"></i>%s</li>`, esc(l.Name+", "+format(c.Y.Unit, l.Y)))
	}
	if c.Kind == CDF {
		b.WriteString(`<li>dots: p50, p99</li>`)
	}
	b.WriteString("</ul>\n")
}

// describe says in a sentence what the picture shows, for those who do not
// see it; the table has the rest.
func describe(c *Chart) string {
	kind := [...]string{"Line chart", "Grouped bar chart", "Stacked bar chart", "Cumulative distribution", "Histogram"}[c.Kind]
	names := make([]string, len(c.Series))
	for i, s := range c.Series {
		names[i] = s.Name
	}
	text := kind + " of " + strings.Join(names, ", ")
	if c.X.Label != "" {
		text += " by " + c.X.Label
	}
	for _, l := range c.Limits {
		text += "; " + l.Name + " is " + format(c.Y.Unit, l.Y)
	}
	return text + ". The table below has the values."
}

// drawGrid draws both axes: horizontal lines at the y ticks, and a base line
// with small marks at the x ticks.
func drawGrid(b *bytes.Buffer, x, y Axis, xs, ys scale, xv, yv []float64) {
	yt, unit := label(y, ys, yv)
	drawLevels(b, ys, yt, axisTitle(y.Label, unit))
	xt, unit := label(x, xs, xv)
	for _, t := range xt {
		at := num(xs.at(t.v))
		fmt.Fprintf(b, `<path class="mark" d="M%s %sv4"/><text class="xt" x="%s" y="%s">%s</text>`, at, num(plotBottom), at, num(plotBottom+17), esc(t.text))
	}
	drawXTitle(b, axisTitle(x.Label, unit))
}

func drawLevels(b *bytes.Buffer, ys scale, ticks []tick, title string) {
	fmt.Fprintf(b, `<text class="title" x="2" y="14">%s</text>`, esc(title))
	for _, t := range ticks {
		at := ys.at(t.v)
		class := "grid"
		if t.v == 0 && !ys.log {
			class = "base"
		}
		fmt.Fprintf(b, `<path class="%s" d="M%s %sH%s"/><text class="yt" x="%s" y="%s">%s</text>`,
			class, num(plotLeft), num(at), num(plotRight), num(plotLeft-7), num(at+4), esc(t.text))
	}
	b.WriteByte('\n')
}

func drawXTitle(b *bytes.Buffer, title string) {
	fmt.Fprintf(b, `<text class="title mid" x="%s" y="%d">%s</text>`+"\n", num((plotLeft+plotRight)/2), height-8, esc(title))
}

func axisTitle(label, unit string) string {
	switch {
	case unit == "":
		return label
	case label == "":
		return unit
	}
	return label + " (" + unit + ")"
}

func drawLimits(b *bytes.Buffer, c *Chart, ys scale) {
	for _, l := range c.Limits {
		fmt.Fprintf(b, `<path class="limit" d="M%s %sH%s"><title>%s</title></path>`,
			num(plotLeft), num(ys.at(l.Y)), num(plotRight), esc(l.Name+": "+format(c.Y.Unit, l.Y)))
	}
}

// drawHover lays strips over the plot that show, when pointed at, what text
// says about the value of x in the middle of each.
func drawHover(b *bytes.Buffer, xs scale, text func(x float64) string) {
	const strips = 60
	w := (plotRight - plotLeft) / strips
	b.WriteByte('\n')
	for i := range strips {
		left := plotLeft + float64(i)*w
		fmt.Fprintf(b, `<rect class="hit" x="%s" y="%s" width="%s" height="%s"><title>%s</title></rect>`,
			num(left), num(plotTop), num(w), num(plotBottom-plotTop), esc(text(xs.value(left+w/2))))
	}
}

// extent is the least and the greatest of what yields gives.
type extent struct {
	lo, hi float64
	any    bool
}

func (e *extent) add(v float64) {
	if !e.any {
		*e = extent{v, v, true}
	}
	e.lo, e.hi = min(e.lo, v), max(e.hi, v)
}

func newScale(a Axis, e extent, n int, value bool) (scale, []float64) {
	if a.Log {
		return logarithmic(e.lo, e.hi, value)
	}
	return linear(e.lo, e.hi, n, value)
}
