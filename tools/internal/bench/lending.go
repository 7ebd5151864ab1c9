package bench

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/layout/elastic"
)

// PolicyRow is what a lender's policy for its border came to, in a simulated hour.
type PolicyRow struct {
	Load string `json:"load"` // quiet, or busy by turns
	// how the lender's border moves: all-requests (ours), algorithm-1 (the paper's), none: nothing is lent
	Policy   string  `json:"policy"`
	Requests int     `json:"requests"`      // of the lender's own, in a simulated hour
	LentGB   float64 `json:"lent_gb"`       // mean over the hour (GB)
	Waited   float64 `json:"waited_share"`  // of the requests, for want of blocks
	WaitP99  float64 `json:"wait_p99_s"`    // until they first ran (s)
	Evicted  int     `json:"evicted"`       // times a request lost its blocks while it ran, and began again
	Up       int     `json:"moves_up"`      // of the border: memory taken back from a borrower
	Down     int     `json:"moves_down"`    // of the border: memory offered again
	Stranded int     `json:"most_stranded"` // of the lender's own beyond its border, at most (blocks)
}

// What is simulated of a lender: steps of a tenth of a second, an hour of them, a quiet five minutes
// and a busy five by turns.
const (
	lendingStep   = 0.1
	lendingSteps  = 36_000
	lendingPhase  = 3_000
	lendingTokens = 16   // of a block
	lendingDecode = 3    // tokens a step
	lendingFill   = 1000 // prompt tokens a step
	lendingWindow = 600  // steps that a peak is remembered
	lendingCheck  = 10   // steps from one look at what could be lent to the next
	lendingSpare  = 64   // blocks kept beyond the peak
)

// lendingLoads are the requests that come in a step, in the mean, of two times by turns.
var lendingLoads = []struct {
	name  string
	rates [2]float64
}{{"quiet", [2]float64{0.002, 0.002}}, {"busy by turns", [2]float64{0.03, 0.3}}}

var lendingAssumptions = "policies for a border: Qwen3-8B on an H20 lends to Qwen3-32B, an hour of Poisson arrivals, one in 50 seconds (quiet), or 0.3 and 3 a second by turns of five minutes; " +
	"prompts log-normal, median 1,500 tokens, 16 to 16,384; answers of 300 tokens in the mean at 30 a second, prefill 10,000 a second; first come first served; " +
	"a border that goes up is up at once; once a second it may go down, by what the last minute did not need (and 64 blocks)"

// lendingRequest is one of the lender's own.
type lendingRequest struct {
	came     int // step
	prompt   int // tokens
	output   int
	prefill  int // tokens left
	produced int
	blocks   []int
	begun    bool
}

// lendingRun is one policy under those arrivals.
type lendingRun struct {
	policy  elastic.Policy
	none    bool
	a       *elastic.Arena
	peak    elastic.Peak // blocks
	longest elastic.Peak // tokens
	queue   []*lendingRequest
	running []*lendingRequest
	waits   []float64
	row     PolicyRow
}

// lendingUnit is that of the two models, and how many of them the lender has memory for.
func lendingUnit() (elastic.Unit, int, error) {
	lender, err := layout.Of(paperModels[1].Shape(lendingTokens))
	if err != nil {
		return elastic.Unit{}, 0, err
	}
	borrower, err := layout.Of(paperModels[3].Shape(lendingTokens))
	if err != nil {
		return elastic.Unit{}, 0, err
	}
	u, err := elastic.UnitFor(lender, borrower, 0)
	return u, int(kvBytes(paperModels[1], 96) / max(u.Bytes, 1)), err
}

// lending compares the policies.
func lending(seed uint64) (rows []PolicyRow, err error) {
	u, n, err := lendingUnit()
	if err != nil {
		return nil, err
	}
	for _, load := range lendingLoads {
		for _, r := range []lendingRun{{none: true}, {policy: elastic.AllRequests}, {policy: elastic.OneRequest}} {
			if r.a, err = elastic.New(u, n, 1); err != nil {
				return nil, err
			}
			r.peak.Window, r.longest.Window = lendingWindow, lendingWindow
			if r.row.Load, r.row.Policy = load.name, r.policy.String(); r.none {
				r.row.Policy = "none"
			}
			rows = append(rows, r.hour(rand.New(rand.NewPCG(seed, 7)), load.rates))
		}
	}
	return rows, nil
}

func (r *lendingRun) hour(rng *rand.Rand, rates [2]float64) PolicyRow {
	u := r.a.Unit()
	for now := range lendingSteps {
		rate := rates[now/lendingPhase%2]
		for p := rng.Float64(); p > math.Exp(-rate); p *= rng.Float64() { // Poisson
			prompt := int(min(max(1500*math.Exp(rng.NormFloat64()), 16), 16384))
			r.queue = append(r.queue, &lendingRequest{came: now, prompt: prompt, prefill: prompt, output: 1 + int(rng.ExpFloat64()*300)})
			r.longest.See(int64(now), prompt)
		}
		r.admit(now)
		r.decode(now)
		if now%lendingCheck == 0 && !r.none {
			s := elastic.Seen{Peak: r.peak.At(int64(now)), Headroom: lendingSpare, BlockTokens: lendingTokens, Longest: r.longest.At(int64(now))}
			if down := r.policy.Down(r.a, s); down > 0 && len(r.queue) == 0 {
				r.row.Down++
				_ = r.a.Move(-down) // Down says that it can
			}
		}
		r.row.LentGB += float64(int64(r.a.Units()-r.a.Border())*u.Bytes) / 1e9 / lendingSteps
		r.row.Stranded = max(r.row.Stranded, r.a.Used(elastic.Lender)-r.a.Capacity(elastic.Lender))
	}
	for _, q := range r.queue {
		r.waited(lendingSteps, q)
	}
	if r.row.Requests = len(r.waits); r.row.Requests > 0 {
		slices.Sort(r.waits)
		r.row.WaitP99 = r.waits[min(len(r.waits)-1, len(r.waits)*99/100)]
		n, _ := slices.BinarySearch(r.waits, lendingStep/2)
		r.row.Waited = 1 - float64(n)/float64(len(r.waits))
	}
	return r.row
}

// want has the border go up as far as the policy says when so many blocks more are asked for.
func (r *lendingRun) want(now, blocks, tokens int) {
	d := elastic.Demand{Running: r.a.Used(elastic.Lender), Admitted: blocks, Growth: len(r.running)}
	r.peak.See(int64(now), d.Need())
	if up := r.policy.Up(r.a, elastic.Seen{Demand: d, BlockTokens: lendingTokens, Tokens: tokens}); up > 0 {
		r.row.Up++
		_ = r.a.Move(up) // Up says that it can
	}
}

// admit takes requests as long as there are blocks for their prompts, the first that came first.
func (r *lendingRun) admit(now int) {
	for len(r.queue) > 0 {
		q := r.queue[0]
		need := (q.prompt + lendingTokens - 1) / lendingTokens
		r.want(now, need, q.prompt)
		for len(q.blocks) < need {
			b, ok := r.a.Alloc(elastic.Lender)
			if !ok {
				r.free(q)
				return
			}
			q.blocks = append(q.blocks, b)
		}
		r.waited(now, q)
		r.queue, r.running = r.queue[1:], append(r.running, q)
	}
}

// waited notes how long a request waited until it first ran.
func (r *lendingRun) waited(now int, q *lendingRequest) {
	if !q.begun {
		q.begun = true
		r.waits = append(r.waits, float64(now-q.came)*lendingStep)
	}
}

// evict has a request wait again, with what it produced as a part of its prompt.
func (r *lendingRun) evict(q *lendingRequest) {
	r.free(q)
	r.row.Evicted++
	q.prompt, q.output, q.produced = q.prompt+q.produced, q.output-q.produced, 0
	q.prefill = q.prompt
	r.queue = slices.Insert(r.queue, 0, q)
}

func (r *lendingRun) free(q *lendingRequest) {
	for _, b := range q.blocks {
		_ = r.a.Free(elastic.Lender, b) // in use: it is the request's
	}
	q.blocks = nil
}

// decode has running requests go on for a step, as far as there are blocks.
func (r *lendingRun) decode(now int) {
	r.running = slices.DeleteFunc(r.running, func(q *lendingRequest) bool {
		if q.prefill > 0 {
			q.prefill -= lendingFill
			return false
		}
		to := q.produced + lendingDecode
		if q.prompt+to > len(q.blocks)*lendingTokens {
			b, ok := r.a.Alloc(elastic.Lender)
			if !ok {
				r.want(now, 1, q.prompt+to)
				if b, ok = r.a.Alloc(elastic.Lender); !ok {
					r.evict(q)
					return true
				}
			}
			q.blocks = append(q.blocks, b)
		}
		if q.produced = to; q.produced < q.output {
			return false
		}
		r.free(q)
		return true
	})
	r.peak.See(int64(now), r.a.Used(elastic.Lender))
}
