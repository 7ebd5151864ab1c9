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
