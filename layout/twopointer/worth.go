package twopointer

import (
	"math"
	"slices"
)

// Who is loaded first: scores, ranks and urgency.

// steadyAfter is how many strands must have left a stage, since it was last without any, for it to be steady: work comes as
// fast as it is done, and how long all wait is decided by what is done in a second, not by the order it is done in.
// Of 2 to 32 tried on the agentic trace: where arrivals leave the engine idle at times a stage next to never gets to 8
// (16 and 32 are the same, 2 and 4 lose up to 1.3 and 0.3 % of the mean); under arrivals near what can be served 8 and 4
// are as good, 16 and 32 lose up to 9 and 25 %.
const steadyAfter = 8

func (s *Scheduler) steady(g int) bool { return s.stages[g].since >= steadyAfter }

// alone says that nothing else is restored or computed for on a stage, background aside.
func (s *Scheduler) alone(g, but int) bool {
	return !slices.ContainsFunc(s.live, func(i int) bool {
		o := &s.strands[i]
		return i != but && o.Stage == g && !o.Background && (o.left > 0 || o.After > 0)
	})
}

// refresh reckons ranks and scores anew.
func (s *Scheduler) refresh() {
	s.stale = max(16, len(s.live)/2)
	s.count()
	s.order = append(s.order[:0], s.live...)
	for g := range s.stages {
		if s.cfg.Engine == FirstCome {
			s.rank(g)
		}
		if s.cfg.Engine == FirstCome || s.traits.ranks {
			s.stages[g].depth = s.depthOf(g)
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

// rank reckons, of an engine that serves in order of arrival, what it does before each strand of a stage, in seconds, and
// how many a second less to compute on that strand helps: itself and all behind it.
func (s *Scheduler) rank(g int) {
	sum, ahead := 0.0, 0.0
	for _, i := range s.order {
		st := &s.strands[i]
		if st.Stage == g {
			st.ahead, st.benefit = 0, st.weight
			if !st.Background {
				st.ahead = ahead
				ahead += s.stages[g].slow * s.remaining(st)
			}
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
}

// place reckons the same of a strand that has just joined, before the ranks are reckoned anew, and how long it would take by itself.
func (s *Scheduler) place(slot int) {
	st := &s.strands[slot]
	slow := s.stages[st.Stage].slow
	st.byItself = due(s.toLoad(st), s.toCompute(st), 0) + slow*st.After
	st.benefit = st.weight
	if s.cfg.Engine != FirstCome || st.Background {
		return
	}
	for _, i := range s.live {
		if o := &s.strands[i]; i != slot && o.Stage == st.Stage && !o.Background {
			st.ahead += slow * s.remaining(o)
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
	if s.cfg.Engine != FirstCome && !s.steady(g) {
		return 0
	}
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
		c.score = s.worth(st)
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
	c.urgent = st.joined + s.patience(st)
	if d := st.Deadline.Seconds(); d > 0 {
		alone := s.toLoad(st)
		if !st.LoadOnly {
			alone = min(alone, s.toCompute(st)+s.chans[st.Channel].latency)
		}
		if s.now+alone/2 <= d { // two pointers may halve it; what cannot be met is not hurried
			c.urgent = min(c.urgent, d-1.2*alone)
		}
	}
}

// worth is what a second of loading a strand takes off Σ weight × completion.
//
// A stage that is idle at times is through with what there is, and the shorter first is right: weight ÷ seconds until it is
// done. Of an engine that advances every request these are the engine seconds left. Of one that serves in order of
// arrival it is when all would be there (due), and what need not be computed helps those behind, too: their weight counts
// by the share of the prefix that would be computed.
//
// A steady stage has the next request as soon as one is through, so the mean is what is done in a second: what makes more
// work ready comes first (feeds), and of an engine that serves in order of arrival what most wait for.
func (s *Scheduler) worth(st *strand) float64 {
	steady, slow := s.steady(st.Stage), s.stages[st.Stage].slow
	if s.cfg.Engine != FirstCome {
		w := st.weight / max(slow*s.remaining(st), 1e-9)
		if steady {
			w *= s.feeds(st)
		}
		return w
	}
	if steady {
		return st.benefit * s.feeds(st)
	}
	load, compute := s.toLoad(st), s.toCompute(st)
	helped := st.weight
	if load > 0 && compute > 0 {
		helped += max(st.benefit-st.weight, 0) * load / (load + compute)
	}
	return helped / max(due(load, compute, st.ahead), 1e-9)
}

// toLoad is what the rest of a strand takes to load, latency included.
func (s *Scheduler) toLoad(st *strand) float64 {
	return s.loading(st, max(st.tail-st.head, 0)) + s.chans[st.Channel].latency
}

// toCompute is what the rest of a strand takes to compute, as fast as the engine was seen to be; 0 when it is only loaded.
func (s *Scheduler) toCompute(st *strand) float64 {
	if st.LoadOnly {
		return 0
	}
	return s.stages[st.Stage].slow * s.stated(st, st.head, max(st.tail, st.head))
}

// due is when a prefix is there that is loaded in load seconds and computed in compute, both at once from when the engine comes to
// it on: what is loaded by then is t ÷ load of it, what is computed (t − ahead) ÷ compute. 0 to compute: it is only loaded.
func due(load, compute, ahead float64) float64 {
	if load <= ahead || load <= 0 || compute <= 0 {
		return load
	}
	return (1 + ahead/compute) / (1/load + 1/compute)
}

// patience is how long a strand waits before it comes first. Where the shorter come first (see worth) and the engine advances
// every request, as long as it would take by itself and 0.3 of the Patience otherwise: a long one is
// late at its own measure. (At 10 Gb/s on the agentic trace, arrivals at 0.5 and 0.8: 0.5 and 0.7 % off the mean, 1 and 5 % off the 99th percentile against
// the same for all; 0.2 to 0.6 were tried. Engines that serve in order of arrival gain nothing by it.)
func (s *Scheduler) patience(st *strand) float64 {
	p := s.cfg.Patience.Seconds()
	if s.traits.ranks && s.cfg.Engine != FirstCome && !s.steady(st.Stage) {
		return 0.3*p + st.byItself
	}
	return p
}

// feeds is what loading a strand is worth for what the engine gets to do by it: its suffix, which nothing else can
// be done for, and which waits for all of the prefix. Of two strands that help as many, the one that makes more work
// ready in a second of loading comes first, so that engine and channel are busy at once; where loading
// takes much longer than suffixes do it says next to nothing.
func (s *Scheduler) feeds(st *strand) float64 {
	return 1 + feedWeight*s.stages[st.Stage].slow*st.After/max(s.toLoad(st), 1e-6)
}

// feedWeight is the best of 0 to 16 tried on the agentic trace, closed loops of 4 and 8: 0.2 % (engines that advance every
// request) and 0.9 % (in order of arrival) off the mean, up to 2.6 % where loading is fast. 1 to 8 are within 0.3 %.
const feedWeight = 2
