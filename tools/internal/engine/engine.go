package engine

import (
	"math"
	"math/rand/v2"

	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/layout/twopointer/sim"
)

// Emulated is an engine on one GPU, or on one stage of several. Not safe for concurrent use.
type Emulated struct {
	GPU   twopointer.GPU
	Model twopointer.Model
	Share float64 // of the model's layers on this GPU; 1
	// Noise is how far a step strays from its mean, as a share; Factor by how much all
	// is slower once Progress has passed the middle. 0 and 1: steady.
	Noise, Factor float64

	rng  *rand.Rand
	slow float64
	last float64
}

// Shape of the formula.
const (
	most       = 0.62   // utilisation of large steps
	ramp       = 500.0  // tokens over which utilisation grows
	tile       = 128.0  // tokens a kernel's tile has room for: steps are filled up to it
	launch     = 1.2e-3 // seconds
	decodeStep = 1.5e-3 // seconds of the decoding batch in each step
	MaxNoise   = 0.5    // the most Noise makes sense for
	Noise      = 0.2    // what benchmarks use
	Factor     = 2.0    // what benchmarks use
	middle     = 0.5    // of a run
	pairFLOP   = 4.0    // operations for each pair of tokens, layer, head and dimension
	weightFLOP = 2.0    // operations for each weight and token
)

// New makes an engine that strays and slows down as the seed says.
func New(g twopointer.GPU, m twopointer.Model, seed uint64) *Emulated {
	return &Emulated{GPU: g, Model: m, Share: 1, Noise: Noise, Factor: Factor, rng: rand.New(rand.NewPCG(seed, 0x656e67696e65)), slow: 1}
}

// Mean is what a step takes without noise, at the speed of the beginning.
func (e *Emulated) Mean(items []sim.Item) float64 {
	tokens, flop, layers := 0.0, 0.0, 0.0
	for _, it := range items {
		from, to := float64(it.From), float64(it.To)
		n := to - from
		// Causal: token i attends to i before it.
		pairs := (to*to - from*from) / 2
		m := &e.Model
		flop += it.Layers * (weightFLOP*m.Active*n + pairFLOP*float64(m.Layers*m.Heads*m.HeadDim)*pairs)
		tokens += it.Layers * n
		layers = max(layers, it.Layers)
	}
	if tokens == 0 {
		return 0
	}
	weights := layers * e.Model.Params * 2 / e.GPU.Memory
	// Layers are done one after the other, each for all the tokens of the step.
	wide := tokens / layers
	filled := math.Ceil(wide/tile) * tile
	operations := flop * filled / wide / (e.GPU.FLOPS * most * (1 - math.Exp(-filled/ramp)))
	return e.Share*math.Hypot(weights, operations) + layers*(launch+decodeStep)
}

// Step is what a step takes now.
func (e *Emulated) Step(items []sim.Item) float64 {
	e.last = e.Mean(items) * e.slow * (1 + e.Noise*(2*e.rng.Float64()-1))
	return e.last
}

// LastStep is what the last Step took.
func (e *Emulated) LastStep() float64 { return e.last }

// Progress tells the engine how much of the run is over, 0 to 1.
func (e *Emulated) Progress(share float64) {
	if share >= middle && e.Factor > 0 {
		e.slow = e.Factor
	}
}

// Slow is by how much everything takes longer now.
func (e *Emulated) Slow() float64 { return e.slow }

// Points is what an engine would tell of itself at the start: a few prefills, measured.
func (e *Emulated) Points() []twopointer.Point {
	var out []twopointer.Point
	add := func(from, to int) {
		out = append(out, twopointer.Point{From: from, To: to, Seconds: e.Mean([]sim.Item{{From: from, To: to, Layers: 1}})})
	}
	for _, n := range []int{256, 512, 1024, 2048, 4096, 8192} {
		add(0, n)
	}
	add(8192, 10240)
	add(24576, 26624)
	return out
}

// Stated is the cost fitted to Points: what the scheduler is told.
func (e *Emulated) Stated() twopointer.Cost {
	c, err := twopointer.Fit(e.Points())
	if err != nil {
		return twopointer.PresetCost(e.GPU, e.Model) // Points are never unfit
	}
	return c
}

// Work is the least engine time that tokens take, however they are put into steps of a
// budget: a cost without launches, at the utilisation of full steps.
func (e *Emulated) Work(budget int) twopointer.Cost {
	var points []twopointer.Point
	for from := 0; from < 16*budget; from += 3 * budget {
		points = append(points, twopointer.Point{From: from, To: from + budget, Seconds: e.Mean([]sim.Item{{From: from, To: from + budget, Layers: 1}})})
	}
	c, err := twopointer.Fit(points)
	if err != nil {
		return e.Stated()
	}
	c.PerToken += c.Fixed / float64(budget) // full steps, each with its launch
	c.Fixed = 0
	return c
}

// Alone is the least time in which a prefix is restored and the suffix behind it computed, of
// any split by tokens (in steps of 16) or layers, with loading at a rate that nobody shares.
func (e *Emulated) Alone(prefix, suffix, budget int, bytesPerToken, bytesPerSecond float64) float64 {
	load := func(tokens float64) float64 { return tokens * bytesPerToken / bytesPerSecond }
	least := min(e.Prefill(0, prefix, budget), load(float64(prefix)))
	for lo, hi := 0, prefix/16; lo < hi; { // computing grows with the split, loading shrinks
		mid := (lo + hi) / 2
		c, l := e.Prefill(0, 16*mid, budget), load(float64(prefix-16*mid))
		least = min(least, max(c, l))
		if c < l {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if prefix <= budget {
		for l := range e.Model.Layers {
			part := float64(l) / float64(e.Model.Layers)
			c := e.Mean([]sim.Item{{To: prefix, Layers: part}})
			least = min(least, max(c, load(float64(prefix)*(1-part))))
		}
	}
	return least + e.Prefill(prefix, prefix+suffix, budget)
}

// Prefill is what computing tokens [from, to) takes in steps of a budget, without noise, at the
// speed of the beginning.
func (e *Emulated) Prefill(from, to, budget int) float64 {
	sum := 0.0
	for at := from; at < to; at += budget {
		sum += e.Mean([]sim.Item{{From: at, To: min(at+budget, to), Layers: 1}})
	}
	return sum
}
