package demo

import (
	"bytes"
	"fmt"
	"os"

	"github.com/skepkv/skep/tools/internal/page"
)

// window is how many requests a point of the hit ratio looks back on.
const window = 50

// writePage draws the demo's page.
func writePage(r *Result, o *Options) error {
	var b bytes.Buffer
	if err := page.Render(&b, report(r, o)); err != nil {
		return err
	}
	return os.WriteFile(r.Page, b.Bytes(), 0o644)
}

func report(r *Result, o *Options) page.Report {
	pct := func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
	p := page.Report{
		Title:    "skep demo",
		Subtitle: fmt.Sprintf("%d requests of a chat workload, %d file devices, blocks of %d KiB, room for %d blocks, backend %s", r.Requests, o.Devices, o.BlockBytes>>10, o.Capacity, r.Backend),
		Summary: []page.Row{
			{Name: "hit ratio", Value: pct(r.HitRatio), Note: fmt.Sprintf("%s before the kill, %s after", pct(r.HitBefore), pct(r.HitAfter))},
			{Name: "wrong bytes", Value: fmt.Sprint(r.WrongBytes), Note: fmt.Sprintf("of %.2f GB restored and compared", float64(r.BytesRestored)/1e9)},
			{Name: "broken promises", Value: fmt.Sprint(r.BrokenPromises), Note: "blocks leased by a lookup and then not delivered"},
			{Name: "recovery", Value: fmt.Sprintf("%.2f s", r.RecoverySeconds), Note: fmt.Sprintf("from SIGKILL in mid-put, %d blocks", r.BlocksRecovered)},
			{Name: "lookup", Value: fmt.Sprintf("%.1f µs", r.LookupUs.P50), Note: fmt.Sprintf("median; p99 %.1f µs", r.LookupUs.P99)},
			{Name: "restore", Value: fmt.Sprintf("%.2f ms", r.RestoreMs.P50), Note: fmt.Sprintf("median of a whole prefix; p99 %.2f ms", r.RestoreMs.P99)},
		},
		Notes: []string{
			"Payload is made from each block's key, and every byte that came back was compared with it, before and after the kill.",
			fmt.Sprintf("The first process was sent SIGKILL after request %d while it was putting; a second one opened the store and went on. Of the blocks of the last %d requests before the kill, %d of %d were found again.", r.KilledAt, recent, r.RecentFound, r.RecentBlocks),
			"Requests come one after the other, as fast as they are done: bandwidth is what this workload asks for, not what the drives can do. skep bench restore measures that beside fio.",
		},
	}
	if r.Simulated {
		p.Notes = append(p.Notes, "A device is simulated: its speed is a model's.")
	}
	if len(r.steps) == 0 {
		return p
	}
	p.Charts = append(p.Charts, hitChart(r), bandwidthChart(r, "read", func(t traffic) int64 { return t.Read }),
		bandwidthChart(r, "written", func(t traffic) int64 { return t.Written }))
	if r.lookups.Count() > 0 {
		p.Charts = append(p.Charts, page.Chart{Kind: page.CDF, Title: "Lookup latency", X: page.Axis{Label: "longest-prefix lookup with a lease", Unit: page.Seconds},
			Series: []page.Series{page.Latencies("lookup", &r.lookups)}})
	}
	if r.restores.Count() > 0 {
		p.Charts = append(p.Charts, page.Chart{Kind: page.CDF, Title: "Restore latency", X: page.Axis{Label: "all blocks of a prefix", Unit: page.Seconds},
			Series: []page.Series{page.Latencies("restore", &r.restores)}})
	}
	return p
}

func hitChart(r *Result) page.Chart {
	var now, all []page.Point
	var refs, hits int64
	for i, s := range r.steps {
		refs += int64(s.Blocks)
		hits += int64(s.Hit)
		all = append(all, page.Point{X: float64(s.Request), Y: float64(hits) / float64(max(refs, 1))})
		from := max(0, i-window+1)
		var wr, wh int64
		for _, s := range r.steps[from : i+1] {
			wr += int64(s.Blocks)
			wh += int64(s.Hit)
		}
		now = append(now, page.Point{X: float64(s.Request), Y: float64(wh) / float64(max(wr, 1))})
	}
	return page.Chart{Kind: page.Line, Title: "Hit ratio", Note: fmt.Sprintf("Share of each prompt's blocks that were found and restored; the kill is after request %d.", r.KilledAt),
		X: page.Axis{Label: "request"}, Y: page.Axis{Label: "hit ratio", Unit: page.Ratio},
		Series: []page.Series{{Name: fmt.Sprintf("last %d requests", window), Points: now}, {Name: "so far", Points: all}}}
}

// bandwidthChart draws what each device moved, from the counters' differences. The
// counters begin anew with the second process.
func bandwidthChart(r *Result, verb string, of func(traffic) int64) page.Chart {
	c := page.Chart{Kind: page.Line, Title: "Bytes " + verb + " by device", Note: "From the devices' own counters, several times a second.",
		X: page.Axis{Label: "time", Unit: page.Seconds}, Y: page.Axis{Label: "bandwidth", Unit: page.BytesPerSecond}}
	var before step
	for _, s := range r.steps {
		if len(s.Devices) == 0 {
			continue
		}
		if len(before.Devices) == len(s.Devices) && s.At > before.At {
			for i := range s.Devices {
				if i == page.MaxSeries {
					break
				}
				if len(c.Series) <= i {
					c.Series = append(c.Series, page.Series{Name: fmt.Sprintf("device-%d", i)})
				}
				bytes := of(s.Devices[i]) - of(before.Devices[i])
				if bytes < 0 {
					bytes = of(s.Devices[i])
				}
				c.Series[i].Points = append(c.Series[i].Points, page.Point{X: s.At, Y: float64(bytes) / (s.At - before.At)})
			}
		}
		before = s
	}
	if len(c.Series) == 0 {
		c.Series = []page.Series{{Name: "none", Points: []page.Point{{X: 0, Y: 0}}}}
	}
	return c
}
