package twopointer

import "math"

// What is loaded next is chosen here, by the Scheduler, when its caller says that a channel has room (Ready): of the
// channel's strands that which is urgent, else that of the highest score (worth.go), and of it the boundary activations
// that computing is about to need, or a piece of its tail, not below where the pointers should meet (meet). How far the
// engine may compute is chosen in grant.go.

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
