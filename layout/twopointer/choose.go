package twopointer

import (
	"math"
	"slices"
)

// stated is what computing [from, to) costs by the engine's word, launches aside.
func (s *Scheduler) stated(st *strand, from, to int) float64 {
	if st.mode == ByLayers {
		return st.Cost.Of(st.Tokens) * float64(to-from) / float64(st.Layers)
	}
	return st.Cost.Span(from, to)
}

// loading is what loading n tokens (or layers) takes at the channel's speed.
func (s *Scheduler) loading(st *strand, n int) float64 {
	return s.bytesOf(st, n) / s.chans[st.Channel].rate
}

func (s *Scheduler) bytesOf(st *strand, n int) float64 {
	if st.mode == ByLayers {
		return float64(n) * float64(st.Tokens) * st.BytesPerToken / float64(st.Layers)
	}
	return float64(n) * st.BytesPerToken
}

// unit is what splits are rounded to.
func (s *Scheduler) unit(st *strand) int {
	if st.mode == ByLayers {
		return 1
	}
	if st.Unit > 0 {
		return st.Unit
	}
	return s.cfg.Unit
}

// chunk is the tokens of a chunk: whole units. By layers it is one.
func (s *Scheduler) chunk(st *strand) int { return s.units(st, s.cfg.Chunk) }

// piece is the same of what is loaded at a time.
func (s *Scheduler) piece(st *strand) int { return s.units(st, s.cfg.Piece) }

func (s *Scheduler) units(st *strand, tokens int) int {
	if st.mode == ByLayers {
		return 1
	}
	u := s.unit(st)
	return (tokens + u - 1) / u * u
}

// meet is where the pointers of a strand should meet: computing [head, m) and
// loading [m, tail) then end together, as nearly as units allow. Engine and channel are
// reckoned as they will be found: the engine after what is granted and what comes before
// (and shared, where every request advances), the channel after what is on its way.
func (s *Scheduler) meet(st *strand) int {
	if !s.traits.computes || st.LoadOnly {
		return st.head
	}
	g, ch := &s.stages[st.Stage], &s.chans[st.Channel]
	start, share, launch := max(s.now, st.busy), g.slow, 0.0
	if s.cfg.Engine == FirstCome {
		start = max(start, g.busy) + st.ahead
	} else if g.active > 1 {
		share *= float64(g.active)
	}
	if g.active <= 1 && st.mode == ByTokens && st.busy <= s.now {
		launch = st.Cost.Fixed * g.slow
	}
	io, slower := s.ioStart(ch), 1.0
	if s.traits.even {
		slower = float64(max(len(ch.cand), 1))
	}
	u := s.unit(st)
	// Positions are counted from tail in units, so that what is loaded is whole blocks.
	units := (st.tail - st.head + u - 1) / u
	later := func(k int) (compute, load float64) { // k units are loaded
		m := max(st.tail-k*u, st.head)
		if m > st.head {
			compute = start + launch + share*s.stated(st, st.head, m)
		}
		if k > 0 {
			load = io + slower*s.loading(st, st.tail-m) + float64(m-st.head)*st.Boundary/ch.rate
		}
		return
	}
	lo, hi := 0, units // least k whose loading ends no earlier than computing the rest is in (lo, hi]
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if c, l := later(mid); l >= c {
			hi = mid
		} else {
			lo = mid
		}
	}
	best, at := math.Inf(1), 0
	for _, k := range [...]int{lo, hi, 0, units} {
		if c, l := later(k); max(c, l) < best {
			best, at = max(c, l), k
		}
	}
	return max(st.tail-at*u, st.head)
}

// refresh reckons ranks and scores anew.
func (s *Scheduler) refresh() {
	s.stale = max(16, len(s.live)/2)
	s.count()
	s.order = append(s.order[:0], s.live...)
	for _, i := range s.order {
		s.strands[i].ahead, s.strands[i].benefit = 0, 0
	}
	if s.cfg.Policy == Skep || s.cfg.Policy == NoLayers || s.cfg.Policy == NoStages || s.cfg.Engine == FirstCome {
		for g := range s.stages {
			s.rank(g)
		}
	}
	for i := range s.chans {
		for j := range s.chans[i].cand {
			s.rescore(&s.chans[i].cand[j])
		}
	}
}

// remaining is the engine seconds a strand still needs by the engine's word if nothing more
// of it is loaded; of one that is only loaded, the seconds that takes.
func (s *Scheduler) remaining(st *strand) float64 {
	if st.left == 0 {
		return st.After
	}
	if st.LoadOnly {
		return s.loading(st, max(st.tail-st.head, 0)) + st.After
	}
	return s.stated(st, st.head, max(st.tail, st.head)) + st.After
}

// rank reckons how many a second saved on each strand of a stage helps.
//
// First come, first served: the strand itself and all behind it. Every request in turn:
// with what is left x, request i completes at Σ over j of min(x_j, x_i); a second less
// for r helps r once for each request with as much left or more, and each of those
// with more once.
func (s *Scheduler) rank(g int) {
	sum, ahead := 0.0, 0.0
	if s.cfg.Engine == FirstCome {
		for _, i := range s.order {
			st := &s.strands[i]
			if st.Stage == g && !st.Background {
				st.ahead = ahead
				ahead += s.stages[g].slow * s.remaining(st)
			}
		}
		for _, i := range slices.Backward(s.order) {
			st := &s.strands[i]
			if st.Stage == g {
				if !st.Background {
					sum += st.weight
				}
				st.benefit = max(sum, st.weight)
			}
		}
	} else {
		rows := s.rows[:0]
		for _, i := range s.order {
			if st := &s.strands[i]; st.Stage == g {
				st.x = s.remaining(st)
				rows = append(rows, row{st.x, i})
			}
		}
		s.rows = rows
		slices.SortFunc(rows, func(a, b row) int {
			switch {
			case a.x > b.x:
				return -1
			case a.x < b.x:
				return 1
			}
			return a.i - b.i
		})
		for n, r := range rows {
			st := &s.strands[r.i]
			st.benefit = sum + st.weight*float64(n+1)
			if !st.Background {
				sum += st.weight
			}
		}
	}
	s.stages[g].depth = s.depthOf(g)
}

// row is a strand and the seconds that remain of it.
type row struct {
	x float64
	i int
}

// place reckons the benefit of a strand that has just joined, among the ranks as they are.
func (s *Scheduler) place(st *strand) {
	st.x = s.remaining(st)
	st.benefit = st.weight
	if st.Background || s.cfg.Engine == FirstCome {
		return // nobody is behind it
	}
	for _, i := range s.live {
		if o := &s.strands[i]; o != st && o.Stage == st.Stage && o.x >= st.x {
			st.benefit += st.weight
			if !o.Background {
				st.benefit += o.weight
			}
		}
	}
}

// depthOf is how deep into prompts it pays to compute when the engine has other work:
// the depth at which the engine ends when the channels have done a share of what would be left
// to them. Where they have before the engine is through with what only it can do, it is 0. The
// share is small while few compete: finishing what is nearly done is then worth more than
// keeping both busy. (0.15 for each competitor, at most 0.6: the best of those tried on the agentic
// and the conversation trace, closed loops and open arrivals.)
func (s *Scheduler) depthOf(g int) int {
	deepest := 0
	for _, i := range s.order {
		if st := &s.strands[i]; st.Stage == g && st.mode == ByTokens {
			deepest = max(deepest, st.tail)
		}
	}
	ends := func(d int) (compute, load float64) {
		for _, i := range s.order {
			st := &s.strands[i]
			if st.Stage != g {
				continue
			}
			compute += st.After * s.stages[g].slow
			if st.mode != ByTokens || st.left == 0 || st.head >= st.tail {
				continue
			}
			m := min(max(d, st.head), st.tail)
			compute += s.stages[g].slow * st.Cost.Span(st.head, m)
			load += s.loading(st, st.tail-m)
		}
		return
	}
	share := min(0.15*float64(s.stages[g].active-1), 0.6)
	lo, hi := 0, deepest
	for hi-lo > s.cfg.Chunk {
		mid := (lo + hi) / 2
		if c, l := ends(mid); c <= share*l {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// rescore sets a candidate's score and urgency.
func (s *Scheduler) rescore(c *candidate) {
	st := &s.strands[c.slot]
	ch := &s.chans[st.Channel]
	left := float64(max(st.tail-st.head, 0))
	switch s.cfg.Policy {
	case LoadOnly:
		c.score = -st.joined
	case PerRequest, NoBatch:
		c.score = -st.served
	case CacheFlow:
		if st.mode == ByLayers {
			left *= float64(st.Tokens) / float64(max(st.Layers, 1))
		}
		c.score = left
	case ShortestFirst:
		c.score = -s.stated(st, st.head, max(st.tail, st.head))
	default:
		c.score = max(st.benefit, st.weight) * s.feeds(st)
	}
	c.urgent = math.Inf(1)
	if !s.traits.exact {
		return
	}
	if st.Background {
		if c.score > 0 {
			c.score *= 1e-9
		} else {
			c.score -= 1e9
		}
		return
	}
	c.urgent = st.joined + s.cfg.Patience.Seconds()
	if d := st.Deadline.Seconds(); d > 0 {
		alone := min(s.loading(st, max(st.tail-st.head, 0)), s.stages[st.Stage].slow*s.stated(st, st.head, max(st.tail, st.head))) + ch.latency
		if s.now+alone/2 <= d { // two pointers may halve it; what cannot be met is not hurried
			c.urgent = min(c.urgent, d-1.2*alone)
		}
	}
}

// feeds is what loading a strand is worth for what the engine gets to do by it: its suffix, which nothing else can
// be done for, and which waits for all of the prefix. Of two strands that help as many, the one that makes more work
// ready in a second of loading comes first, so that engine and channel are busy at once; where loading
// takes much longer than suffixes do it says next to nothing.
func (s *Scheduler) feeds(st *strand) float64 {
	load := s.loading(st, max(st.tail-st.head, 0)) + s.chans[st.Channel].latency
	return 1 + feedWeight*s.stages[st.Stage].slow*st.After/max(load, 1e-6)
}

// feedWeight is the best of 0 to 16 tried on the agentic trace, closed loops of 4 and 8: 0.2 % (engines that advance every
// request) and 0.9 % (in order of arrival) off the mean, up to 2.6 % where loading is fast. 1 to 8 are within 0.3 %.
const feedWeight = 2

// ready hands out the next piece on a channel.
func (s *Scheduler) ready(channel int) Decision {
	if !s.traits.loads {
		return Decision{}
	}
	if s.stale--; s.stale < 0 {
		s.refresh()
	}
	ch := &s.chans[channel]
	for {
		best := -1
		for i := range ch.cand {
			c := &ch.cand[i]
			if !c.parked && (best < 0 || c.before(&ch.cand[best], s.now)) {
				best = i
			}
		}
		if best < 0 {
			return Decision{}
		}
		c := &ch.cand[best]
		st := &s.strands[c.slot]
		f, ok := s.nextPiece(st)
		if !ok {
			c.parked = true
			continue
		}
		d := Decision{What: Load, Strand: c.slot, From: f.from, To: f.to, Boundary: f.boundary, Bytes: f.bytes, Mode: st.mode}
		d.Expected = s.ioStart(ch) - s.now + f.bytes/ch.rate
		if !f.boundary {
			d.Compute = s.stages[st.Stage].slow * s.stated(st, f.from, f.to)
		}
		ch.busy = max(s.now, ch.busy) + f.bytes/ch.rate
		ch.bytes += f.bytes
		st.flying = append(st.flying, f)
		s.turn++
		st.served = s.turn
		s.rescore(c)
		return d
	}
}

// before orders candidates: urgent ones by when they became so, then by score, then by age.
func (c *candidate) before(o *candidate, now float64) bool {
	cu, ou := c.urgent <= now, o.urgent <= now
	switch {
	case cu != ou:
		return cu
	case cu && c.urgent != o.urgent:
		return c.urgent < o.urgent
	case c.score != o.score:
		return c.score > o.score
	}
	return c.slot < o.slot
}

// nextPiece takes the strand's next piece: boundary activations while computing would run
// out of them, else the tail down to where the pointers should meet.
func (s *Scheduler) nextPiece(st *strand) (flight, bool) {
	if st.tail <= st.head && (st.Boundary == 0 || len(st.islands) == 0) {
		return flight{}, false
	}
	low := st.head
	if s.traits.exact && st.head < st.tail {
		low = s.meet(st)
		if g := &s.stages[st.Stage]; g.active > 1 && st.mode == ByTokens && !s.traits.even {
			low = min(low, max(g.depth, st.head)) // the engine has others to compute for
		}
	}
	f := flight{issued: s.now}
	if st.asked < st.Tokens && !st.LoadOnly && st.Boundary > 0 {
		want := min(low, st.head+boundaryAhead*s.cfg.Chunk)
		if !s.traits.exact {
			want = min(st.tail, st.head+2*s.cfg.Chunk)
		}
		if st.mode == ByLayers && low > st.head {
			want = st.Tokens
		}
		if n := len(st.islands); n > 0 { // what did not come is computed
			want = max(want, st.islands[n-1].to)
		}
		if st.asked < want {
			f.span = span{st.asked, min(st.asked+s.chunk(st), st.Tokens)}
			f.boundary, f.bytes = true, float64(f.to-f.from)*st.Boundary
			st.asked = f.to
			return f, true
		}
	}
	if st.tail <= st.head {
		return f, false
	}
	if s.traits.exact {
		f.span = span{max(st.tail-s.piece(st), low), st.tail}
	} else {
		step := s.chunk(st)
		f.span = span{max((st.tail-1)/step*step, st.head), st.tail}
	}
	if f.to <= f.from {
		return f, false
	}
	st.tail = f.from
	f.bytes = s.bytesOf(st, f.to-f.from)
	return f, true
}

// boundaryAhead is how many chunks of boundary activations are loaded ahead of computing. They
// are small beside the KV, and computing stands still without them.
const boundaryAhead = 16
