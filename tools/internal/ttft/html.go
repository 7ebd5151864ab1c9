package ttft

import (
	"fmt"
	"io"
	"slices"

	"github.com/skepkv/skep/tools/internal/page"
)

// writeHTML draws the rows: a CDF of TTFT for each point of the grid, and the two pointers of
// a request under policy skep.
func writeHTML(w io.Writer, p *plan, rows []*Row) error {
	time := "real time, real bytes from a store on devices slowed down in process (simulated)"
	if p.o.Virtual {
		time = "virtual time: no bytes were stored or moved"
	}
	r := page.Report{Title: "Time to first token", Subtitle: fmt.Sprintf("%s on %s, emulated engine; %s", p.model.Name, p.gpu.Name, time)}
	for _, row := range rows {
		if row.Policy == "skep" {
			r.Summary = append(r.Summary, page.Row{Name: fmt.Sprintf("%s, %s, %g Gb/s, batch %d", row.Load, row.Engine, row.Bandwidth, row.Batch),
				Value: fmt.Sprintf("%.2f attained", row.Attained), Note: fmt.Sprintf("mean TTFT %.0f ms, bound %.0f ms", row.TTFT.Mean, row.Bound)})
		}
	}
	for i := 0; i < len(rows); {
		j := i
		for j < len(rows) && rows[j].point() == rows[i].point() {
			j++
		}
		c := page.Chart{Kind: page.CDF, Title: rows[i].point(), Note: "share of requests with their first token by then", X: page.Axis{Label: "TTFT", Unit: page.Seconds, Log: true}}
		for _, row := range rows[i:j] {
			if len(c.Series) < page.MaxSeries {
				c.Series = append(c.Series, cdf(row))
			}
		}
		r.Charts = append(r.Charts, c)
		for _, row := range rows[i:j] {
			if t, ok := pointers(row); ok && row.Policy == "skep" {
				r.Charts = append(r.Charts, t)
			}
		}
		i = j
	}
	r.Charts = r.Charts[:min(len(r.Charts), page.MaxCharts)]
	r.Notes = []string{"The engine is emulated: steps take as long as a formula says, which is not the scheduler's; up to 20 % noise, twice as slow from the middle on, a decoding batch in each step."}
	return page.Render(w, r)
}

func (r *Row) point() string {
	return fmt.Sprintf("%s, %s, %g Gb/s, batch %d, %d tokens stored", r.Load, r.Engine, r.Bandwidth, r.Batch, r.Tokens)
}

func cdf(row *Row) page.Series {
	v := slices.Clone(row.ttfts)
	slices.Sort(v)
	s := page.Series{Name: row.Policy}
	for _, x := range v {
		x = max(x, 1e-6)
		if n := len(s.Buckets); n > 0 && s.Buckets[n-1].High >= x {
			s.Buckets[n-1].Count++
			continue
		}
		s.Buckets = append(s.Buckets, page.Bucket{Low: x, High: x, Count: 1})
	}
	return s
}

// pointers draws which tokens of the request with most pieces were computed and loaded when.
func pointers(row *Row) (page.Chart, bool) {
	count := map[int]int{}
	best := -1
	for _, s := range row.timeline {
		if s.What == "load" && !s.ByLayers {
			if count[s.Req]++; best < 0 || count[s.Req] > count[best] {
				best = s.Req
			}
		}
	}
	c := page.Chart{Kind: page.Line, Title: "The two pointers of one request", Note: fmt.Sprintf("%s: how far up it was computed, how far down loaded", row.point()),
		X: page.Axis{Label: "since its first piece", Unit: page.Seconds}, Y: page.Axis{Label: "token"},
		Series: []page.Series{{Name: "computed"}, {Name: "loaded"}}}
	start := -1.0
	for _, s := range row.timeline {
		if s.Req != best || s.What == "suffix" {
			continue
		}
		if start < 0 {
			start = s.Start
		}
		k, y := 0, s.To
		if s.What == "load" {
			k, y = 1, s.From
		}
		pts := &c.Series[k].Points
		x := max(s.End-start, 0)
		if n := len(*pts); n > 0 {
			x = max(x, (*pts)[n-1].X)
		}
		*pts = append(*pts, page.Point{X: x, Y: float64(y)})
	}
	return c, best >= 0 && len(c.Series[0].Points) > 1 && len(c.Series[1].Points) > 1
}
