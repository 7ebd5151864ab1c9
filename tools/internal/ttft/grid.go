package ttft

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
)

// Options of a grid.
type Options struct {
	Trace      string
	Model, GPU string
	Bandwidth  []float64 // Gb/s
	Batch      []int     // requests at once, of closed loops
	// Utilisation is the share of time that computing everything would keep the engine busy for, of open arrivals.
	Utilisation []float64
	Policies    []string // "all": every one
	Loads       []string // closed, open, single
	Engines     []string // round-robin, first-come
	Requests    int
	Skip        int
	Context     int // tokens; 0: the model's
	Divide      float64
	Seed        uint64
	Virtual     bool
	Dir         string
	HTML        io.Writer // nil: none
	Log         *slog.Logger
	Note        func(format string, args ...any)
}

// Singles are the prefixes of load "single", in tokens.
var Singles = []int{1024, 2048, 4096, 8192, 16384, 32768, 65536}

// plan is what Options come to.
type plan struct {
	o        Options
	gpu      twopointer.GPU
	model    twopointer.Model
	policies []twopointer.Policy
	engines  []twopointer.Engine
	points   []point
}

// point is a point of the grid, for all policies.
type point struct {
	w *Workload
	p Point
}

func (o *Options) plan() (*plan, error) {
	const op = "bench ttft"
	p := &plan{o: *o}
	var err error
	if p.gpu, err = twopointer.GPUNamed(o.GPU); err != nil {
		return nil, err
	}
	if p.model, err = twopointer.ModelNamed(o.Model); err != nil {
		return nil, err
	}
	for _, name := range o.Policies {
		if name == "all" {
			p.policies = twopointer.Policies()
			break
		}
		q, err := twopointer.PolicyNamed(name)
		if err != nil {
			return nil, err
		}
		p.policies = append(p.policies, q)
	}
	for _, e := range o.Engines {
		switch e {
		case "round-robin":
			p.engines = append(p.engines, twopointer.RoundRobin)
		case "first-come":
			p.engines = append(p.engines, twopointer.FirstCome)
		default:
			return nil, skep.Invalidf(op, "--engine", e, "round-robin or first-come")
		}
	}
	for _, b := range o.Bandwidth {
		if !(b > 0) || b > 1e5 {
			return nil, skep.Invalidf(op, "--bandwidth", b, "above 0, to 100000 Gb/s")
		}
	}
	for _, u := range o.Utilisation {
		if !(u >= 0.1 && u <= 100) {
			return nil, skep.Invalidf(op, "--utilisation", u, "0.1 to 100")
		}
	}
	for _, n := range o.Batch {
		if n < 1 || n > 1024 {
			return nil, skep.Invalidf(op, "--batch", n, "1 to 1024")
		}
	}
	if o.Requests < 1 || o.Requests > 1<<20 {
		return nil, skep.Invalidf(op, "--requests", o.Requests, "1 to 1048576")
	}
	if !(o.Divide >= 1) || o.Divide > float64(p.model.KV*p.model.HeadDim) {
		return nil, skep.Invalidf(op, "--divide", o.Divide, fmt.Sprintf("1 to %d", p.model.KV*p.model.HeadDim))
	}
	if o.Context == 0 {
		p.o.Context = p.model.Context
	}
	return p, p.addPoints()
}

func (p *plan) addPoints() error {
	for _, load := range p.o.Loads {
		for _, e := range p.engines {
			for _, b := range p.o.Bandwidth {
				at := Point{Engine: e, Bandwidth: b, Seed: p.o.Seed}
				var err error
				switch load {
				case "closed":
					err = p.addClosed(at)
				case "open":
					err = p.addOpen(at)
				case "single":
					if e == p.engines[0] { // one request does not care
						p.addSingles(at)
					}
				default:
					err = skep.Invalidf("bench ttft", "--load", load, "closed, open or single")
				}
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (p *plan) load(hitOnly bool) (*Workload, error) {
	if p.o.Trace == "" {
		return nil, skep.Invalidf("bench ttft", "--trace", "missing", "a trace, but for --load single")
	}
	return Load(LoadOptions{Path: p.o.Trace, Context: p.o.Context, Max: p.o.Requests, Skip: p.o.Skip, Seed: p.o.Seed, HitOnly: hitOnly})
}

func (p *plan) addClosed(at Point) error {
	w, err := p.load(true)
	if err != nil {
		return err
	}
	for _, n := range p.o.Batch {
		at.Loop, at.Load = n, "closed"
		p.points = append(p.points, point{w, at})
	}
	return nil
}

func (p *plan) addOpen(at Point) error {
	w, err := p.load(false)
	if err != nil {
		return err
	}
	e := at.engine(p.gpu, p.model, at.Seed)
	for _, u := range p.o.Utilisation {
		paced := w.Pace(u, func(n int) float64 { return e.Prefill(0, n, budget) * (1 + e.Factor) / 2 })
		at.Load = fmt.Sprintf("open-%g", u)
		p.points = append(p.points, point{&paced, at})
	}
	return nil
}

// addSingles adds one request at a time, of an engine that does as it says.
func (p *plan) addSingles(at Point) {
	at.Loop, at.Load, at.Steady = 1, "single", true
	for k, n := range Singles {
		w := &Workload{Name: "single", Note: "one request after the other, a steady engine"}
		for range singleRepeats {
			q := Prompt{BlockTokens: storeBlock}
			q.Prefix, q.Suffix = n, 1
			for b := range n / storeBlock {
				q.Chain = append(q.Chain, uint64(k)<<40|uint64(b))
			}
			w.Requests = append(w.Requests, q)
		}
		p.points = append(p.points, point{w, at})
	}
}

// singleRepeats is how often a single request is measured.
const singleRepeats = 7

// Run measures the grid and says a row for each policy and point.
func Run(ctx context.Context, o Options) (_ []*Row, err error) {
	if o.Note == nil {
		o.Note = func(string, ...any) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p, err := o.plan()
	if err != nil {
		return nil, err
	}
	var b *bed
	if !o.Virtual {
		dir, err := os.MkdirTemp(o.Dir, "skep-bench-ttft-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		var loads []*Workload
		for _, at := range p.points {
			loads = append(loads, at.w)
		}
		began := time.Now()
		if b, err = newBed(ctx, filepath.Join(dir, "store"), p.model, o.Divide, o.Log, loads...); err != nil {
			return nil, err
		}
		o.Note("stored %.2f GB of prefixes in %.0f s", float64(b.bytes)/1e9, time.Since(began).Seconds())
	}
	var all []*Row
	for i, at := range p.points {
		var rows []*Row
		for _, policy := range p.policies {
			pt := at.p
			pt.Policy, pt.Timeline = policy, o.HTML != nil
			var row *Row
			if o.Virtual {
				row, err = Virtual(at.w, p.gpu, p.model, pt)
			} else {
				row, err = Real(ctx, b, at.w, p.gpu, p.model, pt)
			}
			if err != nil {
				return all, fmt.Errorf("%v at %g Gb/s, %s: %w", policy, pt.Bandwidth, pt.Load, err)
			}
			rows = append(rows, row)
			o.Note("%d/%d  %-11s %3.0f Gb/s %-8s batch %d  %-14s TTFT %7.1f ms  bound %7.1f", i+1, len(p.points), row.Engine, row.Bandwidth, row.Load, row.Batch, row.Policy, row.TTFT.Mean, row.Bound)
		}
		attain(rows)
		all = append(all, rows...)
	}
	if o.HTML != nil {
		err = writeHTML(o.HTML, p, all)
	}
	return all, err
}
