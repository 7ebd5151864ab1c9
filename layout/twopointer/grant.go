package twopointer

import "slices"

// ask answers a claim.
func (s *Scheduler) ask(slot, want int, idle bool) Decision {
	if s.stale < 0 {
		s.refresh()
	}
	st := &s.strands[slot]
	d := Decision{Strand: slot, Mode: st.mode, Jump: s.jump(st)}
	n := 0
	if st.head < st.tail {
		n = s.room(st, want, idle)
		d.From, d.To = st.head, st.head+n
		st.head += n
	} else if len(st.islands) > 0 {
		isle := &st.islands[0]
		below := slices.ContainsFunc(st.flying, func(f flight) bool { return !f.boundary && f.from < isle.from })
		if !below {
			n = max(min(want, isle.to-isle.from), 0)
			if st.Boundary > 0 && st.mode == ByTokens {
				n = min(n, max(st.here-isle.from, 0))
			}
			d.From, d.To = isle.from, isle.from+n
			if isle.from += n; isle.from == isle.to {
				st.islands = st.islands[1:]
			}
		}
	}
	if n <= 0 {
		s.unpark(st) // one of the two goes on
		return d
	}
	d.What, d.Jump = Grant, s.jump(st)
	if d.Jump < d.To {
		d.Jump = d.To
	}
	d.Compute = s.begins(st, d.From, d.To)
	return d
}

// room is how many of want more tokens (or layers) from head may be computed now.
func (s *Scheduler) room(st *strand, want int, idle bool) int {
	n := max(s.grantable(st, min(want, st.tail-st.head), idle), 0)
	if st.mode == ByLayers { // nothing is computed where something may still land
		for _, f := range st.flying {
			if !f.boundary {
				n = min(n, f.from-st.head)
			}
		}
	}
	return n
}

// begins reckons with the engine computing [from, to), and says how long that should take, in seconds.
func (s *Scheduler) begins(st *strand, from, to int) float64 {
	g := &s.stages[st.Stage]
	took := g.slow * s.stated(st, from, to)
	st.busy = max(s.now, st.busy) + took
	g.busy = max(s.now, g.busy) + took
	if st.pos >= 0 {
		s.rescore(&s.chans[st.Channel].cand[st.pos])
	}
	return took
}

// jump is the first position neither computed, granted, loaded nor on its way.
func (s *Scheduler) jump(st *strand) int {
	if st.head < st.tail {
		return st.head
	}
	if len(st.islands) > 0 {
		return st.islands[0].from
	}
	return st.end
}

// grantable is how much of want more tokens (or layers) from head may be computed now.
func (s *Scheduler) grantable(st *strand, want int, idle bool) int {
	if !s.traits.computes || st.LoadOnly {
		return 0
	}
	if st.Boundary > 0 {
		room := st.here - st.head
		if st.mode == ByLayers {
			room = 0
			if st.here >= st.Tokens {
				room = want
			}
		}
		if want = min(want, room); want <= 0 {
			return 0
		}
	}
	if !s.traits.exact {
		if !s.traits.loads {
			return want
		}
		step := 1
		if st.mode == ByTokens {
			step = s.chunk(st) - st.head%s.chunk(st)
		}
		return min(want, step)
	}
	g := &s.stages[st.Stage]
	pooled := g.active > 1 && st.mode == ByTokens && !s.traits.even
	round := pooled && s.cfg.Engine == RoundRobin
	idle = idle || round && s.nearlyIdle(st)
	// What costs no more than a launch, and would take the channel twice as long, rides along in
	// the step of the others.
	if c := g.slow * s.stated(st, st.head, st.tail); c <= g.slow*st.Cost.Fixed && s.loading(st, st.tail-st.head) >= 2*c {
		pooled = false
	}
	if pooled {
		if deep := st.head >= g.depth; deep && (!idle || round && s.shallower(st)) {
			return 0
		} else if deep {
			want = min(want, s.filler(st)/s.unit(st)*s.unit(st))
		} else if !idle { // never a launch for less than a chunk
			want = min(want, max((g.depth-st.head)/s.unit(st)*s.unit(st), s.chunk(st)))
		}
	}
	if !s.favourite(st) {
		return want
	}
	share := s.meet(st) - st.head
	if share >= want || g.active > 1 || st.mode == ByLayers {
		return min(share, want)
	}
	// The last launches: a half each, while another launch costs little of what is left.
	if half := (share/2 + s.unit(st) - 1) / s.unit(st) * s.unit(st); half >= s.cfg.Chunk &&
		st.Cost.Fixed <= s.cfg.Launches*s.stated(st, st.head, st.head+share) {
		return half
	}
	return share
}

// nearlyIdle says that what an engine that advances every request has besides is worth few launches: it
// will be idle in the next step, and two steps cost a launch more than one.
func (s *Scheduler) nearlyIdle(st *strand) bool {
	if s.loading(st, st.tail-st.head) < fewLaunches*st.Cost.Fixed*s.stages[st.Stage].slow {
		return false // it is there before that is worth a launch
	}
	ready := 0.0
	for _, i := range s.live {
		if o := &s.strands[i]; o.left == 0 && o.Stage == st.Stage {
			ready += o.After
		}
	}
	return ready < fewLaunches*st.Cost.Fixed
}

// shallower says that another request's head is well below st's: the deeper a token, the more it costs to
// compute, so the engine raises the lowest heads.
func (s *Scheduler) shallower(st *strand) bool {
	for _, i := range s.live {
		o := &s.strands[i]
		if o.head+level*s.cfg.Chunk < st.head && o.tail-o.head >= s.cfg.Chunk && o.mode == ByTokens && o.Stage == st.Stage &&
			o.Boundary == 0 && !o.LoadOnly {
			return true
		}
	}
	return false
}

// Of those tried on the agentic trace: closed loops of 4 and 8 gain 0.5 to 1.6 % at 40 and 80 Gb/s, open arrivals
// nothing. Engines that serve in order of arrival lose by both.
const (
	fewLaunches = 5
	level       = 8 // chunks
)

// filler is how many tokens an engine with nothing else to do computes until loading has
// something else ready for it. What the channel is loading next is ready when the rest of it is
// loaded.
func (s *Scheduler) filler(st *strand) int {
	ch := &s.chans[st.Channel]
	best := -1
	for i := range ch.cand {
		if c := &ch.cand[i]; !c.parked && (best < 0 || c.before(&ch.cand[best], s.now)) {
			best = i
		}
	}
	if best < 0 || best == st.pos {
		return st.tail - st.head
	}
	o := &s.strands[ch.cand[best].slot]
	until := s.ioStart(ch) - s.now + s.loading(o, max(o.tail-o.head, 0))
	room := until/s.stages[st.Stage].slow - st.Cost.Fixed
	// tokens whose span fits: a + 2·b·head a token, and b a square token
	a := st.Cost.PerToken + 2*st.Cost.PerSquare*float64(st.head)
	if !(room > 0) {
		return 0
	}
	// A cost without a part for each token has a = 0 at the head.
	if n := room / a; n < float64(st.tail-st.head) {
		return int(n)
	}
	return st.tail - st.head
}

// favourite says whether the strand's channel would load it next.
func (s *Scheduler) favourite(st *strand) bool {
	if st.pos < 0 {
		return false
	}
	if s.traits.even {
		return true
	}
	ch := &s.chans[st.Channel]
	mine := &ch.cand[st.pos]
	for i := range ch.cand {
		if c := &ch.cand[i]; c != mine && !c.parked && c.before(mine, s.now) {
			return false
		}
	}
	return true
}
