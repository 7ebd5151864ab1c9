package routebench

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/routing"
)

// Options are those of Run.
type Options struct {
	Trace    string        // recorded workload
	Engines  int           // how many
	Rate     float64       // tokens a second that each computes
	Blocks   int           // blocks that each one's cache holds
	Sessions int           // under way at once
	Speed    float64       // of the workload's own times
	Goal     time.Duration // to the first token
	Limit    int           // requests; 0: all
	Seed     uint64        // of the order of sessions
	Policies []string      // none: all
	Note     func(format string, args ...any)
}

// Row is what became of the workload under one policy. Times are the model's.
type Row struct {
	Policy     string  `json:"policy"`       // affinity, round-robin, least-loaded or two-choices
	Requests   int     `json:"requests"`     // that were sent
	HitRatio   float64 `json:"hit_ratio"`    // share of their tokens that the engine's own cache had
	Balance    float64 `json:"balance"`      // busy time of the busiest engine ÷ the mean
	Computed   int64   `json:"computed"`     // tokens
	TTFTMeanMs float64 `json:"ttft_mean_ms"` // to the first token, waiting included (ms)
	TTFTP50Ms  float64 `json:"ttft_p50_ms"`  // to the first token (ms)
	TTFTP99Ms  float64 `json:"ttft_p99_ms"`  // to the first token (ms)
	Late       float64 `json:"late"`         // share of requests whose first token came after the goal
	Seconds    float64 `json:"seconds"`      // until the last first token (s)
	DecideUs   float64 `json:"decide_us"`    // processor and waiting time of one decision, measured, mean (µs)
}

// Result is what skep-bench route found.
type Result struct {
	Method   string  `json:"method"`   // how the figures came about
	Requests int     `json:"requests"` // of the workload
	Engines  int     `json:"engines"`  // number of them
	GoalMs   float64 `json:"goal_ms"`  // to the first token (ms)
	Rows     []Row   `json:"rows"`     // one for each policy
}

// Policies are the names of all.
func Policies() []string { return []string{"affinity", "round-robin", "least-loaded", "two-choices"} }

// Validate says what of the options cannot be.
func (o *Options) Validate() error {
	const op = "route"
	switch {
	case o.Engines < 1 || o.Engines > routing.MaxEngines:
		return skep.Invalidf(op, "--engines", o.Engines, routing.MaxEngines)
	case !(o.Rate > 0):
		return skep.Invalidf(op, "--rate", o.Rate, "more than 0")
	case o.Blocks < 1 || o.Blocks > 1<<24:
		return skep.Invalidf(op, "--blocks", o.Blocks, "1 to 16777216")
	case o.Sessions < 1:
		return skep.Invalidf(op, "--sessions", o.Sessions, "at least 1")
	case !(o.Speed > 0):
		return skep.Invalidf(op, "--speed", o.Speed, "more than 0")
	case o.Goal <= 0:
		return skep.Invalidf(op, "--goal", o.Goal, "more than 0")
	case o.Limit < 0:
		return skep.Invalidf(op, "--limit", o.Limit, "at least 0")
	}
	for _, p := range o.Policies {
		if !slices.Contains(Policies(), p) {
			return skep.Invalidf(op, "--policy", p, Policies())
		}
	}
	return nil
}

// Run replays a workload once for each policy.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if len(o.Policies) == 0 {
		o.Policies = Policies()
	}
	if o.Note == nil {
		o.Note = func(string, ...any) {}
	}
	w, err := read(o.Trace, o.Limit)
	if err != nil {
		return nil, err
	}
	out := &Result{Method: "simulated: engines are a model, the decisions are package routing's", Requests: w.requests,
		Engines: o.Engines, GoalMs: ms(o.Goal)}
	for _, name := range o.Policies {
		row, err := run(ctx, &o, w, name)
		if err != nil {
			return nil, err
		}
		o.Note("%s: hit ratio %.4f, balance %.2f, first token p50 %.0f ms, p99 %.0f ms", name, row.HitRatio,
			row.Balance, row.TTFTP50Ms, row.TTFTP99Ms)
		out.Rows = append(out.Rows, row)
	}
	return out, nil
}

func run(ctx context.Context, o *Options, w *workload, name string) (Row, error) {
	engines := make([]engine, o.Engines)
	for i := range engines {
		engines[i] = engine{rate: o.Rate, cache: newLRU(o.Blocks)}
	}
	pick := policy(name, o, engines)
	row := Row{Policy: name}
	var ttft []time.Duration
	var all, cached int64
	var spent, sum, end time.Duration
	arrive := w.begin(o.Sessions, o.Speed, o.Seed)
	for ctx.Err() == nil {
		now, r, done, ok := arrive.next()
		if !ok {
			break
		}
		began := time.Now()
		e := pick(now, &r)
		spent += time.Since(began)
		first, hit := engines[e].take(now, &r)
		done(first)
		ttft = append(ttft, first-now)
		sum, end = sum+first-now, max(end, first)
		all, cached = all+int64(r.tokens), cached+int64(hit)
		if first-now > o.Goal {
			row.Late++
		}
	}
	if ctx.Err() != nil {
		return row, ctx.Err()
	}
	if len(ttft) == 0 {
		return row, skep.Invalidf("route", "requests with a block", 0, "at least 1")
	}
	slices.Sort(ttft)
	n := float64(len(ttft))
	row.Requests, row.HitRatio, row.Computed = len(ttft), float64(cached)/float64(all), all-cached
	row.TTFTMeanMs, row.TTFTP50Ms, row.TTFTP99Ms = ms(sum)/n, ms(ttft[len(ttft)/2]), ms(ttft[len(ttft)*99/100])
	row.Late, row.Seconds, row.DecideUs = row.Late/n, end.Seconds(), spent.Seconds()*1e6/n
	row.Balance = balance(engines)
	return row, nil
}

func balance(engines []engine) float64 {
	var most, sum time.Duration
	for i := range engines {
		most, sum = max(most, engines[i].busy), sum+engines[i].busy
	}
	if sum == 0 {
		return 1
	}
	return float64(most) * float64(len(engines)) / float64(sum)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// policy is a way to send a request somewhere.
func policy(name string, o *Options, engines []engine) func(now time.Duration, r *request) int {
	named := make([]routing.Engine, len(engines))
	for i := range named {
		named[i] = routing.Engine{Name: string(rune('A' + i)), Rate: o.Rate, Blocks: o.Blocks}
	}
	switch name {
	case "affinity":
		return func(_ time.Duration, r *request) int { return routing.Draws(r.chain[0], named)[0] }
	case "round-robin":
		n := -1
		return func(time.Duration, *request) int {
			n++
			return n % len(engines)
		}
	case "least-loaded":
		return func(time.Duration, *request) int {
			least := 0
			for i := range engines {
				if engines[i].free < engines[least].free {
					least = i
				}
			}
			return least
		}
	}
	router := routing.New()
	var keys []skep.Key
	return func(now time.Duration, r *request) int {
		keys = keys[:0]
		for _, b := range r.chain {
			var k skep.Key
			binary.LittleEndian.PutUint64(k[:], mix(b))
			keys = append(keys, k)
		}
		for i := range named {
			named[i].Wait = max(0, engines[i].free-now)
		}
		a, err := router.Route(&routing.Question{Keys: keys, BlockTokens: r.blockTokens, Tokens: r.tokens,
			Goal: o.Goal, Engines: named})
		if err != nil {
			panic(err) // a chain that is too long: the trace's reader bounds it
		}
		return a.Engine
	}
}

// mix makes a block's number as good as a hash.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
