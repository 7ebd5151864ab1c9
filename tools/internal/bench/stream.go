package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/layout/elastic"
	"github.com/skepkv/skep/layout/twopointer"
)

// StreamOptions are those of Stream: the setting that is reckoned with. Nothing is measured.
type StreamOptions struct {
	Model, GPU string
	History    []int // tokens loaded
	Suffix     []int // tokens computed
	Buffers    int
	// LinkGBps is the link to lenders and HostGBps the one to host memory, each way.
	LinkGBps, HostGBps float64
	MemoryGB           float64 // of each GPU
	LentGB             float64 // what the other GPUs lend, all together
	HostGB             float64 // host cache
	Sessions, Requests int
	Load               []float64 // utilisation of the host cache's server that arrivals are set to
	Seed               uint64
}

// ExposedRow is one history and suffix.
type ExposedRow struct {
	History      int     `json:"history"`       // loaded (tokens)
	Suffix       int     `json:"suffix"`        // computed (tokens)
	ComputeMs    float64 `json:"compute_ms"`    // computing alone (ms)
	LoadMs       float64 `json:"load_ms"`       // all layers over the link to lenders (ms)
	ExposedMs    float64 `json:"exposed_ms"`    // transfer time that computing does not hide (ms)
	ExposedShare float64 `json:"exposed_share"` // of the whole
	// exposed_ms of a step that follows another: its first load goes on beside the last feed-forward before it. Alone
	// on the GPU a step begins with a load that nothing hides (ms)
	FollowingMs   float64 `json:"exposed_following_ms"`
	HostExposedMs float64 `json:"host_exposed_ms"` // the same over the link to host memory (ms)
	// exposed_ms where the first layer of every lent block is in own memory all the time, which takes another layer's
	// room for each lent block (ms)
	ResidentMs float64 `json:"exposed_first_layer_resident_ms"`
	// exposed_first_layer_resident_ms as a share of the whole
	ResidentShare float64 `json:"exposed_first_layer_resident_share"`
	// exposed_ms with one buffer more, which takes as much memory (ms)
	BuffersMs float64 `json:"exposed_one_buffer_more_ms"`
	// feed-forward and projection last as long as the load of a layer
	Covered bool `json:"covered"`
}

// LongestRow is how long a prompt can be.
type LongestRow struct {
	Model        string  `json:"model"`               // the borrower
	GPU          string  `json:"gpu"`                 // of borrower and lenders
	MemoryGB     float64 `json:"memory_gb"`           // memory of the GPU (GB)
	Lenders      string  `json:"lenders"`             // models on the other GPUs
	LentGB       float64 `json:"lent_gb"`             // what they have beside their weights (GB)
	Conventional int     `json:"conventional_tokens"` // with all layers local (tokens)
	// with lent memory, by SwiftCache eq. 4 and 5 (tokens)
	Streamed int     `json:"streamed_tokens"`
	Ratio    float64 `json:"ratio"` // of the two
	// streamed_tokens where each lent block has room for a layer more: its first one, resident, or a buffer (tokens)
	Room2       int `json:"streamed_tokens_one_layer_more"`
	LocalBlocks int `json:"local_blocks_for_one_layer_more"` // whole blocks of own memory that this takes (blocks)
	// decoding at the conventional length from local memory (ms)
	LocalMs float64 `json:"local_ms_per_output_token"`
	// decoding at the streamed length, the lent part over the link for each token (ms)
	LentMs float64 `json:"lent_ms_per_output_token"`
}

// TTFTRow is one load of the queueing simulation.
type TTFTRow struct {
	Load       float64 `json:"load"`                  // utilisation of the server with the host cache
	PerSecond  float64 `json:"arrivals_per_s"`        // the same for both (1/s)
	HostP50    float64 `json:"host_p50_ms"`           // time to first token with the host cache (ms)
	HostP99    float64 `json:"host_p99_ms"`           // 99th percentile with the host cache (ms)
	LentP50    float64 `json:"lent_p50_ms"`           // with lent memory before the host cache (ms)
	LentP99    float64 `json:"lent_p99_ms"`           // 99th percentile with lent memory (ms)
	Reduction  float64 `json:"p99_reduction"`         // 1 − lent ÷ host
	HostMissed float64 `json:"host_recomputed_share"` // of history tokens, in no tier any more
	LentMissed float64 `json:"lent_recomputed_share"` // the same with lent memory
}

// StreamResult is bench stream.
type StreamResult struct {
	Bench       string       `json:"bench"`       // stream
	Simulated   bool         `json:"simulated"`   // true
	Model       string       `json:"model"`       // the borrower
	GPU         string       `json:"gpu"`         // its GPU
	Assumptions []string     `json:"assumptions"` // what was reckoned with, in words
	Exposed     []ExposedRow `json:"exposed"`     // transfer time that computing does not hide, by length
	Longest     []LongestRow `json:"longest"`     // the longest context, by model, GPU and lenders
	TTFT        []TTFTRow    `json:"ttft"`        // time to first token, by load
	Policies    []PolicyRow  `json:"policies"`    // how the lender fares, by its load and policy
}

// prefiller reckons the time of a prefill.
type prefiller struct {
	model    twopointer.Model
	cost     twopointer.Cost
	weights  float64 // seconds to read all weights
	memory   float64 // bytes a second of GPU memory
	qkv, out float64 // shares of the linear work of a layer
	schedule gpu.Schedule
}

func newPrefiller(g twopointer.GPU, m twopointer.Model, buffers int) (*prefiller, error) {
	s, err := gpu.NewSchedule(buffers)
	if err != nil {
		return nil, err
	}
	layer := m.Active / float64(m.Layers)
	return &prefiller{
		model: m, cost: twopointer.PresetCost(g, m), weights: m.Params * 2 / g.Memory, memory: g.Memory, schedule: s,
		qkv: float64(m.Hidden*(m.Heads+2*m.KV)*m.HeadDim) / layer, out: float64(m.Hidden*m.Heads*m.HeadDim) / layer,
	}, nil
}

// layer is one layer of a prefill of suffix tokens after history, of which loaded come over
// a link of the given bytes a second.
func (p *prefiller) layer(history, loaded, suffix int, link float64) gpu.Cost {
	layers := float64(p.model.Layers)
	// Few tokens take as long as reading the weights.
	linear := max(float64(suffix)*p.cost.PerToken, p.weights) / layers
	end := float64(history + suffix)
	square := max((end*end-float64(history)*float64(history))*p.cost.PerSquare, end*float64(p.model.BytesPerToken())/p.memory) / layers
	bytes := float64(p.model.BytesPerToken()) / layers
	return gpu.Cost{
		QKV: secs(linear * p.qkv), Attention: secs(square + linear*p.out), FFN: secs(linear * (1 - p.qkv - p.out)),
		Load: secs(float64(loaded) * bytes / link), Store: secs(float64(suffix) * bytes / link),
	}
}

func secs(s float64) time.Duration { return time.Duration(s * 1e9) }
func ms(d time.Duration) float64   { return float64(d) / 1e6 }

func (p *prefiller) total(c gpu.Cost) (total, compute time.Duration) {
	return p.schedule.Total(1, p.model.Layers, c)
}

// Stream reckons what layer streaming over a fast link gains and costs.
func Stream(o StreamOptions) (*StreamResult, error) {
	const op = "bench stream"
	g, err := twopointer.GPUNamed(o.GPU)
	if err != nil {
		return nil, err
	}
	m, err := twopointer.ModelNamed(o.Model)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		v    float64
	}{{"--link-gbps", o.LinkGBps}, {"--host-gbps", o.HostGBps}, {"--memory-gb", o.MemoryGB}} {
		if !(f.v > 0 && f.v < 1e6) {
			return nil, skep.Invalidf(op, f.name, f.v, "more than 0")
		}
	}
	if !(o.LentGB >= 0 && o.LentGB < 1e6) || !(o.HostGB >= 0 && o.HostGB < 1e6) {
		return nil, skep.Invalidf(op, "--lent-gb and --host-gb", fmt.Sprint(o.LentGB, " ", o.HostGB), "0 or more")
	}
	for _, n := range slices.Concat(o.History, o.Suffix) {
		if n < 1 || n > 1<<24 {
			return nil, skep.Invalidf(op, "--history and --suffix", n, fmt.Sprintf("1 to %d", 1<<24))
		}
	}
	if o.Sessions < 1 || o.Sessions > 1e5 || o.Requests < 100 || o.Requests > 1e6 {
		return nil, skep.Invalidf(op, "--sessions and --requests", fmt.Sprint(o.Sessions, " ", o.Requests), "1 to 100000 and 100 to 1000000")
	}
	p, err := newPrefiller(g, m, o.Buffers)
	if err != nil {
		return nil, err
	}
	res := &StreamResult{Bench: "stream", Simulated: true, Model: m.Name, GPU: g.Name, Assumptions: o.assumptions(g, m)}
	for _, h := range o.History {
		for _, s := range o.Suffix {
			res.Exposed = append(res.Exposed, o.exposed(p, h, s))
		}
	}
	if res.Longest, err = o.longest(); err != nil {
		return nil, err
	}
	if res.Policies, err = lending(o.Seed); err != nil {
		return nil, err
	}
	for _, load := range o.Load {
		if !(load > 0 && load < 1) {
			return nil, skep.Invalidf(op, "--load", load, "between 0 and 1")
		}
		r, err := o.ttft(p, load)
		if err != nil {
			return nil, err
		}
		res.TTFT = append(res.TTFT, r)
	}
	return res, nil
}

func (o *StreamOptions) assumptions(g twopointer.GPU, m twopointer.Model) []string {
	return []string{
		"nothing here is measured: computed and simulated from data sheets",
		fmt.Sprintf("%s: %.0f TFLOPS dense bf16 at %.0f %% in prefill, memory %.2f TB/s (%s)", g.Name, g.FLOPS/1e12, twopointer.Utilisation*100, g.Memory/1e12, g.Source),
		fmt.Sprintf("%s: %d layers, %d KV heads of %d, bf16, %d bytes of KV a token (%s)", m.Name, m.Layers, m.KV, m.HeadDim, m.BytesPerToken(), m.Source),
		fmt.Sprintf("link to lenders %g GB/s and to host memory %g GB/s, each way, nobody else on them; no latency per copy", o.LinkGBps, o.HostGBps),
		fmt.Sprintf("layer streaming with %d buffer(s); the host cache streams by layer the same way", o.Buffers),
		"a tenth of GPU memory is not for weights and KV; activations are not counted, on either side",
		"longest prompt: GPUs, models and lenders of the paper's Fig. 9; lenders give all they have beside their weights; links of 200 (H20), 300 (A100), 150 (V100) and 32 GB/s (L4, over PCIe), each way; blocks of 16 tokens; not limited by the model's context",
		"first layer resident: the first layer of every lent block is in local memory when the prefill begins, brought there when the block was lent, which is not counted; like a buffer more it takes the room of one layer for each lent block",
		"weights without embedding tables, in 16 bits",
		fmt.Sprintf("time to first token: %d sessions of 20,000 tokens to the model's context, drawn evenly; each request adds 16 to 400 tokens and is answered with 300; Poisson arrivals; one prefill at a time, first come first served, decoding on other GPUs; every session once to warm up; least recently used sessions go first", o.Sessions),
		fmt.Sprintf("both have local memory and then %g GB of host cache; ours has lent memory between them", o.HostGB),
		lendingAssumptions,
	}
}

func (o *StreamOptions) exposed(p *prefiller, history, suffix int) ExposedRow {
	c := p.layer(history, history, suffix, o.LinkGBps*1e9)
	total, compute := p.total(c)
	two, _ := p.schedule.Total(2, p.model.Layers, c)
	hostTotal, _ := p.total(p.layer(history, history, suffix, o.HostGBps*1e9))
	first, more := p.schedule, p.schedule
	first.Resident = 1
	resident, _ := first.Total(1, p.model.Layers, c)
	if s, err := gpu.NewSchedule(o.Buffers + 1); err == nil { // else there are as many as may be
		more = s
	}
	buffers, _ := more.Total(1, p.model.Layers, c)
	return ExposedRow{
		History: history, Suffix: suffix, ComputeMs: ms(compute), LoadMs: ms(c.Load) * float64(p.model.Layers),
		ExposedMs: ms(total - compute), ExposedShare: float64(total-compute) / float64(total),
		FollowingMs: ms(two - total - compute), HostExposedMs: ms(hostTotal - compute),
		ResidentMs: ms(resident - compute), ResidentShare: float64(resident-compute) / float64(resident), BuffersMs: ms(buffers - compute),
		Covered: c.Load <= c.FFN+c.QKV,
	}
}

// kvBytes is what a GPU of gb has for KV beside the weights.
func kvBytes(m twopointer.Model, gb float64) int64 { return int64(gb*0.9e9 - m.Params*2) }

// fig9 is what the paper's Fig. 9 was taken on: GPUs of four sizes, and which models lend there.
var fig9 = []struct {
	gpu     twopointer.GPU
	gb      float64
	link    float64 // bytes a second, each way
	lenders []string
}{
	{twopointer.GPU{Name: "L4", FLOPS: 121e12, Memory: 0.3e12}, 24, 32e9, []string{"qwen3-8b", "qwen3-8b"}},
	{twopointer.GPU{Name: "V100", FLOPS: 125e12, Memory: 0.9e12}, 32, 150e9, []string{"qwen3-14b", "qwen3-8b"}},
	{twopointer.GPU{Name: "A100", FLOPS: 312e12, Memory: 2.039e12}, 80, 300e9, []string{"qwen3-14b", "qwen3-8b"}},
	{twopointer.GPU{Name: "H20", FLOPS: 148e12, Memory: 4.0e12}, 96, 200e9, []string{"qwen3-14b", "qwen3-8b"}},
}

// paperModels are the paper's (Table 2), with weights as their cards say.
var paperModels = []twopointer.Model{
	{Name: "lwm", Params: 6.48e9, Active: 6.48e9, Layers: 32, Hidden: 4096, Heads: 32, KV: 32, HeadDim: 128, Context: 1 << 20},
	{Name: "qwen3-8b", Params: 6.95e9, Active: 6.95e9, Layers: 36, Hidden: 4096, Heads: 32, KV: 8, HeadDim: 128, Context: 40960},
	{Name: "qwen3-14b", Params: 13.2e9, Active: 13.2e9, Layers: 40, Hidden: 5120, Heads: 40, KV: 8, HeadDim: 128, Context: 40960},
	{Name: "qwen3-32b", Params: 31.2e9, Active: 31.2e9, Layers: 64, Hidden: 5120, Heads: 64, KV: 8, HeadDim: 128, Context: 40960},
}

// longest is the longest prompt of each model that fits on each GPU.
func (o *StreamOptions) longest() (rows []LongestRow, err error) {
	for _, at := range fig9 {
		lent := 0.0
		for _, m := range paperModels {
			for _, l := range at.lenders {
				if l == m.Name {
					lent += float64(max(0, kvBytes(m, at.gb)))
				}
			}
		}
		for _, m := range paperModels {
			p, err := newPrefiller(at.gpu, m, o.Buffers)
			if err != nil {
				return nil, err
			}
			g, err := layout.Of(m.Shape(16))
			if err != nil {
				return nil, err
			}
			b := elastic.Borrower{Local: max(0, kvBytes(m, at.gb)), Geometry: g}
			c := b.Capacity(elastic.LentBlocks(g, int64(lent)))
			r := LongestRow{Model: m.Name, GPU: at.gpu.Name, MemoryGB: at.gb, Lenders: strings.Join(at.lenders, ", "), LentGB: lent / 1e9, Conventional: c.Conventional * 16, Streamed: c.Tokens}
			if r.Conventional == 0 {
				continue
			}
			more := b.CapacityBy(2, elastic.LentBlocks(g, int64(lent)))
			r.Room2, r.LocalBlocks = more.Tokens, c.Regular-more.Regular
			r.Ratio = float64(r.Streamed) / float64(r.Conventional)
			local, _ := p.total(p.layer(r.Conventional, 0, 1, at.link))
			streamed, _ := p.total(p.layer(r.Streamed, c.Stream*16, 1, at.link))
			r.LocalMs, r.LentMs = ms(local), ms(streamed)
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// tiers holds sessions, most recently used first, in tiers of so many tokens each; what the
// last has no room for is gone.
type tiers struct {
	room  []int
	order []int // sessions
	size  map[int]int
}

// use says how many of a session's tokens each tier has, and makes it the most recent.
func (t *tiers) use(session, size int) []int {
	got := make([]int, len(t.room))
	before := 0
	for _, s := range t.order {
		if s == session {
			from, to := before, before+t.size[s]
			edge := 0
			for i, r := range t.room {
				got[i] = max(0, min(to, edge+r)-max(from, edge))
				edge += r
			}
			break
		}
		before += t.size[s]
	}
	t.order = slices.DeleteFunc(t.order, func(s int) bool { return s == session })
	t.order = slices.Insert(t.order, 0, session)
	t.size[session] = size
	return got
}

// ttft simulates both servers under the same arrivals.
func (o *StreamOptions) ttft(p *prefiller, load float64) (TTFTRow, error) {
	g, err := layout.Of(p.model.Shape(16))
	if err != nil {
		return TTFTRow{}, err
	}
	b := elastic.Borrower{Local: kvBytes(p.model, o.MemoryGB), Geometry: g}
	c := b.Capacity(elastic.LentBlocks(g, int64(o.LentGB*1e9)))
	host := elastic.LentBlocks(g, int64(o.HostGB*1e9)) * 16
	links := map[bool][]float64{false: {math.Inf(1), o.HostGBps * 1e9}, true: {math.Inf(1), o.LinkGBps * 1e9, o.HostGBps * 1e9}}
	rooms := map[bool][]int{false: {c.Conventional * 16, host}, true: {c.Regular * 16, c.Stream * 16, host}}
	// Service times first, without a clock: what is cached depends on the order alone.
	serve := func(lent bool) (times []time.Duration, missed float64) {
		rng := rand.New(rand.NewPCG(o.Seed, 1))
		t := tiers{room: rooms[lent], size: map[int]int{}}
		length := make([]int, o.Sessions)
		start := func(s int) {
			length[s] = 20_000 + rng.IntN(max(1, p.model.Context-20_000))
			t.use(s, length[s])
		}
		for s := range length {
			start(s)
		}
		var asked, gone int
		for range o.Requests {
			s := rng.IntN(o.Sessions)
			suffix := 16 + rng.IntN(385)
			history := length[s]
			if history+suffix+300 > p.model.Context {
				start(s)
				history = length[s]
				suffix = min(suffix, p.model.Context-history)
			}
			got := t.use(s, history+suffix+300)
			length[s] = min(history+suffix+300, p.model.Context)
			have := 0
			seconds := 0.0 // of loading, all layers
			for i, n := range got {
				have += n
				seconds += float64(n) * float64(p.model.BytesPerToken()) / links[lent][i]
			}
			have = min(have, history)
			asked += history
			gone += history - have
			cost := p.layer(have, 0, history-have+max(suffix, 1), o.LinkGBps*1e9)
			cost.Load = secs(seconds / float64(p.model.Layers))
			total, _ := p.total(cost)
			times = append(times, total)
		}
		return times, Div(float64(gone), float64(asked))
	}
	hostTimes, hostMissed := serve(false)
	lentTimes, lentMissed := serve(true)
	var sum time.Duration
	for _, d := range hostTimes {
		sum += d
	}
	rate := load / (sum.Seconds() / float64(len(hostTimes)))
	r := TTFTRow{Load: load, PerSecond: rate, HostMissed: hostMissed, LentMissed: lentMissed}
	r.HostP50, r.HostP99 = o.queue(hostTimes, rate)
	r.LentP50, r.LentP99 = o.queue(lentTimes, rate)
	r.Reduction = 1 - r.LentP99/r.HostP99
	return r, nil
}

// queue is first come first served under Poisson arrivals: milliseconds to the first token.
func (o *StreamOptions) queue(times []time.Duration, rate float64) (p50, p99 float64) {
	rng := rand.New(rand.NewPCG(o.Seed, 2))
	var at, free float64
	waits := make([]float64, len(times))
	for i, d := range times {
		at += rng.ExpFloat64() / rate
		free = max(free, at) + d.Seconds()
		waits[i] = (free - at) * 1e3
	}
	slices.Sort(waits)
	return waits[len(waits)/2], waits[len(waits)*99/100]
}
