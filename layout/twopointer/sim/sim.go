package sim

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/skepkv/skep/layout/twopointer"
)

// Truth is what things really take, in seconds.
type Truth struct {
	// Step is the duration of an engine's step that starts at t.
	Step func(t float64, stage int, items []Item) float64
	// Rate is what a channel moves at t, bytes a second.
	Rate func(t float64, channel int) float64
	// Latency of a channel.
	Latency float64
	// Fails says whether a piece does not come; nil: all come.
	Fails func(req, from, to int) bool
}

// Params is one run.
type Params struct {
	Policy   twopointer.Policy
	Kind     twopointer.Engine
	Requests []Request
	Loop     int // closed loop of so many requests at once; 0: open arrivals

	Cost          twopointer.Cost // what the engine says computing costs, all stages together
	BytesPerToken float64
	Boundary      float64
	Layers        int
	Stages        int // of the pipeline; 1
	Chunk, Unit   int
	Budget        int                // tokens of a step; 8192
	Channel       twopointer.Channel // as believed at first
	Channels      int                // 1; or one for each stage
	Truth         Truth
	// Crossover is L_Δ; 0: reckoned by the scheduler.
	Crossover int
	Timeline  bool
}

// Outcome is what became of one request.
type Outcome struct {
	Arrived, Restored, First float64
	Loaded                   float64 // bytes
	Recomputed               int     // tokens; by layers their share
	Mode                     twopointer.Mode
	Declined                 bool
}

// Stroke is a piece of a timeline.
type Stroke struct {
	Req, Stage int
	What       string // "load", "compute", "suffix", "boundary"
	From, To   int
	ByLayers   bool
	Start, End float64
}

// Result of a run.
type Result struct {
	Outcomes  []Outcome
	End       float64
	IOBusy    float64 // seconds, of all channels together ÷ their number
	Compute   float64
	Decisions int
	Timeline  []Stroke
}

// run is a simulation under way.
type run struct {
	p     Params
	s     *twopointer.Scheduler
	e     []*Engine // one for each stage that computes on its own
	now   float64
	queue events
	seq   int
	res   Result
	chans []server
	busy  []bool  // stage computes
	left  []int   // stages on which a request is not restored
	alone [][]int // how far a declined request is granted, by stage
	stage []int   // stages on which it has no first token
	slots [][]int
	back  map[int][2]int // slot → request, stage
	next  int            // next request of a closed loop
	cover [][][]uint8    // how often each token (or layer) was restored, by request and stage
	err   error
}

type server struct {
	free    float64 // until when it transfers
	waiting int     // pieces not transferred yet
}

type event struct {
	at  float64
	seq int
	do  func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

func (r *run) after(d float64, do func()) {
	r.seq++
	heap.Push(&r.queue, event{r.now + max(d, 0), r.seq, do})
}

// Run simulates until every request has its first token.
func Run(p Params) (*Result, error) {
	p.Stages, p.Channels = max(p.Stages, 1), max(p.Channels, 1)
	if p.Budget == 0 {
		p.Budget = 8192
	}
	if p.Chunk == 0 {
		p.Chunk = 512
	}
	r := &run{p: p, back: map[int][2]int{}, chans: make([]server, p.Channels)}
	engines := 1
	if p.Policy.SplitsStages() {
		engines = p.Stages
	}
	cfg := twopointer.Config{Policy: p.Policy, Engine: p.Kind, Chunk: p.Chunk, Unit: p.Unit, Stages: engines, Crossover: p.Crossover}
	for range p.Channels {
		cfg.Channels = append(cfg.Channels, p.Channel)
	}
	var err error
	if r.s, err = twopointer.New(cfg); err != nil {
		return nil, err
	}
	n := len(p.Requests)
	r.left, r.slots, r.cover = make([]int, n), make([][]int, n), make([][][]uint8, n)
	r.stage, r.alone = make([]int, n), make([][]int, n)
	r.res.Outcomes = make([]Outcome, n)
	r.busy = make([]bool, engines)
	for g := range engines {
		r.e = append(r.e, &Engine{Kind: p.Kind, Stage: g, Chunk: p.Chunk, Budget: p.Budget, Ask: r.ask, Deep: engines == 1 && p.Stages > 1})
	}
	if p.Loop > 0 {
		for i := range min(p.Loop, n) {
			r.after(0, func() { r.arrive(i) })
			r.next++
		}
	} else {
		for i := range p.Requests {
			r.now = p.Requests[i].At
			r.after(0, func() { r.arrive(i) })
		}
	}
	r.now = 0
	for len(r.queue) > 0 && r.err == nil {
		ev := heap.Pop(&r.queue).(event)
		r.now = ev.at
		ev.do()
		// Everything that happens at one moment is known before it is acted on.
		if len(r.queue) == 0 || r.queue[0].at > r.now {
			r.act()
		}
	}
	if r.err == nil {
		r.err = r.check()
	}
	r.res.End = r.now
	return &r.res, r.err
}

func (r *run) step(e twopointer.Event) twopointer.Decision {
	e.At = time.Duration(r.now * 1e9)
	r.res.Decisions++
	d, err := r.s.Step(e)
	if err != nil && r.err == nil {
		r.err = err
	}
	return d
}

func (r *run) arrive(i int) {
	q := &r.p.Requests[i]
	out := &r.res.Outcomes[i]
	out.Arrived = r.now
	stages := len(r.e)
	r.slots[i], r.alone[i] = make([]int, stages), make([]int, stages)
	r.cover[i] = make([][]uint8, stages)
	r.stage[i] = stages
	if r.left[i] = stages; q.Prefix == 0 {
		r.left[i], out.Restored = 0, r.now
	}
	for g := range stages {
		r.e[g].Add(i, q.Prefix, q.Suffix)
		if q.Prefix == 0 {
			continue
		}
		st := &twopointer.Strand{Request: i, Stage: g, Channel: g % r.p.Channels, Tokens: q.Prefix, Layers: r.p.Layers / stages,
			Cost: r.p.Cost.Times(1 / float64(r.p.Stages)), BytesPerToken: r.p.BytesPerToken / float64(stages), Weight: q.Weight}
		st.Cost.Fixed = r.p.Cost.Fixed / float64(stages)
		st.After = st.Cost.Span(q.Prefix, q.Prefix+q.Suffix)
		if g > 0 {
			st.Boundary = r.p.Boundary
		}
		if stages == 1 && r.p.Stages > 1 { // in a pipeline a layer waits for the one below: nothing would overlap
			st.Layers = 0
		}
		d := r.step(twopointer.Event{Kind: twopointer.Join, New: st})
		if d.What == twopointer.Declined { // computes it all, as if nothing were stored
			out.Declined = true
			r.slots[i][g] = -1
			r.cover[i][g] = make([]uint8, q.Prefix)
			continue
		}
		r.cover[i][g] = make([]uint8, q.Prefix)
		if d.Mode == twopointer.ByLayers {
			r.cover[i][g] = make([]uint8, st.Layers)
		}
		r.slots[i][g] = d.Strand
		r.back[d.Strand] = [2]int{i, g}
		out.Mode = d.Mode
	}
}

func (r *run) ask(req, stage, want int, idle bool) twopointer.Decision {
	slot := r.slots[req][stage]
	if slot < 0 {
		return r.declined(req, stage, want)
	}
	st, _ := r.s.State(slot)
	if st.Mode == twopointer.ByLayers {
		want = 1
	}
	return r.step(twopointer.Event{Kind: twopointer.Ask, Strand: slot, Want: want, Idle: idle})
}

// declined computes what the scheduler left to the engine, in order.
func (r *run) declined(req, stage, want int) twopointer.Decision {
	at, n := &r.alone[req][stage], r.p.Requests[req].Prefix
	if *at == n {
		return twopointer.Decision{}
	}
	d := twopointer.Decision{What: twopointer.Grant, From: *at, To: min(*at+want, n)}
	*at = d.To
	return d
}

// act gives idle engines and channels something to do.
func (r *run) act() {
	for again := true; again && r.err == nil; {
		again = false
		for g := range r.e {
			for !r.busy[g] {
				items := r.e[g].Form()
				if len(items) == 0 {
					break
				}
				again = true
				r.compute(g, items)
			}
		}
		for c := range r.chans {
			for r.chans[c].waiting < 2 {
				d := r.step(twopointer.Event{Kind: twopointer.Ready, Channel: c})
				if d.What != twopointer.Load {
					break
				}
				again = true
				r.load(c, d)
			}
		}
	}
}

func (r *run) compute(g int, items []Item) {
	for i := range items {
		if items[i].LTo > items[i].LFrom {
			items[i].Layers = float64(items[i].LTo-items[i].LFrom) / float64(max(r.p.Layers/len(r.e), 1))
		}
	}
	took := r.p.Truth.Step(r.now, g, items)
	apart := took
	if len(r.e) == 1 && r.p.Stages > 1 { // a pipeline: the next step follows when the first stage is free
		apart = took / float64(r.p.Stages)
	}
	r.res.Compute += apart / float64(len(r.e))
	r.busy[g] = true
	for _, it := range items {
		r.stroke(it, g, r.now, r.now+took)
	}
	r.after(apart, func() { r.busy[g] = false })
	r.after(took, func() { r.computed(g, items, apart) })
}

func (r *run) stroke(it Item, g int, from, to float64) {
	if !r.p.Timeline {
		return
	}
	what := "compute"
	if it.Suffix {
		what = "suffix"
	}
	s := Stroke{Req: it.Req, Stage: g, What: what, From: it.From, To: it.To, Start: from, End: to}
	if it.LTo > it.LFrom {
		s.ByLayers, s.From, s.To = true, it.LFrom, it.LTo
	}
	r.res.Timeline = append(r.res.Timeline, s)
}

func (r *run) computed(g int, items []Item, took float64) {
	other, launches, last := 0.0, 0.0, -1
	cost := r.p.Cost.Times(1 / float64(r.p.Stages))
	for i, it := range items {
		if it.Suffix || r.slots[it.Req][g] < 0 {
			other += cost.Span(it.From, it.To)
		} else {
			last = i
		}
		launches = max(launches, it.Layers)
	}
	for i, it := range items {
		if it.Suffix {
			continue
		}
		slot := r.slots[it.Req][g]
		byLayers := it.LTo > it.LFrom
		if slot >= 0 {
			e := twopointer.Event{Kind: twopointer.Computed, Strand: slot, From: it.From, To: it.To}
			if byLayers {
				e.From, e.To = it.LFrom, it.LTo
			}
			if i == last {
				e.Took, e.Other, e.Launches = took, other, launches
				if byLayers {
					e.Launches = 0
				}
			}
			r.step(e)
		}
		if byLayers {
			r.res.Outcomes[it.Req].Recomputed += r.p.Requests[it.Req].Prefix * (it.LTo - it.LFrom) / max(r.p.Layers, 1)
			r.mark(it.Req, g, it.LFrom, it.LTo)
		} else {
			r.res.Outcomes[it.Req].Recomputed += (it.To - it.From) / len(r.e)
			r.mark(it.Req, g, it.From, it.To)
		}
	}
	for _, id := range r.e[g].Done(items) {
		r.first(id, g)
	}
}

// first: request id is through stage g.
func (r *run) first(id, g int) {
	if slot := r.slots[id][g]; slot >= 0 && r.p.Requests[id].Prefix > 0 {
		r.step(twopointer.Event{Kind: twopointer.Leave, Strand: slot})
		delete(r.back, slot)
	}
	if r.stage[id]--; r.stage[id] > 0 {
		return
	}
	r.res.Outcomes[id].First = r.now
	if r.p.Loop > 0 && r.next < len(r.p.Requests) {
		i := r.next
		r.next++
		r.after(0, func() { r.arrive(i) })
	}
}

func (r *run) load(c int, d twopointer.Decision) {
	ch := &r.chans[c]
	start := max(r.now, ch.free)
	took := d.Bytes / r.p.Truth.Rate(start, c)
	ch.free = start + took
	ch.waiting++
	r.res.IOBusy += took / float64(len(r.chans))
	req := r.back[d.Strand]
	r.res.Outcomes[req[0]].Loaded += d.Bytes
	if r.p.Timeline {
		what := "load"
		if d.Boundary {
			what = "boundary"
		}
		r.res.Timeline = append(r.res.Timeline, Stroke{Req: req[0], Stage: req[1], What: what, From: d.From, To: d.To,
			ByLayers: d.Mode == twopointer.ByLayers && !d.Boundary, Start: start, End: ch.free})
	}
	r.after(ch.free-r.now, func() { r.chans[c].waiting-- })
	r.after(ch.free-r.now+r.p.Truth.Latency, func() {
		e := twopointer.Event{Kind: twopointer.Landed, Strand: d.Strand, From: d.From, To: d.To, Boundary: d.Boundary, Bytes: d.Bytes}
		failed := !d.Boundary && r.p.Truth.Fails != nil && r.p.Truth.Fails(req[0], d.From, d.To)
		if failed {
			e.Kind = twopointer.Failed
		}
		r.step(e)
		if !d.Boundary && !failed {
			r.mark(req[0], req[1], d.From, d.To)
		}
	})
}

// mark notes that [from, to) of a request's tokens (or layers) is there, and whether all is.
func (r *run) mark(req, g, from, to int) {
	c := r.cover[req][g]
	for i := from; i < to; i++ {
		c[i]++
	}
	for _, k := range c {
		if k == 0 {
			return
		}
	}
	if r.left[req]--; r.left[req] == 0 {
		r.res.Outcomes[req].Restored = r.now
		for g, e := range r.e {
			e.Restored(req)
			if r.p.Requests[req].Suffix == 0 {
				for _, id := range e.Done(nil) {
					r.first(id, g)
				}
			}
		}
	}
}

// check is the invariant: everything exactly once, and nobody forgotten.
func (r *run) check() error {
	for i := range r.cover {
		if r.res.Outcomes[i].First == 0 && r.p.Requests[i].Prefix+r.p.Requests[i].Suffix > 0 {
			return fmt.Errorf("request %d (%+v) never got its first token", i, r.p.Requests[i])
		}
		for g, c := range r.cover[i] {
			for at, k := range c {
				if k != 1 && r.p.Truth.Fails == nil {
					return fmt.Errorf("request %d, stage %d: token or layer %d was restored %d times", i, g, at, k)
				}
			}
		}
	}
	return nil
}
