package ttft

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/layout/twopointer/sim"
	"github.com/skepkv/skep/tools/internal/engine"
)

// CrossoverRow is one length of bench crossover.
type CrossoverRow struct {
	Tokens  int     `json:"tokens"`       // length (tokens)
	TokenMs float64 `json:"by_tokens_ms"` // restored by tokens (ms)
	LayerMs float64 `json:"by_layers_ms"` // by layers (ms)
	BoundMs float64 `json:"bound_ms"`     // the best split there is, by the stated cost (ms)
	// the paper's T* = Tc·Tio ÷ (Tc + Tio), true of linear costs only (ms)
	HarmonicMs  float64 `json:"harmonic_ms"`
	SkepTokenMs float64 `json:"skep_by_tokens_ms"` // restored by tokens by skep's own scheduler (ms)
	SkepLayerMs float64 `json:"skep_by_layers_ms"` // by layers (ms)
}

// Crossover is bench crossover.
type Crossover struct {
	Model     string  `json:"model"`          // as given
	GPU       string  `json:"gpu"`            // as given
	Bandwidth float64 `json:"bandwidth_gbps"` // as given (Gb/s)
	Chunk     int     `json:"chunk_tokens"`   // as given (tokens)
	// the least length beyond which layers never win again; 0: none up to the longest tried (tokens)
	Found int `json:"crossover_tokens"`
	// what the scheduler reckons from the cost the engine states (tokens)
	Reckoned int `json:"reckoned_tokens"`
	// the same least length when skep's own scheduler restores; 0: none up to the longest tried (tokens)
	SkepFound int `json:"skep_crossover_tokens"`
	// what a store reckons from that cost and this bandwidth: alone, shorter chains go by layers (tokens)
	SkepReckoned int            `json:"skep_reckoned_tokens"`
	Virtual      bool           `json:"virtual"`         // always: time is virtual
	Emulated     bool           `json:"emulated_engine"` // always
	Rows         []CrossoverRow `json:"rows"`            // by length
}

// MeasureCrossover restores prompts of growing length by tokens and by layers, as policy
// cacheflow does (whole chunks, each a launch), on the emulated engine in virtual time, and
// finds L_Δ: the least length from which on tokens take no longer, up to longest. Beside it stands what
// the scheduler reckons from the cost the engine states.
func MeasureCrossover(gpu, model string, gbps float64, chunk, longest int) (*Crossover, error) {
	const op = "bench crossover"
	g, err := twopointer.GPUNamed(gpu)
	if err != nil {
		return nil, err
	}
	m, err := twopointer.ModelNamed(model)
	if err != nil {
		return nil, err
	}
	if !(gbps > 0) {
		return nil, skep.Invalidf(op, "--bandwidth", gbps, "above 0")
	}
	if chunk < 16 || chunk > 1<<16 || longest < chunk || longest > 1<<20 {
		return nil, skep.Invalidf(op, "--chunk and --longest", chunk, "16 to 65536 tokens, longest at least a chunk and at most 1048576")
	}
	e := engine.New(g, m, 1)
	e.Noise, e.Factor = 0, 1
	ch := twopointer.Channel{BytesPerSecond: gbps / 8 * 1e9, Latency: latency}
	p := twopointer.Problem{Layers: m.Layers, Cost: e.Stated(), BytesPerToken: float64(m.BytesPerToken()), BytesPerSecond: ch.BytesPerSecond, Latency: latency}
	out := &Crossover{Model: model, GPU: gpu, Bandwidth: gbps, Chunk: chunk, Virtual: true, Emulated: true, Reckoned: p.Crossover(chunk), SkepReckoned: p.Turn(), Rows: []CrossoverRow{}}
	params := sim.Params{Policy: twopointer.CacheFlow, Cost: p.Cost, BytesPerToken: p.BytesPerToken, Layers: m.Layers, Budget: budget, Chunk: chunk, Channel: ch,
		Truth: sim.Truth{Step: func(_ float64, _ int, items []sim.Item) float64 { return e.Step(items) }, Rate: func(float64, int) float64 { return ch.BytesPerSecond }, Latency: latency}}
	for n := chunk; n <= longest; n += chunk {
		params.Requests = []sim.Request{{Prefix: n}}
		var took [4]float64
		for i := range took {
			params.Policy, params.Crossover = twopointer.CacheFlow, 1<<(30*(i%2)) // always by tokens, always by layers
			if i >= 2 {
				params.Policy = twopointer.Skep
			}
			res, err := sim.Run(params)
			if err != nil {
				return nil, err
			}
			took[i] = res.Outcomes[0].Restored * 1e3
		}
		p.Tokens = n
		out.Rows = append(out.Rows, CrossoverRow{n, took[0], took[1], p.Bound().Seconds * 1e3, p.Harmonic() * 1e3, took[2], took[3]})
	}
	out.Found = out.least(func(r *CrossoverRow) bool { return r.TokenMs <= r.LayerMs })
	out.SkepFound = out.least(func(r *CrossoverRow) bool { return r.SkepTokenMs <= r.SkepLayerMs })
	return out, nil
}

// least is the least length from which on tokens win, 0 when they do not at the longest.
func (c *Crossover) least(wins func(*CrossoverRow) bool) (tokens int) {
	for i := len(c.Rows) - 1; i >= 0 && wins(&c.Rows[i]); i-- {
		tokens = c.Rows[i].Tokens
	}
	return tokens
}
