package twopointer

import (
	"fmt"
	"math"
	"slices"

	"github.com/skepkv/skep"
)

// Scheduler decides for all strands, stages and channels. It is not safe for concurrent
// use; its caller serialises the events.
type Scheduler struct {
	cfg     Config
	traits  traits
	now     float64
	strands []strand
	free    []int
	live    []int // slots, in order of joining
	chans   []channel
	stages  []stage
	turn    float64 // grows with every piece handed out
	stale   int     // decisions until the ranks are reckoned anew
	order   []int   // reused by refresh

	turns    []turning // crossover.go
	reckoned int
	lastTurn int
}

type span struct{ from, to int }

// flight is a piece on its way.
type flight struct {
	span
	boundary bool
	bytes    float64
	issued   float64
}

type strand struct {
	Strand
	live     bool
	mode     Mode // by which it goes
	end      int  // tokens or layers
	head     int  // [start, head) is computed or granted
	tail     int  // [tail, end) is loaded or on its way, islands aside
	asked    int  // boundary activations of [start, asked) are here or on their way
	here     int  // … are here
	islands  []span
	flying   []flight
	left     int // tokens or layers neither computed nor loaded yet
	joined   float64
	busy     float64 // when what is granted should be computed
	weight   float64
	benefit  float64 // Σ weight of what ends earlier when this one's computing shrinks (FirstCome)
	ahead    float64 // engine seconds before its turn (FirstCome)
	byItself float64 // seconds it would have taken, suffix included, when it joined
	served   float64 // turn of its last piece
	pos      int     // in its channel's candidates; -1: not one
}

// candidate is a strand that could be loaded. They are kept apart from the strands so
// that choosing walks over little memory.
type candidate struct {
	score  float64
	urgent float64 // from when it comes first
	slot   int
	parked bool // nothing worth loading until something changes
}

type channel struct {
	rate, latency float64
	busy          float64 // when what is on its way should have landed
	bytes         float64 // on its way
	cand          []candidate
	landed        float64 // time of the last landing
	seenBytes     float64 // since the rate was last learned
	seenTime      float64
}

type stage struct {
	slow   float64 // measured ÷ stated cost
	busy   float64
	since  int     // how many strands have left since it was last without any
	active int     // strands with computing left
	depth  int     // up to here computing beats waiting for the channel, while there is other work
	work   float64 // stated seconds computed since the last Took
}

// New makes a scheduler. The zero Config but for Channels is policy Skep with defaults.
func New(cfg Config) (*Scheduler, error) {
	cfg.ensureDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Scheduler{cfg: cfg, traits: policyTraits[cfg.Policy], chans: make([]channel, len(cfg.Channels)), stages: make([]stage, cfg.Stages)}
	for i, c := range cfg.Channels {
		s.chans[i] = channel{rate: c.BytesPerSecond, latency: c.Latency, landed: math.Inf(-1)}
	}
	for i := range s.stages {
		s.stages[i] = stage{slow: 1}
	}
	return s, nil
}

// Step takes one event and answers it. A malformed one is Invalid and changes nothing.
func (s *Scheduler) Step(e Event) (Decision, error) {
	if at := e.At.Seconds(); at > s.now {
		s.now = at
	}
	switch e.Kind {
	case Join:
		return s.join(e.New)
	case Ready:
		if e.Channel < 0 || e.Channel >= len(s.chans) {
			return Decision{}, skep.Invalidf("schedule", "channel", e.Channel, fmt.Sprintf("0 to %d", len(s.chans)-1))
		}
		return s.ready(e.Channel), nil
	case Speed:
		if e.Channel < 0 || e.Channel >= len(s.chans) || !(e.Rate > 0) {
			return Decision{}, skep.Invalidf("schedule", "channel and rate", fmt.Sprintf("%d, %g", e.Channel, e.Rate), "a channel there is and a rate above 0")
		}
		s.chans[e.Channel].rate = e.Rate
		s.unparkAll()
		return Decision{}, nil
	}
	if e.Strand < 0 || e.Strand >= len(s.strands) || !s.strands[e.Strand].live {
		return Decision{}, skep.Invalidf("schedule", "strand", e.Strand, "one that has joined and not left")
	}
	st := &s.strands[e.Strand]
	switch e.Kind {
	case Leave:
		if !st.Background {
			s.stages[st.Stage].since++
		}
		s.leave(e.Strand)
	case Ask:
		return s.ask(e.Strand, e.Want, e.Idle), nil
	case Landed, Failed:
		return Decision{}, s.arrived(st, e)
	case Computed:
		return Decision{}, s.computed(e.Strand, e)
	case Taken:
		return Decision{}, s.taken(st, e.To)
	case Promote:
		if e.New == nil {
			return Decision{}, skep.Invalidf("schedule", "new", "nil", "the strand's new weight, deadline and background")
		}
		st.Background, st.Deadline = e.New.Background, e.New.Deadline
		st.weight = weightOf(e.New)
		st.joined = s.now // it begins to wait now
		s.unparkAll()
	default:
		return Decision{}, skep.Invalidf("schedule", "event", int(e.Kind), "join to taken")
	}
	return Decision{}, nil
}

func weightOf(n *Strand) float64 {
	if n.Weight > 0 {
		return n.Weight
	}
	return 1
}

func (s *Scheduler) join(n *Strand) (Decision, error) {
	const op = "schedule"
	switch {
	case n == nil:
		return Decision{}, skep.Invalidf(op, "new", "nil", "a strand")
	case n.Tokens < 0 || n.Tokens > 1<<30 || n.Start < 0 || n.Start > n.Tokens:
		return Decision{}, skep.Invalidf(op, "tokens", fmt.Sprintf("%d from %d", n.Tokens, n.Start), "0 to 2^30, start within")
	case n.Decided && n.Mode == ByLayers && n.Layers < 1:
		return Decision{}, skep.Invalidf(op, "layers", n.Layers, "at least 1 of a strand that goes by layers")
	case n.Unit < 0 || n.Unit > 1<<20:
		return Decision{}, skep.Invalidf(op, "unit", n.Unit, "0 to 2^20 tokens")
	case n.Channel < 0 || n.Channel >= len(s.chans):
		return Decision{}, skep.Invalidf(op, "channel", n.Channel, fmt.Sprintf("0 to %d", len(s.chans)-1))
	case n.Stage < 0 || n.Stage >= len(s.stages):
		return Decision{}, skep.Invalidf(op, "stage", n.Stage, fmt.Sprintf("0 to %d", len(s.stages)-1))
	case !n.Cost.Valid() || !(n.BytesPerToken > 0) || !(n.Boundary >= 0) || !(n.After >= 0):
		return Decision{}, skep.Invalidf(op, "cost", fmt.Sprintf("%+v, %g bytes a token", n.Cost, n.BytesPerToken), "a cost and bytes above 0")
	}
	mode := s.ModeOf(n, 0)
	slot := len(s.strands)
	if k := len(s.free); k > 0 {
		slot = s.free[k-1]
		s.free = s.free[:k-1]
	} else {
		s.strands = append(s.strands, strand{})
	}
	st := &s.strands[slot]
	*st = strand{Strand: *n, live: true, mode: mode, end: n.Tokens, joined: s.now, weight: weightOf(n), pos: -1,
		islands: st.islands[:0], flying: st.flying[:0]}
	s.live = append(s.live, slot)
	if s.alone(n.Stage, slot) {
		s.stages[n.Stage].since = 0
	}
	s.count()
	st.head, st.tail, st.asked, st.here = n.Start, st.end, n.Start, n.Start
	if st.mode == ByLayers {
		st.end, st.head = n.Layers, 0
		st.tail = st.end
	}
	if st.Boundary == 0 {
		st.asked, st.here = n.Tokens, n.Tokens
	}
	st.left = st.end - st.head
	ch := &s.chans[n.Channel]
	d := Decision{What: Accepted, Strand: slot, Mode: st.mode,
		Expected: s.ioStart(ch) - s.now + float64(n.Tokens-n.Start)*n.BytesPerToken/ch.rate,
		Compute:  s.stages[n.Stage].slow * (n.Cost.Fixed + n.Cost.Span(n.Start, n.Tokens))}
	if s.declines(st, d) {
		d.What = Declined
		s.leave(slot)
		return d, nil
	}
	if s.traits.loads {
		st.pos = len(ch.cand)
		ch.cand = append(ch.cand, candidate{slot: slot, urgent: math.Inf(1)})
		s.place(slot)
		s.rescore(&ch.cand[st.pos])
	}
	s.changed()
	return d, nil
}

// declines says whether loading a strand that is only loaded would be later than computing
// it. Only skep's own policies decline; with two pointers nothing is lost by trying, as each
// piece is weighed by itself.
func (s *Scheduler) declines(st *strand, d Decision) bool {
	return s.traits.exact && st.LoadOnly && st.left > 0 && !st.Background && d.Expected > s.cfg.Margin*d.Compute
}

// modeFor picks the axis: policy cacheflow by its threshold, skep by L_Δ at the speeds as they are.
// Among others a launch is shared, and then tokens are always as good.
func (s *Scheduler) modeFor(n *Strand, alone bool) Mode {
	if n.Decided {
		return n.Mode
	}
	if !s.traits.layers || n.Layers < 2 || n.Start > 0 || n.LoadOnly {
		return ByTokens
	}
	crossover := s.cfg.Crossover
	if crossover == 0 && s.cfg.Policy != CacheFlow && alone && n.Boundary == 0 {
		if crossover = s.turnOf(n); n.Tokens > crossover/2 && n.Tokens < 2*crossover {
			crossover = 0 // near it the two are within some hundredths: by this very prefix
		}
	}
	p := s.problem(n)
	return s.cfg.Policy.ModeFor(&p, alone, s.cfg.Chunk, crossover)
}

// ModeFor is the axis a policy restores a prefix by; alone says that nothing else is
// computed meanwhile. crossover is L_Δ, 0: reckoned from the problem, of policies but cacheflow exactly.
func (p Policy) ModeFor(q *Problem, alone bool, chunk, crossover int) Mode {
	switch {
	case p >= policies || !policyTraits[p].layers || q.Layers < 2:
		return ByTokens
	case q.Boundary > 0: // all tokens' would have to be there before the first layer
		return ByTokens
	case p == CacheFlow:
		if crossover == 0 {
			crossover = q.Crossover(chunk)
		}
		if q.Tokens < crossover {
			return ByLayers
		}
		return ByTokens
	case !alone:
		return ByTokens
	}
	if crossover == 0 {
		return q.Bound().Mode
	}
	if q.Tokens < crossover && q.Best(ByLayers).At > 0 { // where nothing is computed either is as good, and tokens split finer
		return ByLayers
	}
	return ByTokens
}

func (s *Scheduler) problem(n *Strand) Problem {
	ch := &s.chans[n.Channel]
	return Problem{Tokens: n.Tokens, Layers: n.Layers, Cost: n.Cost.Times(s.stages[n.Stage].slow),
		BytesPerToken: n.BytesPerToken, Boundary: n.Boundary, BytesPerSecond: ch.rate, Latency: s.ioStart(ch) - s.now}
}

func (s *Scheduler) leave(slot int) {
	st := &s.strands[slot]
	s.uncandidate(st)
	ch := &s.chans[st.Channel]
	for _, f := range st.flying {
		s.unload(ch, f.bytes)
	}
	st.live, st.flying, st.islands = false, st.flying[:0], st.islands[:0]
	s.live = slices.DeleteFunc(s.live, func(i int) bool { return i == slot })
	s.free = append(s.free, slot)
	s.unparkAll()
}

func (s *Scheduler) uncandidate(st *strand) {
	if st.pos < 0 {
		return
	}
	ch := &s.chans[st.Channel]
	last := len(ch.cand) - 1
	ch.cand[st.pos] = ch.cand[last]
	s.strands[ch.cand[st.pos].slot].pos = st.pos
	ch.cand = ch.cand[:last]
	st.pos = -1
}

func (s *Scheduler) unpark(st *strand) {
	if st.pos >= 0 {
		s.chans[st.Channel].cand[st.pos].parked = false
	}
}

func (s *Scheduler) unparkAll() {
	s.changed()
	for i := range s.chans {
		for j := range s.chans[i].cand {
			s.chans[i].cand[j].parked = false
		}
	}
}

// unload takes bytes off what is on its way.
func (s *Scheduler) unload(ch *channel, bytes float64) {
	ch.bytes = max(ch.bytes-bytes, 0)
	ch.busy = s.now + ch.bytes/ch.rate
}

// ioStart is when a piece asked for now would begin to arrive. What is late is expected
// to be late by as much again.
func (s *Scheduler) ioStart(ch *channel) float64 {
	at := max(s.now, ch.busy)
	if ch.bytes > 0 && s.now > ch.busy {
		at = s.now + (s.now - ch.busy)
	}
	return at + ch.latency
}

// arrived takes a piece that landed or failed.
func (s *Scheduler) arrived(st *strand, e Event) error {
	i := slices.IndexFunc(st.flying, func(f flight) bool { return f.from <= e.From && e.To <= f.to && f.boundary == e.Boundary })
	if i < 0 && e.Boundary && e.Kind == Failed && st.Boundary > 0 { // will not be asked for
		st.loseBoundary(e.From)
		s.unpark(st)
		return nil
	}
	if i < 0 || e.From >= e.To {
		return skep.Invalidf("schedule", "piece", fmt.Sprintf("[%d, %d)", e.From, e.To), "one that was handed out and has not arrived")
	}
	f := st.takeOff(i, span{e.From, e.To})
	ch := &s.chans[st.Channel]
	s.unload(ch, f.bytes)
	if e.Kind == Landed && !e.Near {
		s.learnRate(ch, f)
	}
	if !e.Near {
		ch.landed = s.now
	}
	s.unpark(st)
	switch {
	case f.boundary && e.Kind == Failed:
		st.loseBoundary(f.from)
	case f.boundary:
		st.here = st.asked // but for what is on its way, in whatever order it arrives
		for _, g := range st.flying {
			if g.boundary {
				st.here = min(st.here, g.from)
			}
		}
	case e.Kind == Failed:
		st.addIsland(f.span)
		if st.mode == ByLayers {
			// The layers below are needed to compute it: computing goes on through all of them.
			st.islands = st.islands[:0]
			s.reopenLayers(st, f.to)
		}
		s.changed()
	default:
		st.left -= f.to - f.from
		s.ended(st)
	}
	return nil
}

// loseBoundary: without what enters the stage nothing from there on can be computed: load it all.
func (st *strand) loseBoundary(from int) {
	st.asked = min(st.asked, from)
	st.Boundary, st.LoadOnly = 0, true
}

// takeOff takes a part of flight i off what is on its way: a piece may arrive in parts.
func (st *strand) takeOff(i int, part span) flight {
	whole := st.flying[i]
	st.flying = slices.Delete(st.flying, i, i+1)
	cut := func(a, b int) flight {
		f := whole
		f.span = span{a, b}
		f.bytes *= float64(b-a) / float64(whole.to-whole.from)
		return f
	}
	if whole.from < part.from {
		st.flying = append(st.flying, cut(whole.from, part.from))
	}
	if part.to < whole.to {
		st.flying = append(st.flying, cut(part.to, whole.to))
	}
	return cut(part.from, part.to)
}

// addIsland has the engine compute what did not come: neighbours in one go.
func (st *strand) addIsland(f span) {
	st.islands = append(st.islands, f)
	slices.SortFunc(st.islands, func(a, b span) int { return a.from - b.from })
	whole := st.islands[:1]
	for _, x := range st.islands[1:] {
		if last := &whole[len(whole)-1]; last.to == x.from {
			last.to = x.to
		} else {
			whole = append(whole, x)
		}
	}
	st.islands = whole
}

// reopenLayers makes all layers from head to top the engine's to compute. Layers that
// were loaded among them, or will be, are computed again: their inputs exist no other way.
func (s *Scheduler) reopenLayers(st *strand, top int) {
	if top <= st.tail {
		st.left-- // it was to be computed again anyway
		return
	}
	st.left += top - 1 - st.tail
	st.tail = top
	st.LoadOnly = false
	s.uncandidate(st)
}

// learnRate takes a landing into account, a few at a time.
func (s *Scheduler) learnRate(ch *channel, f flight) {
	from := max(ch.landed, f.issued)
	if f.issued > ch.landed {
		from += ch.latency
	}
	ch.seenBytes += f.bytes
	ch.seenTime += max(s.now-from, 0)
	if ch.seenTime >= 0.010 && ch.seenBytes > 0 {
		ch.rate += (ch.seenBytes/ch.seenTime - ch.rate) * 0.3
		ch.seenBytes, ch.seenTime = 0, 0
	}
}

func (s *Scheduler) computed(slot int, e Event) error {
	st := &s.strands[slot]
	if e.From < 0 || e.To > st.end || e.From > e.To || e.To-e.From > st.left {
		return skep.Invalidf("schedule", "computed", fmt.Sprintf("[%d, %d)", e.From, e.To), "what was granted")
	}
	g := &s.stages[st.Stage]
	st.left -= e.To - e.From
	g.work += s.stated(st, e.From, e.To)
	if e.Took > 0 {
		if stated := g.work + e.Other + e.Launches*st.Cost.Fixed; stated > 0 {
			ratio := min(max(e.Took/stated, 0.02), 50)
			g.slow += (ratio - g.slow) * 0.25
		}
		g.work = 0
		g.busy = s.now
	}
	st.busy = min(st.busy, s.now)
	s.unpark(st)
	s.ended(st)
	return nil
}

// ended takes a strand out of the channel's choice once nothing of it is to be loaded.
func (s *Scheduler) ended(st *strand) {
	if st.left == 0 {
		s.uncandidate(st)
		s.changed()
	}
}

// changed has the ranks reckoned anew: at once in small batches, within a few decisions in
// large ones, where one request more or less says little.
func (s *Scheduler) changed() { s.stale = min(s.stale, len(s.live)/4-1) }

// count counts what competes for each stage's engine.
func (s *Scheduler) count() {
	for i := range s.stages {
		s.stages[i].active = 0
	}
	for _, i := range s.live {
		if st := &s.strands[i]; st.left > 0 || st.After > 0 {
			s.stages[st.Stage].active++
		}
	}
}

// AddChannel adds a way by which bytes arrive, and says its number: of nodes that are known only later.
func (s *Scheduler) AddChannel(c Channel) int {
	s.chans = append(s.chans, channel{rate: c.BytesPerSecond, latency: c.Latency, landed: math.Inf(-1)})
	return len(s.chans) - 1
}

// Computing is what [from, to) of a strand costs the engine as it was seen to be, in seconds; 0 of a slot without one.
func (s *Scheduler) Computing(slot, from, to int) float64 {
	if slot < 0 || slot >= len(s.strands) || !s.strands[slot].live {
		return 0
	}
	st := &s.strands[slot]
	return s.stages[st.Stage].slow * s.stated(st, from, to)
}

// State is a strand as it stands, for reports and tests.
type State struct {
	Mode             Mode
	Head, Tail, Left int
	Away             int // pieces on their way
}

// State of a strand; false when it is none.
func (s *Scheduler) State(slot int) (State, bool) {
	if slot < 0 || slot >= len(s.strands) || !s.strands[slot].live {
		return State{}, false
	}
	st := &s.strands[slot]
	return State{st.mode, st.head, st.tail, st.left, len(st.flying)}, true
}

// Settled says that no more boundary activations of a strand will be needed: nothing of it is left to
// compute, nor on its way and might fail. True of a slot without a strand.
func (s *Scheduler) Settled(slot int) bool {
	if slot < 0 || slot >= len(s.strands) || !s.strands[slot].live {
		return true
	}
	st := &s.strands[slot]
	return st.LoadOnly || st.head >= st.tail && len(st.islands) == 0 &&
		!slices.ContainsFunc(st.flying, func(f flight) bool { return !f.boundary })
}

// Rate is what a channel is reckoned to move, bytes a second, and Slow how much slower
// than stated a stage computes.
func (s *Scheduler) Rate(channel int) float64 { return s.chans[channel].rate }
func (s *Scheduler) Slow(stage int) float64   { return s.stages[stage].slow }

// OnItsWay is the bytes handed out on a channel and not arrived.
func (s *Scheduler) OnItsWay(channel int) float64 { return s.chans[channel].bytes }

// Next is the position an engine should ask for next: the first neither computed,
// granted, loaded nor on its way; the strand's end when there is none.
func (s *Scheduler) Next(slot int) (int, bool) {
	if slot < 0 || slot >= len(s.strands) || !s.strands[slot].live {
		return 0, false
	}
	return s.jump(&s.strands[slot]), true
}
