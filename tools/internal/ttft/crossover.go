package ttft

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/layout/twopointer/sim"
	"github.com/skepkv/skep/tools/internal/engine"
)

// CrossoverRow is one length of bench crossover.
type CrossoverRow struct {
	Tokens  int     `json:"tokens"`
	TokenMs float64 `json:"by_tokens_ms"`
	LayerMs float64 `json:"by_layers_ms"`
	BoundMs float64 `json:"bound_ms"`
	// HarmonicMs is the paper's T*, true of linear costs only.
	HarmonicMs float64 `json:"harmonic_ms"`
}

// Crossover is bench crossover.
type Crossover struct {
	Model     string         `json:"model"`
	GPU       string         `json:"gpu"`
	Bandwidth float64        `json:"bandwidth_gbps"`
	Chunk     int            `json:"chunk_tokens"`
	Found     int            `json:"crossover_tokens"`
	Reckoned  int            `json:"reckoned_tokens"`
	Virtual   bool           `json:"virtual"`
	Emulated  bool           `json:"emulated_engine"`
	Rows      []CrossoverRow `json:"rows"`
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
	out := &Crossover{Model: model, GPU: gpu, Bandwidth: gbps, Chunk: chunk, Virtual: true, Emulated: true, Reckoned: p.Crossover(chunk), Rows: []CrossoverRow{}}
	params := sim.Params{Policy: twopointer.CacheFlow, Cost: p.Cost, BytesPerToken: p.BytesPerToken, Layers: m.Layers, Budget: budget, Chunk: chunk, Channel: ch,
		Truth: sim.Truth{Step: func(_ float64, _ int, items []sim.Item) float64 { return e.Step(items) }, Rate: func(float64, int) float64 { return ch.BytesPerSecond }, Latency: latency}}
	for n := chunk; n <= longest; n += chunk {
		params.Requests = []sim.Request{{Prefix: n}}
		var took [2]float64
		for i, at := range []int{1, 1 << 30} { // always by tokens, always by layers
			params.Crossover = at
			res, err := sim.Run(params)
			if err != nil {
				return nil, err
			}
			took[i] = res.Outcomes[0].Restored * 1e3
		}
		p.Tokens = n
		out.Rows = append(out.Rows, CrossoverRow{n, took[0], took[1], p.Bound().Seconds * 1e3, p.Harmonic() * 1e3})
	}
	// From the far end: the least length beyond which layers never win again.
	for i := len(out.Rows) - 1; i >= 0 && out.Rows[i].TokenMs <= out.Rows[i].LayerMs; i-- {
		out.Found = out.Rows[i].Tokens
	}
	return out, nil
}
