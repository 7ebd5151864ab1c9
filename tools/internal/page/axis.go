package page

import (
	"math"
	"strconv"
	"strings"
)

// scale maps values of an axis to a length in the picture.
type scale struct {
	log      bool
	lo, hi   float64 // values at the ends
	from, to float64 // where they are drawn
}

func (s scale) at(v float64) float64 {
	lo, hi := s.lo, s.hi
	if s.log {
		v, lo, hi = math.Log10(v), math.Log10(lo), math.Log10(hi)
	}
	return s.from + (v-lo)/(hi-lo)*(s.to-s.from)
}

// value is the inverse of at.
func (s scale) value(at float64) float64 {
	f := (at - s.from) / (s.to - s.from)
	if s.log {
		return math.Pow(10, math.Log10(s.lo)+f*(math.Log10(s.hi)-math.Log10(s.lo)))
	}
	return s.lo + f*(s.hi-s.lo)
}

// tick is a labelled value.
type tick struct {
	v    float64
	text string
}

// linear makes a scale with ticks at round values from lo to hi. Value axes
// are widened to zero and to the next tick; others end where the data ends.
// With fewer than one tick per label's room, about n of them.
func linear(lo, hi float64, n int, value bool) (scale, []float64) {
	if value {
		lo, hi = min(lo, 0), max(hi, 0)
	}
	if !(hi > lo) {
		hi = lo + max(math.Abs(lo), 1)
	}
	step := niceStep((hi - lo) / float64(n))
	if value {
		lo, hi = math.Floor(lo/step+1e-9)*step, math.Ceil(hi/step-1e-9)*step
	}
	var ticks []float64
	// Counted, so that a step too small to change v cannot loop for ever.
	first := math.Ceil(lo/step - 1e-9)
	for i := 0; i <= 2*n+2; i++ {
		v := (first + float64(i)) * step
		if v > hi+step*1e-9 {
			break
		}
		ticks = append(ticks, v)
	}
	return scale{lo: lo, hi: hi}, ticks
}

// niceStep is the smallest of 1, 2, 2.5, 5 × 10^k that is at least x.
func niceStep(x float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(x)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*p >= x*(1-1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// logarithmic makes a log scale from lo to hi > 0 with ticks at powers of ten,
// and at their double and fivefold when there are few. Value axes are widened
// to the next tick.
func logarithmic(lo, hi float64, value bool) (scale, []float64) {
	if hi/lo < 4 {
		mid := math.Sqrt(lo * hi)
		lo, hi = mid/2, mid*2
	}
	if value {
		lo, hi = round125(lo, false), round125(hi, true)
	}
	a, b := math.Floor(math.Log10(lo)), math.Ceil(math.Log10(hi))
	mult := []float64{1}
	every := math.Ceil((b - a) / 8)
	if math.Log10(hi/lo) < 3 {
		mult = []float64{1, 2, 5}
	}
	var ticks []float64
	for e := a; e <= b; e += every {
		for _, m := range mult {
			v := exact(m, int(e))
			if v >= lo*(1-1e-9) && v <= hi*(1+1e-9) {
				ticks = append(ticks, v)
			}
		}
	}
	return scale{log: true, lo: lo, hi: hi}, ticks
}

// exact is m × 10^e through its decimal text: math.Pow10(-6) differs from 1e-6.
func exact(m float64, e int) float64 {
	v, _ := strconv.ParseFloat(strconv.FormatFloat(m, 'f', 0, 64)+"e"+strconv.Itoa(e), 64)
	return v
}

// round125 is the next of 1, 2, 5 × 10^e above or below x, x itself if it is one.
func round125(x float64, up bool) float64 {
	e := int(math.Floor(math.Log10(x)))
	steps := []float64{exact(1, e-1), exact(2, e-1), exact(5, e-1), exact(1, e), exact(2, e), exact(5, e), exact(1, e+1), exact(2, e+1)}
	if up {
		for _, v := range steps {
			if v >= x*(1-1e-9) {
				return max(v, x)
			}
		}
	}
	below := x
	for _, v := range steps {
		if v <= x*(1+1e-9) {
			below = min(v, x)
		}
	}
	return below
}

// prefix scales a unit for printing.
type prefix struct {
	factor float64
	unit   string
}

// prefixFor is how a value of about this magnitude is printed.
func prefixFor(unit string, magnitude float64) prefix {
	m := math.Abs(magnitude)
	pick := func(ps ...prefix) prefix {
		for _, p := range ps {
			if m >= p.factor*(1-1e-9) {
				return p
			}
		}
		return ps[len(ps)-1]
	}
	switch unit {
	case Seconds:
		if m == 0 {
			return prefix{1, "s"}
		}
		return pick(prefix{1, "s"}, prefix{1e-3, "ms"}, prefix{1e-6, "µs"}, prefix{1e-9, "ns"})
	case Bytes, BytesPerSecond:
		return pick(prefix{1e15, "P" + unit}, prefix{1e12, "T" + unit}, prefix{1e9, "G" + unit}, prefix{1e6, "M" + unit}, prefix{1e3, "k" + unit}, prefix{1, unit})
	case Ratio:
		return prefix{.01, "%"}
	}
	return prefix{1, unit}
}

// format prints a value with three significant digits and its unit.
func format(unit string, v float64) string {
	p := prefixFor(unit, v)
	// What rounds up to a thousand belongs to the next prefix: 999.9 µs is 1 ms.
	if r := round3(v / p.factor); r*p.factor != v {
		p = prefixFor(unit, r*p.factor)
	}
	x := v / p.factor
	text := ""
	switch a := math.Abs(x); {
	case x == 0:
		text = "0"
	case a >= 1e15 || a < 1e-4:
		text = strconv.FormatFloat(x, 'g', 3, 64)
	case a >= 100:
		text = thousands(strconv.FormatFloat(x, 'f', 0, 64))
	default:
		text = trimZeros(strconv.FormatFloat(x, 'f', max(0, 2-int(math.Floor(math.Log10(a)))), 64))
	}
	return withUnit(text, p.unit)
}

func round3(x float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 3, 64), 64)
	return r
}

func withUnit(text, unit string) string {
	if unit == "" {
		return text
	}
	return text + "\u00a0" + unit // no break between the two
}

func trimZeros(s string) string {
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// thousands puts separators into an integer.
func thousands(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	if len(s) < 4 {
		return sign + s
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// label prints the ticks of an axis. Linear axes print plain numbers of one
// unit, which belongs into the axis title; on log axes each tick has its own.
func label(a Axis, sc scale, values []float64) (ticks []tick, unit string) {
	if sc.log {
		for _, v := range values {
			ticks = append(ticks, tick{v, format(a.Unit, v)})
		}
		return ticks, ""
	}
	p := prefixFor(a.Unit, max(math.Abs(sc.lo), math.Abs(sc.hi)))
	digits := 0
	if len(values) > 1 {
		step := (values[1] - values[0]) / p.factor
		for digits < 12 && math.Abs(step*math.Pow10(digits)-math.Round(step*math.Pow10(digits))) > 1e-6*step*math.Pow10(digits) {
			digits++
		}
	}
	for _, v := range values {
		x := v / p.factor
		text := strconv.FormatFloat(x, 'f', digits, 64)
		switch {
		case math.Abs(x) >= 1e9 || digits == 12:
			text = strconv.FormatFloat(x, 'g', 3, 64)
		case v == 0:
			text = "0"
		case digits == 0:
			text = thousands(text)
		}
		ticks = append(ticks, tick{v, text})
	}
	return ticks, p.unit
}
