package twopointer

import "math"

// Mode is the axis along which a prefix is restored.
type Mode uint8

const (
	ByTokens Mode = 0 // the head computed, the tail loaded
	ByLayers Mode = 1 // the lowest layers computed, the highest loaded
)

func (m Mode) String() string {
	if m == ByLayers {
		return "layers"
	}
	return "tokens"
}

// Problem is one prefix to be restored on one stage, with a channel of its own.
type Problem struct {
	Tokens int
	Layers int // of this stage; 0: not to be split by layers
	Cost   Cost
	// BytesPerToken is what loading a token moves; Boundary what computing one needs
	// to load besides (the activations entering the stage; 0 on the first).
	BytesPerToken, Boundary float64
	BytesPerSecond          float64
	Latency                 float64 // seconds from asking for the first byte to its arrival
}

// Split is a way to restore: what is below At is computed, the rest is loaded.
type Split struct {
	Mode    Mode
	At      int // tokens or layers
	Seconds float64
}

// Compute is the time to compute up to split at, of tokens or of layers.
func (p *Problem) Compute(m Mode, at int) float64 {
	if m == ByLayers {
		return p.Cost.Of(p.Tokens) * float64(at) / float64(max(p.Layers, 1))
	}
	return p.Cost.Of(at)
}

// Load is the time to load everything from split at on, boundary activations included.
func (p *Problem) Load(m Mode, at int) float64 {
	bytes := 0.0
	if m == ByLayers {
		bytes = float64(p.Tokens) * p.BytesPerToken * float64(p.Layers-at) / float64(max(p.Layers, 1))
		if at > 0 {
			bytes += float64(p.Tokens) * p.Boundary
		}
	} else {
		bytes = float64(p.Tokens-at)*p.BytesPerToken + float64(at)*p.Boundary
	}
	if bytes <= 0 {
		return 0
	}
	return p.Latency + bytes/p.BytesPerSecond
}

func (p *Problem) time(m Mode, at int) float64 { return max(p.Compute(m, at), p.Load(m, at)) }

// Best is the split along one axis that takes least, exactly: of all integers at.
// Computing costs more the further the split, loading less, so the best is where the
// one overtakes the other, or just before; both ends stand apart, because nothing computed
// costs no launch and nothing loaded no latency.
func (p *Problem) Best(m Mode) Split {
	n := p.Tokens
	if m == ByLayers {
		n = p.Layers
	}
	lo, hi := 0, n // the first at with Compute ≥ Load is in (lo, hi]
	for hi-lo > 1 {
		if mid := int(uint(lo+hi) / 2); p.Compute(m, mid) >= p.Load(m, mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	best := Split{m, 0, p.time(m, 0)}
	for _, at := range [...]int{lo, hi, n} {
		if t := p.time(m, at); t < best.Seconds {
			best = Split{m, at, t}
		}
	}
	return best
}

// Bound is the least time of any split by tokens or by layers, with the head in one launch
// and the whole channel to itself: what no schedule of this prefix alone can beat
// along either axis. Where computing a token needs more bytes than loading it, nothing is
// computed.
func (p *Problem) Bound() Split {
	best := p.Best(ByTokens)
	if p.Layers > 1 {
		if by := p.Best(ByLayers); by.Seconds < best.Seconds {
			best = by
		}
	}
	return best
}

// Harmonic is the paper's T* = Tc·Tio ÷ (Tc + Tio) (CacheFlow, eq. 1), the best split
// when both costs are linear. It is reported beside Bound: with an overhead it is too
// small, with attention's square too large.
func (p *Problem) Harmonic() float64 {
	c, io := p.Cost.Of(p.Tokens), p.Load(ByTokens, 0)
	if c+io == 0 {
		return 0
	}
	return c * io / (c + io)
}

// Batch is several prefixes that share an engine and a channel.
type Batch struct {
	Problems []Problem
	// Work is engine time that must be spent besides: the suffixes' prefill.
	Work float64
}

// Bound is a lower bound on the time until all of the batch is restored and its Work is
// done, whatever the order: launches cost nothing, a split may fall anywhere, and only
// the sums of computing and loading count. It is the dual of that relaxed problem,
//
//	max over θ in [0, 1] of  Σ min over n of  θ·compute(n) + (1−θ)·load(N−n),
//
// which is concave in θ.
func (b *Batch) Bound() float64 {
	at := func(theta float64) float64 {
		sum := theta * b.Work
		for i := range b.Problems {
			sum += b.Problems[i].priced(theta)
		}
		return sum
	}
	lo, hi := 0.0, 1.0
	for range 80 {
		a, c := lo+(hi-lo)/3, hi-(hi-lo)/3
		if at(a) < at(c) {
			lo = a
		} else {
			hi = c
		}
	}
	return max(at((lo+hi)/2), at(0), at(1))
}

// priced is min over n of θ·compute(n) + (1−θ)·load(N−n).
func (p *Problem) priced(theta float64) float64 {
	n := float64(p.Tokens)
	load := (1 - theta) / p.BytesPerSecond
	// d/dx: θ(a + 2bx) + load·(boundary − kv)
	x, gain := 0.0, load*(p.BytesPerToken-p.Boundary)-theta*p.Cost.PerToken
	switch {
	case gain <= 0:
	case theta*p.Cost.PerSquare > 0:
		x = min(n, gain/(2*theta*p.Cost.PerSquare))
	default:
		x = n
	}
	return theta*(x*p.Cost.PerToken+x*x*p.Cost.PerSquare) + load*((n-x)*p.BytesPerToken+x*p.Boundary)
}

// MeanBound is a lower bound on the mean completion of requests that all start together
// and share an engine and a channel: the k-th to complete cannot do so before the k smallest
// could all be done. works is each request's engine time besides its prefix, or nil.
func MeanBound(problems []Problem, works []float64) float64 {
	if len(problems) == 0 {
		return 0
	}
	sum := 0.0
	// The k smallest cannot be told by one number when costs differ in two resources; for
	// every θ the priced work of k requests is at least that of the k with least priced work.
	for k := 1; k <= len(problems); k++ {
		best := 0.0
		for step := 0; step <= 32; step++ {
			best = max(best, leastPriced(problems, works, k, float64(step)/32))
		}
		sum += best
	}
	return max(sum, 0) / float64(len(problems))
}

// leastPriced is the least priced work of any k of the problems.
func leastPriced(problems []Problem, works []float64, k int, theta float64) float64 {
	v := make([]float64, len(problems))
	for i := range problems {
		v[i] = problems[i].priced(theta)
		if works != nil {
			v[i] += theta * works[i]
		}
	}
	sum := 0.0
	for range k { // k is small
		least := 0
		for i := range v {
			if v[i] < v[least] {
				least = i
			}
		}
		sum += v[least]
		v[least] = math.Inf(1)
	}
	return sum
}
