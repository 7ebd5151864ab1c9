package page

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/drawn"
	"github.com/skepkv/skep/tools/internal/hist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew from what the code does")

// sample uses everything there is. Its figures are made up.
func sample() Report {
	rng := rand.New(rand.NewPCG(1, 2))
	ours, lru := Series{Name: "skep"}, Series{Name: "exact LRU"}
	a, b := 0.0, 0.0
	for i := range 12_000 {
		f := float64(i) / 12_000
		a += (.36*(1-math.Exp(-4*f)) + .04*rng.NormFloat64() - a) / 100
		b += (.29*(1-math.Exp(-4*f)) + .04*rng.NormFloat64() - b) / 100
		ours.Points = append(ours.Points, Point{float64(i), max(a, 0)})
		lru.Points = append(lru.Points, Point{float64(i), max(b, 0)})
	}
	var fast, slow hist.Hist
	for range 20_000 {
		fast.Record(time.Duration(180e3 * math.Exp(.4*rng.NormFloat64())))
		d := 420e3 * math.Exp(.6*rng.NormFloat64())
		if rng.IntN(50) == 0 {
			d *= 20
		}
		slow.Record(time.Duration(d))
	}
	devices := []string{"nvme0", "nvme1", "nvme2", "nvme3"}
	return Report{
		Title:    `Replay <of> "conversation" & more`,
		Subtitle: "12,000 requests, 4 devices, made-up figures",
		Summary: []Row{
			{"Hit ratio", "35.5 %", "exact LRU 28.8 %"},
			{"Restore bandwidth", "13.1 GB/s", "0.97 of fio"},
			{"Lookup p99", "18.2 µs", "goal ≤ 20 µs"},
			{"Write amplification", "1.21", ""},
		},
		Charts: []Chart{
			{Kind: Line, Title: "Hit ratio", Note: "of blocks, over the last 100 requests", X: Axis{Label: "request"}, Y: Axis{Label: "hit ratio", Unit: Ratio},
				Series: []Series{ours, lru}, Limits: []Limit{{"infinite cache", .3664}}},
			{Kind: GroupedBars, Title: "Read bandwidth by device", X: Axis{Label: "device"}, Y: Axis{Label: "bandwidth", Unit: BytesPerSecond}, Categories: devices,
				Series: []Series{{Name: "restore", Values: []float64{3.3e9, 3.2e9, 3.4e9, 3.2e9}}, {Name: "sparse", Values: []float64{2.1e9, 2.2e9, 1.9e9, 2.05e9}}},
				Limits: []Limit{{"fio", 3.45e9}}},
			{Kind: StackedBars, Title: "Bytes written", Note: "payload, and what cleaning copied", X: Axis{Label: "device"}, Y: Axis{Label: "written", Unit: Bytes}, Categories: devices,
				Series: []Series{{Name: "put", Values: []float64{410e9, 405e9, 415e9, 0}}, {Name: "cleaning", Values: []float64{80e9, 95e9, 0, 0}}}},
			{Kind: CDF, Title: "Time to first block", X: Axis{Label: "latency", Unit: Seconds}, Series: []Series{Latencies("skep", &fast), Latencies("a pool of preads", &slow)}},
			{Kind: Histogram, Title: "Time to first block", X: Axis{Label: "latency", Unit: Seconds}, Series: []Series{Latencies("skep", &fast), Latencies("a pool of preads", &slow)}},
			{Kind: Line, Title: "Bandwidth by devices", X: Axis{Label: "devices", Log: true}, Y: Axis{Label: "bandwidth", Unit: BytesPerSecond, Log: true},
				Series: []Series{{Name: "restore", Points: []Point{{1, 104e6}, {2, 212e6}, {4, 428e6}, {8, 844e6}}}}},
			{Kind: Line, Title: "Nothing yet", Series: []Series{{Name: "later"}}},
		},
		Notes: []string{"Medians of 7 interleaved runs.", "Ratios are the result: the machine is <shared>."},
	}
}

func render(t testing.TB, r Report) string {
	var b bytes.Buffer
	require.NoError(t, Render(&b, r))
	return b.String()
}

// TestGolden compares the page's skeleton, one line an element with what it is
// called: how things are drawn may be tuned without it, what is there not.
func TestGolden(t *testing.T) {
	t.Parallel()
	got := skeleton(t, render(t, sample()))
	golden := filepath.Join("testdata", "skeleton.txt")
	if *rewrite {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

// skeleton lists elements with class, id and text, indented; the strips that
// show values, which are many and alike, are counted.
func skeleton(t testing.TB, page string) string {
	var out []string
	var path []string // class or name of the open elements
	strips := 0
	dec := xml.NewDecoder(strings.NewReader(page))
	for {
		tok, err := dec.Token()
		if err == io.EOF {
			require.Empty(t, path)
			return strings.Join(out, "\n") + "\n"
		}
		require.NoError(t, err, "the page is not well-formed")
		hidden := slices.Contains(path, "hit") || slices.Contains(path, "style")
		switch x := tok.(type) {
		case xml.StartElement:
			line, name := strings.Repeat(" ", len(path))+x.Name.Local, x.Name.Local
			for _, a := range x.Attr {
				switch a.Name.Local {
				case "class":
					name = a.Value
					fallthrough
				case "id", "role", "aria-labelledby":
					line += " " + a.Name.Local + "=" + a.Value
				}
			}
			path = append(path, name)
			if name == "hit" {
				strips++
			} else if !hidden {
				out = append(out, line)
			}
		case xml.EndElement:
			if path = path[:len(path)-1]; x.Name.Local == "svg" && strips > 0 {
				out = append(out, fmt.Sprintf("%s rect class=hit × %d", strings.Repeat(" ", len(path)), strips))
				strips = 0
			}
		case xml.CharData:
			if text := strings.TrimSpace(string(x)); text != "" && !hidden && len(out) > 0 {
				out[len(out)-1] += ": " + text
			}
		}
	}
}

func TestPageNeedsNothingElse(t *testing.T) {
	t.Parallel()
	page := render(t, sample())
	assert.NotRegexp(t, regexp.MustCompile(`(?i)<script|<link|<img|<iframe|@import|url\(|https?:|href=|src=| on[a-z]+=`), page)
	assert.Less(t, len(page), 400<<10, "12,000 points are thinned out")
	assert.Equal(t, page, render(t, sample()), "equal reports give equal bytes")
}

// Coordinates stay in the picture, and none is NaN.
func TestEverythingIsDrawnInsideThePicture(t *testing.T) {
	t.Parallel()
	page := render(t, sample())
	assert.NotContains(t, page, "NaN")
	assert.NotContains(t, page, "Inf")
	for _, m := range regexp.MustCompile(`(?:[ML]|c?x=")(-?[\d.]+)(?: |" c?y=")(-?[\d.]+)`).FindAllStringSubmatch(page, -1) {
		var x, y float64
		_, err := fmt.Sscan(m[1], &x)
		require.NoError(t, err)
		_, err = fmt.Sscan(m[2], &y)
		require.NoError(t, err)
		require.True(t, x >= 0 && x <= width && y >= 0 && y <= height, m[0])
	}
}

func TestBadReports(t *testing.T) {
	t.Parallel()
	line := func(y Axis, ps ...Point) Chart { return Chart{Y: y, Series: []Series{{Points: ps}}} }
	bars := func(values ...float64) Chart {
		return Chart{Kind: GroupedBars, Categories: []string{"a", "b"}, Series: []Series{{Values: values}}}
	}
	cdf := func(bs ...Bucket) Chart { return Chart{Kind: CDF, Series: []Series{{Buckets: bs}}} }
	for field, c := range map[string]Chart{
		"Charts[0].Kind":                       {Kind: 9},
		"Charts[0].Series":                     {Series: make([]Series, 9)},
		"Charts[0].Categories":                 {Categories: []string{"x"}},
		"Charts[0].Limits":                     {Kind: CDF, Limits: []Limit{{}}},
		"Charts[0].Limits[0].Y":                {Limits: []Limit{{"bound", math.Inf(1)}}},
		"Charts[0].Y.Log":                      {Kind: StackedBars, Y: Axis{Log: true}},
		"Charts[0].Series[0].Points[1].Y":      line(Axis{}, Point{1, 1}, Point{2, math.NaN()}),
		"Charts[0].Series[0].Points[0].Y":      line(Axis{Log: true}, Point{1, 0}),
		"Charts[0].Series[0].Points[1].X":      line(Axis{}, Point{1, 1}, Point{0, 1}),
		"Charts[0].Series[0].Points[0].X":      line(Axis{}, Point{1e200, 1}),
		"Charts[0].Series[0].Values":           bars(1),
		"Charts[0].Series[0].Values[1]":        bars(1, -1),
		"Charts[0].Series[0].Buckets[0].Low":   cdf(Bucket{-1, 1, 1}),
		"Charts[0].Series[0].Buckets[1].Low":   cdf(Bucket{1, 3, 1}, Bucket{2, 4, 1}),
		"Charts[0].Series[0].Buckets[0].High":  cdf(Bucket{2, 1, 1}),
		"Charts[0].Series[0].Buckets[0].Count": cdf(Bucket{1, 2, -1}),
	} {
		t.Run(field, func(t *testing.T) {
			var b bytes.Buffer
			err := Render(&b, Report{Charts: []Chart{c}})
			var e *skep.Error
			require.ErrorAs(t, err, &e)
			assert.ErrorIs(t, err, skep.Invalid)
			assert.Equal(t, field, e.Field)
			assert.NotNil(t, e.Limit)
			assert.Zero(t, b.Len())
		})
	}
	broken := errors.New("broken pipe")
	assert.ErrorIs(t, Render(failing{broken}, sample()), broken)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestFormat(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		unit string
		v    float64
		want string
	}{
		{Seconds, 0, "0 s"}, {Seconds, .0012, "1.2 ms"}, {Seconds, 18.23e-6, "18.2 µs"}, {Seconds, 999.9e-6, "1 ms"},
		{Seconds, 2.5e-9, "2.5 ns"}, {Seconds, 3537, "3,537 s"}, {Seconds, 1e-12, "0.001 ns"},
		{Bytes, 64 << 20, "67.1 MB"}, {BytesPerSecond, 3.6e9, "3.6 GB/s"}, {Bytes, 999.6, "1 kB"}, {Bytes, 12, "12 B"},
		{Ratio, .3664, "36.6 %"}, {Ratio, 1, "100 %"}, {"", 288500, "288,500"}, {"", -12345.6, "-12,346"}, {"", 1.213, "1.21"},
		{"", .05, "0.05"}, {"", 1e-7, "1e-07"}, {"IOPS", 142000, "142,000 IOPS"},
	} {
		assert.Equal(t, tt.want, strings.ReplaceAll(format(tt.unit, tt.v), "\u00a0", " "), "%g %s", tt.v, tt.unit)
	}
}

func texts(ticks []tick, unit string) string {
	var s []string
	for _, t := range ticks {
		s = append(s, strings.ReplaceAll(t.text, "\u00a0", " "))
	}
	return strings.Join(s, " ") + " | " + unit
}

func TestTicks(t *testing.T) {
	t.Parallel()
	linearTicks := func(a Axis, lo, hi float64) string {
		sc, v := linear(lo, hi, 5, true)
		return texts(label(a, sc, v))
	}
	assert.Equal(t, "0 10 20 30 40 | %", linearTicks(Axis{Unit: Ratio}, .02, .3664))
	assert.Equal(t, "0 1 2 3 4 | GB/s", linearTicks(Axis{Unit: BytesPerSecond}, 1e9, 3.45e9))
	assert.Equal(t, "0 50 100 150 200 | ms", linearTicks(Axis{Unit: Seconds}, .01, .19))
	assert.Equal(t, "0 2,500 5,000 7,500 10,000 12,500 | ", linearTicks(Axis{}, 0, 12031))
	assert.Equal(t, "-1.0 -0.5 0 0.5 1.0 | ", linearTicks(Axis{}, -.9, .8))
	assert.Equal(t, "0 0.2 0.4 0.6 0.8 1.0 | ", linearTicks(Axis{}, 0, 0), "all zero")

	logTicks := func(lo, hi float64) string {
		sc, v := logarithmic(lo, hi, false)
		return texts(label(Axis{Unit: Seconds}, sc, v))
	}
	assert.Equal(t, "1 µs 10 µs 100 µs 1 ms 10 ms 100 ms | ", logTicks(1e-6, .5))
	assert.Equal(t, "100 µs 200 µs 500 µs 1 ms | ", logTicks(1e-4, 1.5e-3))
	sc, v := logarithmic(104e6, 844e6, true)
	assert.Equal(t, "100 MB/s 200 MB/s 500 MB/s 1 GB/s | ", texts(label(Axis{Unit: BytesPerSecond}, sc, v)))
	assert.Equal(t, "1 ms 2 ms | ", logTicks(1.5e-3, 1.5e-3), "one value")
}

// Ticks are few, inside the scale and ascending for any range.
func TestTicksOfAnyRange(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 5000 {
		lo := math.Pow(10, rng.Float64()*60-30)
		hi := lo * math.Pow(10, rng.ExpFloat64()*4)
		for _, value := range []bool{false, true} {
			sc, ticks := linear(lo, hi, 5, value)
			checkTicks(t, sc, ticks, lo, hi, 12)
		}
		for _, value := range []bool{false, true} {
			sc, ticks := logarithmic(lo, hi, value)
			checkTicks(t, sc, ticks, lo, hi, 14)
		}
	}
}

func checkTicks(t *testing.T, sc scale, ticks []float64, lo, hi float64, most int) {
	require.True(t, len(ticks) >= 1 && len(ticks) <= most, "%d ticks on %g..%g", len(ticks), lo, hi)
	sc.from, sc.to = 0, 1
	for _, v := range []float64{lo, hi, ticks[0], ticks[len(ticks)-1]} {
		require.True(t, sc.at(v) > -1e-6 && sc.at(v) < 1+1e-6, "%g is outside %+v", v, sc)
	}
	require.InDelta(t, .3, sc.at(sc.value(.3)), 1e-6)
	for i := 1; i < len(ticks); i++ {
		require.Greater(t, ticks[i], ticks[i-1])
	}
}

func TestThinKeepsExtremesAndEnds(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	points := make([]Point, 100_000)
	for i := range points {
		points[i] = Point{float64(i), rng.NormFloat64()}
	}
	points[54_321].Y = 99
	identity := scale{lo: 0, hi: 1, from: 0, to: 1}
	out := thin(points, scale{lo: 0, hi: 100_000, from: 0, to: 500}, identity)
	assert.LessOrEqual(t, len(out), 4*500)
	assert.Equal(t, points[0].Y, out[0].Y)
	assert.Equal(t, points[99_999].Y, out[len(out)-1].Y)
	top := 0.0
	for i, p := range out {
		top = max(top, p.Y)
		assert.True(t, i == 0 || p.X >= out[i-1].X)
	}
	assert.InDelta(t, 99, top, 1e-9)
	few := points[:3]
	assert.Len(t, thin(few, scale{lo: 0, hi: 1e9, from: 0, to: 1}, identity), 3)
}

// What is read off a distribution agrees with the histogram it came from.
func TestDistributionAgreesWithItsHistogram(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	var h hist.Hist
	for range 5000 {
		h.Record(time.Duration(1e6 * math.Exp(rng.NormFloat64())))
	}
	s := Latencies("x", &h)
	for _, q := range []float64{.1, .5, .9, .99} {
		assert.InEpsilon(t, h.Quantile(q).Seconds(), quantile(s.Buckets, q), 2*hist.RelativeError)
		assert.InDelta(t, q, below(s.Buckets, quantile(s.Buckets, q)), 1e-9)
	}
	assert.Equal(t, h.Max().Seconds(), quantile(s.Buckets, 1))
	xs, _ := logarithmic(h.Min().Seconds(), h.Max().Seconds(), false)
	xs.from, xs.to = plotLeft, plotRight
	sum := 0.0
	for _, v := range rebin(s.Buckets, xs) {
		assert.GreaterOrEqual(t, v, 0.0)
		sum += v
	}
	assert.InDelta(t, 1, sum, 1e-9)
	assert.Zero(t, below(nil, 1))
	assert.Zero(t, quantile(nil, .5))
}

// FuzzText: whatever a text says, the page stays well-formed and says nothing
// outside its place.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", `</title><script>alert(1)</script>`, `" onload="x`, "\x00\x1b[31m\xff", "]]>&amp;&#0;", "\ufffe\uffff"} {
		f.Add(s, 1.5)
	}
	f.Fuzz(func(t *testing.T, s string, v float64) {
		r := Report{Title: s, Subtitle: s, Summary: []Row{{s, s, s}}, Notes: []string{s}}
		for kind := Line; kind <= Histogram; kind++ {
			c := Chart{Kind: kind, Title: s, Note: s, X: Axis{Label: s, Unit: s}, Y: Axis{Label: s, Unit: s},
				Series: []Series{{Name: s, Points: []Point{{v, v}}, Values: []float64{v}, Buckets: []Bucket{{v, v, v}}}, {Name: s, Values: []float64{v}}}}
			if kind == GroupedBars || kind == StackedBars {
				c.Categories = []string{s}
			}
			if kind <= StackedBars {
				c.Limits = []Limit{{s, v}}
			}
			r.Charts = append(r.Charts, c)
		}
		var b bytes.Buffer
		if err := Render(&b, r); err != nil {
			require.ErrorIs(t, err, skep.Invalid)
			require.Zero(t, b.Len())
			for i := range r.Charts { // the text alone must do
				r.Charts[i].Series, r.Charts[i].Limits = nil, nil
			}
			require.NoError(t, Render(&b, r))
		}
		require.NotContains(t, strings.ToLower(b.String()), "<script")
		require.NotContains(t, b.String(), "NaN\"")
		skeleton(t, b.String())
	})
}

// TestBrowser has a browser parse the page, where there is one.
func TestBrowser(t *testing.T) {
	t.Parallel()
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" || testing.Short() {
		t.Skip("skipped: no browser, or -short")
	}
	dir := t.TempDir()
	page := filepath.Join(dir, "page.html")
	require.NoError(t, os.WriteFile(page, []byte(render(t, sample())), 0o644))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+filepath.Join(dir, "profile"), "--dump-dom", "file://"+page)
	cmd.WaitDelay = 10 * time.Second
	dom, err := cmd.Output()
	require.NoError(t, err)
	assert.Equal(t, 7, strings.Count(string(dom), "<svg"))
	assert.Contains(t, string(dom), "Time to first block")
}
