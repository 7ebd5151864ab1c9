package sparsebench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/tools/internal/bench"
)

// Options are those of Run.
type Options struct {
	bench.Common
	Traces     []string
	Devices    []int
	Profiles   []string // pm9a3, 900p
	Tracks     []string // A, B
	Strategies []string // empty: all
	EntryBytes int64
	DRAM       float64   // share of the context's bytes, index included
	Mass       []float64 // of the oracle's, at which track B is compared
	Profiled   int       // steps of the profile to use; negative: all
	Seed       uint64
	Figures    bool // the other figures, in place of the tracks
	// Generate are the sizes of contexts generated from each trace, which are used in place
	// of it; Layers, Questions and Steps what they have (GenerateOptions).
	Generate         []int
	Layers           []int
	Questions, Steps int
	// NativePaths are devices or files for profile native; empty: files in Dir.
	NativePaths []string
}

// Row is one line of bench sparse: means over the judged steps of all layers of
// one document.
type Row struct {
	Track    string  `json:"track"`    // A or B
	Strategy string  `json:"strategy"` // whose
	Profile  string  `json:"profile"`  // drive
	Document string  `json:"document"` // of the trace
	Entries  int     `json:"entries"`  // entries of the context
	Devices  int     `json:"devices"`  // number of devices
	Target   float64 `json:"target"`   // attention mass asked for; 0 in track A
	// a step and layer: what the busiest device needs; native: from first submission to last completion. Mean (ms)
	IOMs     float64 `json:"io_ms"`
	IOMsLow  float64 `json:"io_ms_low"`  // 95 % confidence over questions (ms)
	IOMsHigh float64 `json:"io_ms_high"` // 95 % confidence over questions (ms)
	SelectMs float64 `json:"select_ms"`  // choosing, as measured, one core; track B (ms)
	Bytes    float64 `json:"bytes"`      // read a step (bytes)
	Reads    float64 `json:"reads"`      // read operations a step
	// runs of neighbouring records among those asked for, before gaps are read over
	Runs    float64 `json:"runs"`
	Balance float64 `json:"balance"` // mean load of the devices ÷ the greatest
	Mass    float64 `json:"mass"`    // attention mass delivered, DRAM included, as a share of the oracle's
	// max(bytes ÷ ΣBW, reads ÷ ΣIOPS) with as few reads as the devices allow (ms)
	BoundMs  float64 `json:"bound_ms"`
	EntryMs  float64 `json:"entry_bound_ms"` // the same bound when each entry is a read of its own (ms)
	Share    float64 `json:"share"`          // of track A: bound ÷ time
	Resident float64 `json:"resident"`       // in DRAM beside sinks and window (entries)
	Index    float64 `json:"index_bytes"`    // of DRAM for choosing and routes (bytes)
	Records  float64 `json:"records"`        // stored records per entry: copies
	Variant  string  `json:"variant"`        // settings the tune questions chose, a layer each
	Steps    int     `json:"steps"`          // steps judged
	Measured bool    `json:"measured"`       // on real devices; else by the model
}

// Result is bench sparse.
type Result struct {
	bench.About
	Bench  string  `json:"bench"`       // sparse
	Method string  `json:"method"`      // how it was done
	DRAM   float64 `json:"dram"`        // share of the context's bytes
	Entry  int64   `json:"entry_bytes"` // of an entry (bytes)
	// bytes and reads per second of each profile's drive; of native as measured
	Models  map[string]Drive `json:"models"`
	Rows    []Row            `json:"rows"`    // by track, strategy, profile, document, devices and mass
	Ratios  []Ratio          `json:"ratios"`  // strategies beside skep, by document, profile, devices and mass
	Figures []Figure         `json:"figures"` // what the rows do not show
}

// Figure is one number that is not a row of a track.
type Figure struct {
	Figure   string  `json:"figure"`   // what
	Document string  `json:"document"` // of the trace; - where none
	Setting  string  `json:"setting"`  // under which setting
	Value    float64 `json:"value"`    // the figure
	Unit     string  `json:"unit"`     // of the value
}

// Strategies names them all, in the order they are run.
func Strategies() []string {
	var names []string
	for _, s := range (&run{}).strategies() {
		names = append(names, s.name)
	}
	return names
}

// Drive is what bounds one drive.
type Drive struct {
	BytesPerSecond float64 `json:"bytes_per_second"` // that it reads (bytes/s)
	IOPS           float64 `json:"iops"`             // reads it does (1/s)
}

// Cost is the drive as the read planner sees it.
func (d Drive) Cost() layout.ReadCost {
	return layout.ReadCost{Page: layout.PageSize / d.BytesPerSecond, Least: 1 / d.IOPS}
}

// Drives are the paper's two, as it states them (section 8.1).
var Drives = map[string]Drive{
	"pm9a3": {6.9e9, 1.1e6},
	"900p":  {2.5e9, 0.55e6},
}

// maxReadPages is the largest read: one stripe unit.
const maxReadPages = layout.MaxUnitPages

type run struct {
	o       Options
	workers int
	rows    []Row
	memo    map[string]any
	settled map[string]setting
	native  *nativeSet
}

// cost is a profile's drive as the read planner sees it.
func (b *run) cost(profile string) layout.ReadCost {
	if profile == nativeDrive {
		return b.native.cost
	}
	return Drives[profile].Cost()
}

func (b *run) drive(profile string) Drive {
	c := b.cost(profile)
	return Drive{layout.PageSize / c.Page, 1 / c.Least}
}

// setting is what the tune questions chose for a strategy on a scene.
type setting struct {
	variant float64
	none    bool // nothing fits the DRAM
}

// Run compares strategies of choosing, placing and reading entries on recorded traces.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	b := &run{o: o, workers: runtime.GOMAXPROCS(0), memo: map[string]any{}, settled: map[string]setting{}}
	res := &Result{Bench: "sparse", DRAM: o.DRAM, Entry: o.EntryBytes, Models: map[string]Drive{}, Rows: []Row{}, Ratios: []Ratio{}, Figures: []Figure{},
		Method: "recorded traces; modelled drives: a read occupies its drive for the longest of bytes ÷ bandwidth and 1 ÷ IOPS, and a step takes as long as its busiest drive; native drives: from the first submission to the last completion; settings chosen on the tune questions; sinks and window in DRAM and in nobody's figures"}
	if slices.Contains(o.Profiles, nativeDrive) && !o.Figures {
		if b.native, err = b.openNative(ctx); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, b.native.close()) }()
		res.About = b.native.about
	}
	var traces []*Trace
	for _, path := range o.Traces {
		t, err := ReadTrace(path)
		if err != nil {
			return nil, err
		}
		if t.Document == "" {
			t.Document = filepath.Base(path)
		}
		all := []*Trace{t}
		for i, n := range o.Generate {
			b.o.Note("generating %d entries after %s", n, t.Document)
			g, err := Generate(t, GenerateOptions{Entries: n, Layers: o.Layers, Questions: o.Questions, Steps: o.Steps, Seed: o.Seed})
			if err != nil {
				return nil, err
			}
			if all = append(all, g); i == 0 {
				all = all[1:]
			}
		}
		traces = append(traces, all...)
	}
	for _, t := range traces {
		if o.Figures {
			break
		}
		var scenes []*scene
		for l := range t.Layers {
			s, err := newScene(fmt.Sprintf("%s layer %d", t.Document, l), t, l, sceneOptions{profiled: o.Profiled})
			if err != nil {
				return nil, err
			}
			scenes = append(scenes, s)
		}
		if err := b.document(ctx, t, scenes); err != nil {
			return nil, err
		}
	}
	if o.Figures {
		res.Simulated = true
		res.Figures, err = b.figures(ctx, traces)
		return res, err
	}
	for _, p := range o.Profiles {
		res.Models[p] = b.drive(p)
		res.Simulated = res.Simulated || p != nativeDrive
	}
	res.Rows = append(res.Rows, b.rows...)
	res.Ratios = append(res.Ratios, ratios(b.rows)...)
	return res, nil
}

func (o *Options) ensureDefaults() {
	o.Common.EnsureDefaults()
	if o.Profiled == 0 {
		o.Profiled = -1
	}
}

func (o *Options) validate() error {
	const op = "bench sparse"
	if len(o.Traces) == 0 {
		return skep.Invalidf(op, "--trace", "missing", "one or more files")
	}
	for _, d := range o.Devices {
		if d < 1 || d > layout.MaxDevices {
			return skep.Invalidf(op, "--drives", d, fmt.Sprintf("1 to %d", layout.MaxDevices))
		}
	}
	for _, p := range o.Profiles {
		if _, ok := Drives[p]; !ok && p != nativeDrive {
			return skep.Invalidf(op, "--profile", p, "pm9a3, 900p or native")
		}
	}
	for _, t := range o.Tracks {
		if t != "A" && t != "B" {
			return skep.Invalidf(op, "--track", t, "A or B")
		}
	}
	if o.EntryBytes < layout.PageSize || o.EntryBytes%layout.PageSize != 0 || o.EntryBytes > maxReadPages*layout.PageSize {
		return skep.Invalidf(op, "--entry-size", o.EntryBytes, fmt.Sprintf("a multiple of %d up to %d", layout.PageSize, maxReadPages*layout.PageSize))
	}
	if !(o.DRAM >= 0 && o.DRAM <= 1) {
		return skep.Invalidf(op, "--dram", o.DRAM, "0 to 1")
	}
	for _, m := range o.Mass {
		if !(m > 0 && m < 1.2) {
			return skep.Invalidf(op, "--mass", m, "above 0, below 1.2")
		}
	}
	names := Strategies()
	for _, s := range o.Strategies {
		if !slices.Contains(names, s) {
			return skep.Invalidf(op, "--strategy", s, strings.Join(names, ", "))
		}
	}
	return o.Common.Validate()
}

func (b *run) document(ctx context.Context, t *Trace, scenes []*scene) error {
	for _, st := range b.strategies() {
		if len(b.o.Strategies) > 0 && !slices.Contains(b.o.Strategies, st.name) {
			continue
		}
		for _, track := range b.o.Tracks {
			if !strings.Contains(st.tracks, track) {
				continue
			}
			b.o.Note("%s, track %s, %s", t.Document, track, st.name)
			for _, p := range b.o.Profiles {
				for _, n := range b.o.Devices {
					if err := ctx.Err(); err != nil {
						return err
					}
					targets := b.o.Mass
					if track == "A" {
						targets = []float64{0}
					}
					for _, target := range targets {
						if err := b.row(t, scenes, st, track, p, n, target); err != nil {
							return fmt.Errorf("%s on %s: %w", st.name, t.Document, err)
						}
					}
				}
			}
		}
	}
	return nil
}

// sums gathers steps of a row.
type sums struct {
	Row
	questions map[int][]float64
}

func (b *run) row(t *Trace, scenes []*scene, st strategy, track, profile string, devices int, target float64) error {
	cost := b.cost(profile)
	total := sums{questions: map[int][]float64{}}
	var variants []string
	for _, s := range scenes {
		c, variant, err := b.tuned(s, st, track, devices, cost, target)
		if errors.Is(err, errTooLarge) {
			b.o.Note("%s: %s: %v", s.name, st.name, err)
			return nil
		}
		if err != nil {
			return err
		}
		variants = append(variants, variant)
		budget := 0
		if track == "B" {
			if budget, err = b.budgetFor(c, target, s.judge, profile, devices); err != nil {
				return err
			}
		}
		if err := b.measure(c, s.judge, track, budget, profile, devices, &total); err != nil {
			return err
		}
		total.Resident += float64(c.used) / float64(len(scenes))
		total.Index += float64(c.index) / float64(len(scenes))
		total.Records += float64(c.place.Records()) / float64(s.entries) / float64(len(scenes))
	}
	r := total.mean()
	r.Measured = profile == nativeDrive
	r.Track, r.Strategy, r.Profile, r.Document, r.Entries, r.Devices, r.Target = track, st.name, profile, t.Document, t.Entries, devices, target
	r.Variant = strings.Join(variants, " ")
	b.rows = append(b.rows, r)
	return nil
}

// tuned is the strategy with the variant that is fastest on the tune questions, on the
// first drive and number of devices asked for.
func (b *run) tuned(s *scene, st strategy, track string, devices int, cost layout.ReadCost, target float64) (*choice, string, error) {
	name := fmt.Sprint(s.name, st.name, track, target)
	chosen, ok := b.settled[name]
	if !ok {
		var err error
		if chosen, err = b.settleOn(s, st, track, target); err != nil {
			return nil, "", err
		}
		b.settled[name] = chosen
	}
	if chosen.none {
		return nil, "", errTooLarge
	}
	c, err := st.make(b, s, chosen.variant, devices, cost)
	if len(st.variants) == 1 {
		return c, "", err
	}
	return c, fmt.Sprint(chosen.variant), err
}

func (b *run) settleOn(s *scene, st strategy, track string, target float64) (setting, error) {
	if len(st.variants) == 1 {
		return setting{variant: st.variants[0]}, nil
	}
	var steps []int
	for i, step := range s.tune {
		if i%4 == 0 {
			steps = append(steps, step)
		}
	}
	profile, devices := b.o.Profiles[0], b.o.Devices[0]
	best, least := setting{none: true}, math.Inf(1)
	for _, v := range st.variants {
		c, err := st.make(b, s, v, devices, b.cost(profile))
		if errors.Is(err, errTooLarge) {
			continue
		}
		if err != nil {
			return best, err
		}
		budget := 0
		if track == "B" {
			if budget, err = b.budgetFor(c, target, steps, profile, devices); err != nil {
				return best, err
			}
		}
		sum := sums{questions: map[int][]float64{}}
		if err := b.measure(c, steps, track, budget, profile, devices, &sum); err != nil {
			return best, err
		}
		if sum.IOMs < least {
			best, least = setting{variant: v}, sum.IOMs
		}
	}
	return best, nil
}

// mean turns sums into means over steps; the confidence interval is over questions, which
// are independent, where steps of one question are not.
func (t *sums) mean() Row {
	r := t.Row
	n := float64(max(r.Steps, 1))
	for _, f := range []*float64{&r.IOMs, &r.SelectMs, &r.Bytes, &r.Reads, &r.Runs, &r.Balance, &r.Mass, &r.BoundMs, &r.EntryMs} {
		*f /= n
	}
	var means []float64
	for _, io := range t.questions {
		sum := 0.0
		for _, v := range io {
			sum += v
		}
		means = append(means, sum/float64(len(io)))
	}
	half := 0.0
	if k := float64(len(means)); k > 1 {
		sum, sq := 0.0, 0.0
		for _, m := range means {
			sum += m
		}
		for _, m := range means {
			sq += (m - sum/k) * (m - sum/k)
		}
		half = 2.07 * math.Sqrt(sq/(k-1)/k) // Student's t for 23 degrees of freedom
	}
	r.IOMsLow, r.IOMsHigh = r.IOMs-half, r.IOMs+half
	r.Share = bench.Div(r.BoundMs, r.IOMs)
	return r
}

// Ratio is how many times longer another strategy's I/O takes than skep's.
type Ratio struct {
	Document string             `json:"document"` // of the trace
	Profile  string             `json:"profile"`  // drive
	Devices  int                `json:"devices"`  // number of devices
	Target   float64            `json:"target"`   // mass
	Times    map[string]float64 `json:"times"`    // each strategy's I/O time ÷ skep's, track B
}

func ratios(rows []Row) []Ratio {
	var out []Ratio
	for _, r := range rows {
		if r.Strategy != "skep" || r.Track != "B" {
			continue
		}
		q := Ratio{r.Document, r.Profile, r.Devices, r.Target, map[string]float64{}}
		for _, o := range rows {
			if o.Track == "B" && o.Strategy != "skep" && o.Document == r.Document && o.Profile == r.Profile && o.Devices == r.Devices && o.Target == r.Target {
				q.Times[o.Strategy] = bench.Div(o.IOMs, r.IOMs)
			}
		}
		out = append(out, q)
	}
	return out
}

var _ cache = (*coact.LRU)(nil)
