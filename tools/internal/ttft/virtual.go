package ttft

import (
	"slices"

	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/layout/twopointer/sim"
	"github.com/skepkv/skep/tools/internal/engine"
)

// Point is one point of the grid.
type Point struct {
	Policy    twopointer.Policy
	Engine    twopointer.Engine
	Bandwidth float64 // Gb/s
	Loop      int     // requests at once; 0: open
	Load      string  // as it is called in the row
	Seed      uint64
	Timeline  bool
	// Steady is an engine without noise and without a step in the middle.
	Steady bool
}

func (p *Point) engine(g twopointer.GPU, m twopointer.Model, seed uint64) *engine.Emulated {
	e := engine.New(g, m, seed)
	if p.Steady {
		e.Noise, e.Factor = 0, 1
	}
	return e
}

// latency is from asking the store to the first byte, seconds.
const latency = 200e-6

// budget is the tokens of an engine's step, as engines on such GPUs default to.
const budget = 8192

// virtualRuns is how often a point is run, each time with other noise of the engine: over 150 prompts the
// noise of one run moves a mean by up to 1 %, which can be more than there is to gain over the
// better of recompute and load.
const virtualRuns = 4

// Virtual runs one point in virtual time, virtualRuns times: no bytes are stored or moved.
func Virtual(w *Workload, g twopointer.GPU, m twopointer.Model, p Point) (*Row, error) {
	row := &Row{Policy: p.Policy.String(), Bandwidth: p.Bandwidth, Batch: p.Loop, Load: p.Load, Engine: p.Engine.String(), Trace: w.Name,
		Virtual: true, Emulated: true, Factor: 1}
	all := *w
	all.Requests = slices.Repeat(w.Requests, virtualRuns)
	var outcomes []sim.Outcome
	var runs [][]sim.Outcome
	var e *engine.Emulated
	for i := range uint64(virtualRuns) {
		e = p.engine(g, m, p.Seed+i)
		res, err := virtual(w, e, m, p)
		if err != nil {
			return nil, err
		}
		outcomes, runs = append(outcomes, res.Outcomes...), append(runs, res.Outcomes)
		row.IOUtil += res.IOBusy / res.End / virtualRuns
		row.ComputeUtil += res.Compute / res.End / virtualRuns
		if i == 0 {
			row.timeline = res.Timeline
		}
	}
	row.fill(&all, outcomes)
	row.Requests, row.Hits, row.Declined = row.Requests/virtualRuns, row.Hits/virtualRuns, row.Declined/virtualRuns // of one run
	row.bounds(w, runs, e, m, p)
	row.BytesLoaded, row.TokensRecomputed = row.BytesLoaded/virtualRuns, row.TokensRecomputed/virtualRuns
	return row, nil
}

func virtual(w *Workload, e *engine.Emulated, m twopointer.Model, p Point) (*sim.Result, error) {
	ch := twopointer.Channel{BytesPerSecond: p.Bandwidth / 8 * 1e9, Latency: latency}
	params := sim.Params{Policy: p.Policy, Kind: p.Engine, Loop: p.Loop, Cost: e.Stated(), BytesPerToken: float64(m.BytesPerToken()),
		Boundary: float64(m.BoundaryPerToken()), Layers: m.Layers, Budget: budget, Channel: ch, Timeline: p.Timeline}
	arrived := 0
	for _, q := range w.Requests {
		params.Requests = append(params.Requests, q.Request)
	}
	last := w.Requests[len(w.Requests)-1].At
	params.Truth = sim.Truth{
		Step: func(t float64, _ int, items []sim.Item) float64 {
			if p.Loop == 0 && last > 0 {
				e.Progress(t / last)
			} else {
				for _, it := range items {
					arrived = max(arrived, it.Req)
				}
				e.Progress(float64(arrived) / float64(len(w.Requests)))
			}
			return e.Step(items)
		},
		Rate: func(float64, int) float64 { return ch.BytesPerSecond }, Latency: ch.Latency,
	}
	return sim.Run(params)
}
