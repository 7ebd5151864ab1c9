package chat

import (
	"bufio"
	"cmp"
	"container/heap"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/trace"
)

// LogNormal is a log-normal distribution by its median and the standard
// deviation of its logarithm.
type LogNormal struct{ Median, Sigma float64 }

func (d LogNormal) draw(r *rand.Rand) float64 {
	// The conversion keeps compilers from fusing the product into a caller's
	// sum, which would make results differ between architectures.
	return float64(d.Median * math.Exp(d.Sigma*r.NormFloat64()))
}

// tokens draws a length of at least one and at most limit tokens.
func (d LogNormal) tokens(r *rand.Rand, limit int) int {
	return int(min(max(math.Round(d.draw(r)), 1), float64(limit)))
}

// Params describe a workload; the zero value of a field stands for its default.
type Params struct {
	Requests    int    // how many requests; default 10,000
	Seed        uint64 // same Params, same bytes; default 1
	BlockTokens int    // default 512, Mooncake's

	SystemPrompts int       // how many sessions share; default 64
	Popularity    float64   // Zipf exponent of the choice among them, > 1; default 1.2
	System        LogNormal // system prompt, tokens; default median 600, sigma 0.7

	SessionsPerSecond float64       // Poisson arrivals; default 2
	ArrivalBatch      time.Duration // requests reach the server in batches this far apart; default 3 s
	Turns             float64       // mean of the geometric number of turns in a session, ≥ 1; default 1.7
	Prompt            LogNormal     // what the user adds in a turn, tokens; default median 3,300, sigma 1.35
	Answer            LogNormal     // tokens; default median 320, sigma 0.5
	Think             LogNormal     // between an answer and the next prompt, seconds; default median 40, sigma 1.2
	TokensPerSecond   float64       // speed at which answers are generated; default 50
	MaxInput          int           // context window: the turn that would exceed it ends its session; default 128,000
}

// EnsureDefaults replaces zero fields by their defaults.
func (p *Params) EnsureDefaults() {
	p.Requests = cmp.Or(p.Requests, 10_000)
	p.Seed = cmp.Or(p.Seed, 1)
	p.BlockTokens = cmp.Or(p.BlockTokens, trace.MooncakeBlockTokens)
	p.SystemPrompts = cmp.Or(p.SystemPrompts, 64)
	p.Popularity = cmp.Or(p.Popularity, 1.2)
	p.System = cmp.Or(p.System, LogNormal{600, .7})
	p.SessionsPerSecond = cmp.Or(p.SessionsPerSecond, 2)
	p.ArrivalBatch = cmp.Or(p.ArrivalBatch, 3*time.Second)
	p.Turns = cmp.Or(p.Turns, 1.7)
	p.Prompt = cmp.Or(p.Prompt, LogNormal{3300, 1.35})
	p.Answer = cmp.Or(p.Answer, LogNormal{320, .5})
	p.Think = cmp.Or(p.Think, LogNormal{40, 1.2})
	p.TokensPerSecond = cmp.Or(p.TokensPerSecond, 50)
	p.MaxInput = cmp.Or(p.MaxInput, 128_000)
}

// Validate reports the first field that is out of range, as skep.Invalid.
// Defaults are to be filled in before.
func (p *Params) Validate() error {
	for _, f := range []struct {
		name   string
		v      float64
		lo, hi float64
	}{
		{"Requests", float64(p.Requests), 1, 1e9},
		{"BlockTokens", float64(p.BlockTokens), 1, 1 << 20},
		{"SystemPrompts", float64(p.SystemPrompts), 1, 1e6},
		{"Popularity", p.Popularity, 1.0001, 100},
		{"System.Median", p.System.Median, 1, 1e8}, {"System.Sigma", p.System.Sigma, 0, 10},
		{"SessionsPerSecond", p.SessionsPerSecond, 1e-6, 1e6},
		{"ArrivalBatch", p.ArrivalBatch.Seconds(), .001, 3600},
		{"Turns", p.Turns, 1, 1e6},
		{"Prompt.Median", p.Prompt.Median, 1, 1e8}, {"Prompt.Sigma", p.Prompt.Sigma, 0, 10},
		{"Answer.Median", p.Answer.Median, 1, 1e8}, {"Answer.Sigma", p.Answer.Sigma, 0, 10},
		{"Think.Median", p.Think.Median, .001, 1e6}, {"Think.Sigma", p.Think.Sigma, 0, 10},
		{"TokensPerSecond", p.TokensPerSecond, .01, 1e9},
		{"MaxInput", float64(p.MaxInput), 2, 1e8},
		{"Requests/SessionsPerSecond", float64(p.Requests) / p.SessionsPerSecond, 0, maxSeconds},
	} {
		if !(f.v >= f.lo && f.v <= f.hi) {
			return skep.Invalidf("generate workload", f.name, f.v, strconv.FormatFloat(f.lo, 'g', -1, 64)+".."+strconv.FormatFloat(f.hi, 'g', -1, 64))
		}
	}
	return nil
}

// Write generates the workload and writes it to w as Mooncake's JSONL, one
// request a line. A block size other than Mooncake's 512 is written on each
// line as "block_size", which package trace reads.
func Write(w io.Writer, p Params) error {
	g, err := New(p)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 64<<10)
	var line []byte
	for {
		r, err := g.Next()
		if err == io.EOF {
			return out.Flush()
		}
		if err != nil {
			return err
		}
		line = appendJSON(line[:0], r)
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
}

func appendJSON(b []byte, r trace.Request) []byte {
	b = append(b, `{"timestamp": `...)
	b = strconv.AppendInt(b, r.Time.Milliseconds(), 10)
	b = append(b, `, "input_length": `...)
	b = strconv.AppendInt(b, int64(r.InputTokens), 10)
	b = append(b, `, "output_length": `...)
	b = strconv.AppendInt(b, int64(r.OutputTokens), 10)
	if r.BlockTokens != trace.MooncakeBlockTokens {
		b = append(b, `, "block_size": `...)
		b = strconv.AppendInt(b, int64(r.BlockTokens), 10)
	}
	b = append(b, `, "hash_ids": [`...)
	for i, id := range r.Blocks {
		if i > 0 {
			b = append(b, `, `...)
		}
		b = strconv.AppendUint(b, id, 10)
	}
	return append(b, "]}\n"...)
}

// Generator yields the requests of a workload in order of time. It holds the
// sessions that are not over, not the trace.
type Generator struct {
	p     Params
	rng   *rand.Rand
	zipf  *rand.Zipf
	pools []prefix // system prompts, drawn on first use

	left    int
	nextID  uint64
	arrival time.Duration // of the next session
	started int
	active  sessions
	scratch []uint64
}

// prefix is what sessions share: a system prompt and the ids of its full blocks.
type prefix struct {
	tokens int
	ids    []uint64
}

// session is a conversation between two turns.
type session struct {
	at      time.Duration // of its next turn
	number  int           // breaks ties in time
	context int           // tokens so far, answers included
	ids     []uint64      // ids given to the context's leading full blocks
}

// New checks p, with its defaults filled in, and prepares a Generator.
func New(p Params) (*Generator, error) {
	p.EnsureDefaults()
	if err := p.Validate(); err != nil {
		return nil, err
	}
	g := &Generator{p: p, rng: rand.New(rand.NewPCG(p.Seed, 0x736b6570)), left: p.Requests, pools: make([]prefix, p.SystemPrompts)}
	g.zipf = rand.NewZipf(g.rng, p.Popularity, 1, uint64(p.SystemPrompts-1))
	g.arrival = g.gap()
	return g, nil
}

// Next returns the next request, io.EOF after Params.Requests of them. Blocks
// is overwritten by the next call.
func (g *Generator) Next() (trace.Request, error) {
	if g.left == 0 {
		return trace.Request{}, io.EOF
	}
	g.left--
	for len(g.active) == 0 || g.arrival <= g.active[0].at {
		g.start()
	}
	s := g.active[0]
	r := g.turn(s)
	// The session goes on, or not: a coin with mean Turns. Its last chance is
	// the context window.
	prompt := g.p.Prompt.tokens(g.rng, g.p.MaxInput)
	pause := float64(r.OutputTokens)/g.p.TokensPerSecond + g.p.Think.draw(g.rng)
	over := g.rng.Float64()*g.p.Turns < 1
	if over || s.context+prompt > g.p.MaxInput || s.at.Seconds()+pause > maxSeconds {
		heap.Pop(&g.active)
		return r, nil
	}
	s.context += prompt
	s.at += max(time.Duration(pause*float64(time.Second)), 1)
	heap.Fix(&g.active, 0)
	return r, nil
}

// maxSeconds keeps every time well inside a time.Duration: sessions start
// within it (Validate) and a turn that would come later ends its session.
const maxSeconds = 1e9

// gap draws the time between two sessions.
func (g *Generator) gap() time.Duration {
	return time.Duration(g.rng.ExpFloat64() / g.p.SessionsPerSecond * float64(time.Second))
}

// start adds the session that arrives next, with its first prompt.
func (g *Generator) start() {
	pool := &g.pools[g.zipf.Uint64()]
	if pool.tokens == 0 {
		// Half the window at most: every session has room for a prompt.
		pool.tokens = g.p.System.tokens(g.rng, g.p.MaxInput/2)
		for range pool.tokens / g.p.BlockTokens {
			pool.ids = append(pool.ids, g.id())
		}
	}
	s := &session{at: g.arrival, number: g.started, ids: append([]uint64(nil), pool.ids...)}
	s.context = pool.tokens + g.p.Prompt.tokens(g.rng, g.p.MaxInput-pool.tokens)
	heap.Push(&g.active, s)
	g.started++
	g.arrival += g.gap()
}

// turn is the request for a session's context as it stands, answered.
func (g *Generator) turn(s *session) trace.Request {
	p := &g.p
	full, rest := s.context/p.BlockTokens, s.context%p.BlockTokens
	for len(s.ids) < full {
		s.ids = append(s.ids, g.id())
	}
	g.scratch = append(g.scratch[:0], s.ids...)
	if rest > 0 {
		// The next turn fills this block up, which makes it another block.
		g.scratch = append(g.scratch, g.id())
	}
	// Whoever asks between two batches waits for the second.
	batches := (s.at + p.ArrivalBatch - 1) / p.ArrivalBatch
	r := trace.Request{Time: (batches * p.ArrivalBatch).Truncate(time.Millisecond), InputTokens: s.context, OutputTokens: p.Answer.tokens(g.rng, p.MaxInput),
		Blocks: g.scratch, BlockTokens: p.BlockTokens, LastValidTokens: rest}
	s.context += r.OutputTokens
	return r
}

func (g *Generator) id() uint64 {
	g.nextID++
	return g.nextID - 1
}

// sessions is a heap by the time of the next turn.
type sessions []*session

func (h sessions) Len() int      { return len(h) }
func (h sessions) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *sessions) Push(x any)   { *h = append(*h, x.(*session)) }
func (h *sessions) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return s
}

func (h sessions) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].number, h[j].number)) < 0
}
