package ttft

import (
	"math"
	"slices"

	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/layout/twopointer/sim"
	"github.com/skepkv/skep/tools/internal/engine"
)

// Spread is a distribution in milliseconds.
type Spread struct {
	Mean float64 `json:"mean"` // mean (ms)
	P50  float64 `json:"p50"`  // median (ms)
	P90  float64 `json:"p90"`  // 90th percentile (ms)
	P99  float64 `json:"p99"`  // 99th percentile (ms)
}

func spreadOf(seconds []float64) Spread {
	if len(seconds) == 0 {
		return Spread{}
	}
	v := slices.Clone(seconds)
	slices.Sort(v)
	sum := 0.0
	for _, s := range v {
		sum += s
	}
	at := func(q float64) float64 {
		return v[min(int(math.Ceil(q*float64(len(v))))-1+btoi(q == 0), len(v)-1)] * 1e3
	}
	return Spread{sum / float64(len(v)) * 1e3, at(.5), at(.9), at(.99)}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Row is one policy at one point of the grid.
type Row struct {
	Policy    string  `json:"policy"`         // how prefixes were restored
	Bandwidth float64 `json:"bandwidth_gbps"` // of the devices, before dividing (Gb/s)
	Batch     int     `json:"batch"`          // requests at once; 0: open arrivals
	// closed, open-0.5, open-0.8 (open and the utilisation) or single
	Load     string `json:"load"`
	Engine   string `json:"engine"`   // round-robin or first-come
	Trace    string `json:"trace"`    // which trace
	Requests int    `json:"requests"` // of this row
	Hits     int    `json:"hits"`     // of them, with a stored prefix
	Tokens   int    `json:"tokens"`   // mean stored prefix of those (tokens)
	// from arrival until all of the stored prefix is there, over requests with one (ms)
	Restore Spread `json:"restore_ms"`
	// from arrival to the end of the suffix's prefill, over all requests (ms)
	TTFT Spread `json:"ttft_ms"`
	// what the mean TTFT of requests with a hit cannot be below, at the emulated engine's own mean speed: each alone
	// with the whole channel; in a closed loop also batch × the time all but the last batch take together, however
	// split and ordered, ÷ the number of requests (ms)
	Bound float64 `json:"bound_ms"`
	// the paper's T* = Tc·Tio ÷ (Tc + Tio) of each stored prefix alone, by the engine's stated cost, the mean; without
	// the suffix. True of linear costs only (ms)
	Harmonic float64 `json:"harmonic_ms"`
	// (better of recompute and load − this) ÷ (better − bound_ms), of mean TTFT over requests with a hit; 0 where there
	// is nothing to gain
	Attained float64 `json:"attained"`
	// the same of a closed loop whose requests complete in the order that this run's did, with a request served only
	// while it is under way (docs/notebook/two-pointers.md); elsewhere bound_ms (ms)
	OrderBound      float64 `json:"order_bound_ms"`
	AttainedOfOrder float64 `json:"attained_of_order"` // as attained, against order_bound_ms
	IOUtil          float64 `json:"io_util"`           // bytes read ÷ what the devices could have delivered
	ComputeUtil     float64 `json:"compute_util"`      // share of the time the engine was in a step
	BytesLoaded     int64   `json:"bytes_loaded"`      // delivered, after dividing (bytes)
	// stored tokens that were computed again; by layers their share (tokens)
	TokensRecomputed int64   `json:"tokens_recomputed"`
	Declined         int     `json:"declined"`        // requests whose load was declined
	Virtual          bool    `json:"virtual"`         // no bytes were stored or moved
	Emulated         bool    `json:"emulated_engine"` // always: nothing is computed
	Factor           float64 `json:"divided_by"`      // bytes a token and bandwidth were divided by

	restores, ttfts []float64 // seconds, of requests with a hit; all
	hitTTFT         float64   // mean over requests with a hit
	timeline        []sim.Stroke
}

// fill sets what follows from outcomes.
func (r *Row) fill(w *Workload, outcomes []sim.Outcome) {
	hit := 0.0
	for i, o := range outcomes {
		ttft := o.First - o.Arrived
		r.ttfts = append(r.ttfts, ttft)
		r.TokensRecomputed += int64(o.Recomputed)
		r.BytesLoaded += int64(o.Loaded)
		if o.Declined {
			r.Declined++
		}
		if w.Requests[i].Prefix > 0 {
			r.Hits++
			hit += ttft
			r.restores = append(r.restores, o.Restored-o.Arrived)
		}
	}
	r.Requests = len(outcomes)
	for i := range w.Requests {
		r.Tokens += w.Requests[i].Prefix
	}
	r.Tokens /= max(r.Hits, 1)
	r.Restore, r.TTFT = spreadOf(r.restores), spreadOf(r.ttfts)
	if r.Hits > 0 {
		r.hitTTFT = hit / float64(r.Hits) * 1e3
	}
}

// bound is the least mean TTFT, in ms, that requests with a hit can have, at the emulated
// engine's own mean speed and with the whole channel. A closed loop of n has n requests under
// way until its last request is sent, so by Little's law the mean is at least n × the time all before the
// last n take together ÷ their number, with any split and order; and no request is faster than alone.
// Open arrivals are bounded by the latter only.
func bound(w *Workload, e *engine.Emulated, m twopointer.Model, gbps float64, loop int) float64 {
	work := e.Work(budget)
	alone, hits := 0.0, 0
	batches := [2]twopointer.Batch{}
	perToken, rate := float64(m.BytesPerToken()), gbps/8*1e9
	for i, q := range w.Requests {
		slow := 1.0
		if 2*i >= len(w.Requests) && e.Factor > 0 {
			slow = e.Factor
		}
		b := &batches[btoi(slow > 1)]
		full := i < len(w.Requests)-loop // the loop is full until these are through
		if full {
			b.Work += slow * work.Span(q.Prefix, q.Prefix+q.Suffix)
		}
		if q.Prefix > 0 {
			hits++
			if full {
				b.Problems = append(b.Problems, twopointer.Problem{Tokens: q.Prefix, Cost: work.Times(slow), BytesPerToken: perToken, BytesPerSecond: rate})
			}
			alone += slow * e.Alone(q.Prefix, q.Suffix, budget, perToken, rate*slow)
		}
	}
	least := alone / float64(max(hits, 1))
	if loop > 1 {
		together := batches[0].Bound() + batches[1].Bound()
		least = max(least, float64(min(loop, len(w.Requests)))*together/float64(len(w.Requests)))
	}
	return least * 1e3
}

// bounds sets Bound and OrderBound.
func (r *Row) bounds(w *Workload, runs [][]sim.Outcome, e *engine.Emulated, m twopointer.Model, p Point) {
	r.Bound = bound(w, e, m, p.Bandwidth, p.Loop)
	r.OrderBound, r.Harmonic = r.Bound, harmonic(w, e, m, p.Bandwidth)*1e3
	if p.Loop > 1 && r.Hits == r.Requests {
		sum := 0.0
		for _, outcomes := range runs {
			sum += orderBound(w, outcomes, e, m, p.Bandwidth, p.Loop) * 1e3
		}
		r.OrderBound = max(r.Bound, sum/float64(len(runs)))
	}
}

// harmonic is the mean, in seconds, of the paper's T* of each stored prefix alone, by the cost that the engine states. It is
// true of linear costs only, and is there to be compared.
func harmonic(w *Workload, e *engine.Emulated, m twopointer.Model, gbps float64) float64 {
	sum, hits := 0.0, 0
	cost := e.Stated()
	for i, q := range w.Requests {
		if q.Prefix == 0 {
			continue
		}
		p := twopointer.Problem{Tokens: q.Prefix, Cost: cost, BytesPerToken: float64(m.BytesPerToken()), BytesPerSecond: gbps / 8 * 1e9}
		if 2*i >= len(w.Requests) && e.Factor > 0 {
			p.Cost = cost.Times(e.Factor)
		}
		sum += p.Harmonic()
		hits++
	}
	return sum / float64(max(hits, 1))
}

// attain sets Attained and AttainedOfOrder in rows of one point of the grid: the share of what can be gained
// over the better of recompute and load. 0 where nothing can be.
func attain(rows []*Row) {
	better := math.Inf(1)
	for _, r := range rows {
		if r.Policy == twopointer.Recompute.String() || r.Policy == twopointer.LoadOnly.String() {
			better = min(better, r.hitTTFT)
		}
	}
	for _, r := range rows {
		if gain := better - r.Bound; !math.IsInf(better, 0) && gain > 0 {
			r.Attained = (better - r.hitTTFT) / gain
		}
		if gain := better - r.OrderBound; !math.IsInf(better, 0) && gain > 0 {
			r.AttainedOfOrder = (better - r.hitTTFT) / gain
		}
	}
}
