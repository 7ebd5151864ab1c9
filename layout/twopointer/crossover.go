package twopointer

// Crossover is L_Δ (CacheFlow, §3.1): the least number of tokens, in steps of a chunk, from
// which on restoring by tokens, a chunk a launch, takes no longer than by layers. By chunks
// each launch costs its overhead and the last chunk is computed or loaded whole; by layers
// one launch goes over all tokens. When layers win up to the longest looked at
// (crossoverLimit), that is the answer.
func (p *Problem) Crossover(chunk int) int {
	if p.Layers < 2 {
		return 0
	}
	for n := chunk; n < crossoverLimit; n += chunk {
		q := *p
		q.Tokens = n
		if q.ByChunks(chunk).Seconds <= q.Best(ByLayers).Seconds {
			return n
		}
	}
	return crossoverLimit
}

const crossoverLimit = 1 << 17

// ByChunks is the best split by tokens when only whole chunks are computed or loaded, and
// each computed chunk is a launch of its own: what Algorithm 1 can reach.
func (p *Problem) ByChunks(chunk int) Split {
	best := Split{ByTokens, 0, p.Load(ByTokens, 0)}
	compute := 0.0
	for at := 0; at < p.Tokens; {
		next := min(at+chunk, p.Tokens)
		compute += p.Cost.Fixed + p.Cost.Span(at, next)
		at = next
		if t := max(compute, p.Load(ByTokens, at)); t < best.Seconds {
			best = Split{ByTokens, at, t}
		} else if compute > best.Seconds {
			break // further chunks only take longer
		}
	}
	return best
}

// turnStep is what Turn is rounded to, in tokens.
const turnStep = 64

// Turn is L_Δ of a prefix that is alone and restored as policy Skep does, the head in one launch and split anywhere: the
// least length, a multiple of turnStep, from which on tokens take no longer than layers; at most
// crossoverLimit. It is looked for by halves: for every preset of engines and models, from 1 to
// 160 Gb/s, the two cross once, but for differences below a thousandth (a test).
func (p *Problem) Turn() int {
	if p.Layers < 2 || p.Boundary > 0 {
		return 0
	}
	lo, hi := 0, crossoverLimit/turnStep
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		q := *p
		q.Tokens = mid * turnStep
		if q.Best(ByTokens).Seconds <= q.Best(ByLayers).Seconds {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi * turnStep
}

// turning is a Turn that was reckoned, and from what.
type turning struct {
	cost       Cost
	bytes      float64 // of a token
	layers     int
	slow, rate float64 // of the engine and of the channel
	at         int
}

// Speeds may move by turnDrift before a Turn is reckoned anew: with it L_Δ moves by about as much, and
// near it either way takes as long. turnsKept is of how many costs a Turn is remembered.
const (
	turnDrift = 0.1
	turnsKept = 16
)

func drifted(was, is float64) bool { return is > was*(1+turnDrift) || is < was/(1+turnDrift) }

// turnOf is L_Δ for prefixes like n at the speeds as they are, or were a little ago.
func (s *Scheduler) turnOf(n *Strand) int {
	slow, rate := s.stages[n.Stage].slow, s.chans[n.Channel].rate
	k := 0
	for k < len(s.turns) && (s.turns[k].cost != n.Cost || s.turns[k].bytes != n.BytesPerToken || s.turns[k].layers != n.Layers) {
		k++
	}
	if k < len(s.turns) && !drifted(s.turns[k].slow, slow) && !drifted(s.turns[k].rate, rate) {
		return s.turns[k].at
	}
	p := Problem{Layers: n.Layers, Cost: n.Cost.Times(slow), BytesPerToken: n.BytesPerToken, Boundary: n.Boundary, BytesPerSecond: rate, Latency: s.chans[n.Channel].latency}
	t := turning{n.Cost, n.BytesPerToken, n.Layers, slow, rate, p.Turn()}
	switch {
	case k < len(s.turns):
		s.turns[k] = t
	case k < turnsKept:
		s.turns = append(s.turns, t)
	default:
		s.turns[s.reckoned%turnsKept] = t
	}
	s.reckoned++
	s.lastTurn = t.at
	return t.at
}

// ModeOf is the axis by which n would be restored if it joined now, beside so many that join with it: by
// layers when it is alone and shorter than L_Δ at the speeds measured so far.
func (s *Scheduler) ModeOf(n *Strand, beside int) Mode {
	s.count()
	return s.modeFor(n, s.stages[n.Stage].active+beside == 0)
}

// Crossover is L_Δ as it was last reckoned, in tokens, and how often it was.
func (s *Scheduler) Crossover() (tokens, reckoned int) { return s.lastTurn, s.reckoned }
