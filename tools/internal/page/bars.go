package page

import (
	"bytes"
	"fmt"
	"math"
	"unicode/utf8"
)

// maxBar keeps a few bars from becoming walls.
const maxBar = 56.0

func drawBars(b *bytes.Buffer, c *Chart) {
	stacked := c.Kind == StackedBars
	top := extent{any: true}
	for k := range c.Categories {
		sum := 0.0
		for _, s := range c.Series {
			sum += s.Values[k]
			top.add(s.Values[k])
		}
		if stacked {
			top.add(sum)
		}
	}
	for _, l := range c.Limits {
		top.add(l.Y)
	}
	ys, yv := linear(top.lo, top.hi, 5, true)
	ys.from, ys.to = plotBottom, plotTop
	yt, unit := label(c.Y, ys, yv)
	drawLevels(b, ys, yt, axisTitle(c.Y.Label, unit))

	group := (plotRight - plotLeft) / float64(len(c.Categories))
	across := 1 // bars side by side in a group
	if !stacked {
		across = len(c.Series)
	}
	bar := min(group*.76/float64(across), maxBar)
	gap := min(1, bar*.1)
	drawCategories(b, c, group)
	var labels bytes.Buffer // on top of the limits
	values := across*len(c.Categories) <= 16 && bar >= 26
	for k, category := range c.Categories {
		left := plotLeft + (float64(k)+.5)*group - bar*float64(across)/2
		sum := 0.0
		for i, s := range c.Series {
			v := s.Values[k]
			x, base := left+float64(i)*bar, 0.0
			if stacked {
				x, base = left, sum
			}
			sum += v
			name := category + ", " + s.Name
			if s.Name == "" {
				name = category
			}
			if v > 0 {
				fmt.Fprintf(b, `<path class="bar s%d" d="%s"><title>%s</title></path>`, i,
					barData(x+gap, bar-2*gap, ys.at(base), ys.at(base+v), !stacked || topmost(c, i, k)), esc(name+": "+format(c.Y.Unit, v)))
			}
			if values && !stacked {
				drawValue(&labels, c, x+bar/2, ys.at(v), v)
			}
		}
		if values && stacked {
			drawValue(&labels, c, left+bar/2, ys.at(sum), sum)
		}
		b.WriteByte('\n')
	}
	drawLimits(b, c, ys)
	b.Write(labels.Bytes())
	drawXTitle(b, c.X.Label)
}

// topmost says whether nothing is stacked on series i.
func topmost(c *Chart, i, k int) bool {
	for _, s := range c.Series[i+1:] {
		if s.Values[k] > 0 {
			return false
		}
	}
	return true
}

// drawValue writes a bar's value above it, a bare number in its own unit.
func drawValue(b *bytes.Buffer, c *Chart, x, y, v float64) {
	fmt.Fprintf(b, `<text class="value" x="%s" y="%s">%s</text>`, num(x), num(y-5), esc(format(c.Y.Unit, v)))
}

// barData is a bar from base up to top, its upper corners rounded when it ends
// there.
func barData(x, w, base, top float64, round bool) string {
	r := 0.0
	if round {
		r = math.Min(3, math.Min(w/2, base-top))
	}
	return fmt.Sprintf("M%s %sV%sq0 %s %s %sH%sq%s 0 %s %sV%sz", num(x), num(base), num(top+r), num(-r), num(r), num(-r),
		num(x+w-r), num(r), num(r), num(r), num(base))
}

// drawCategories names the groups; as many names as there is room for.
func drawCategories(b *bytes.Buffer, c *Chart, group float64) {
	const letter = 6.6 // width of an average letter
	longest := 0
	for _, s := range c.Categories {
		longest = max(longest, utf8.RuneCountInString(s))
	}
	room := int(math.Max(group, 40) / letter)
	every := int(math.Ceil(float64(min(longest, room)) * letter / group))
	for k, s := range c.Categories {
		if k%max(every, 1) != 0 {
			continue
		}
		if r := []rune(s); len(r) > room {
			s = string(r[:max(room-1, 1)]) + "…"
		}
		fmt.Fprintf(b, `<text class="xt" x="%s" y="%s">%s</text>`, num(plotLeft+(float64(k)+.5)*group), num(plotBottom+17), esc(s))
	}
	b.WriteByte('\n')
}
