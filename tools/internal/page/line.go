package page

import (
	"bytes"
	"fmt"
	"math"
	"sort"
	"strings"
)

func drawLine(b *bytes.Buffer, c *Chart) {
	var ex, ey extent
	for _, s := range c.Series {
		for _, p := range s.Points {
			ex.add(p.X)
			ey.add(p.Y)
		}
	}
	for _, l := range c.Limits {
		ey.add(l.Y)
	}
	xs, xv := newScale(c.X, ex, 6, false)
	ys, yv := newScale(c.Y, ey, 5, true)
	xs.from, xs.to = plotLeft, plotRight
	ys.from, ys.to = plotBottom, plotTop
	drawGrid(b, c.X, c.Y, xs, ys, xv, yv)
	drawLimits(b, c, ys)
	for i, s := range c.Series {
		path := thin(s.Points, xs, ys)
		if len(path) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n"+`<path class="line s%d" d="%s"/>`, i, pathData(path))
		if len(s.Points) <= 40 {
			for _, p := range path {
				fmt.Fprintf(b, `<circle class="s%d" cx="%s" cy="%s" r="3"/>`, i, num(p.X), num(p.Y))
			}
		}
	}
	drawHover(b, xs, func(x float64) string {
		lines := []string{axisTitle(c.X.Label, "") + ": " + format(c.X.Unit, x)}
		for _, s := range c.Series {
			if p, ok := nearest(s.Points, x); ok {
				lines = append(lines, s.Name+": "+format(c.Y.Unit, p.Y))
			}
		}
		return strings.Join(lines, "\n")
	})
}

// thin maps points into the picture, and where more than four fall into one
// column of a unit's width keeps the first, lowest, highest and last of them:
// what is drawn looks the same and the page stays small.
func thin(points []Point, xs, ys scale) []Point {
	var out []Point
	for i := 0; i < len(points); {
		column := math.Floor(xs.at(points[i].X))
		j, lo, hi := i, i, i
		for ; j < len(points) && math.Floor(xs.at(points[j].X)) == column; j++ {
			if points[j].Y < points[lo].Y {
				lo = j
			}
			if points[j].Y > points[hi].Y {
				hi = j
			}
		}
		keep := []int{i, min(lo, hi), max(lo, hi), j - 1}
		if j-i <= 4 {
			keep = keep[:0]
			for k := i; k < j; k++ {
				keep = append(keep, k)
			}
		}
		for k, at := range keep {
			if k == 0 || at != keep[k-1] {
				out = append(out, Point{xs.at(points[at].X), ys.at(points[at].Y)})
			}
		}
		i = j
	}
	return out
}

func pathData(points []Point) string {
	var b strings.Builder
	for i, p := range points {
		b.WriteString(map[bool]string{true: "M", false: "L"}[i == 0])
		b.WriteString(num(p.X) + " " + num(p.Y))
	}
	return b.String()
}

// nearest is the point whose X is closest to x.
func nearest(points []Point, x float64) (Point, bool) {
	if len(points) == 0 {
		return Point{}, false
	}
	i := sort.Search(len(points), func(i int) bool { return points[i].X >= x })
	if i == len(points) || i > 0 && x-points[i-1].X < points[i].X-x {
		i--
	}
	return points[i], true
}
