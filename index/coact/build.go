package coact

import (
	"math/rand/v2"
	"slices"
	"sync"
)

const defaultReferences = 1024

// Build is Algorithm 1 with densities estimated from sampled references and mean
// distances from per-step weights. Time is O(entries × (references + clusters) × steps/64),
// memory O(entries × steps/8). Only Cosine is fast; for the rest use Exact.
func Build(b *Bits, o Options) (Clusters, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Measure != Cosine {
		return Exact(b, o)
	}
	g := newGrower(b, o)
	covered := make([]bool, b.entries)
	var out Clusters
	for _, m := range medoidQueue(density(b, o)) {
		if covered[m] {
			continue
		}
		c := g.grow(m, func(e uint32) bool { return !(o.NoCopies && covered[e]) })
		for _, e := range c {
			covered[e] = true
		}
		out = append(out, c)
	}
	return out, nil
}

// density is, for each entry, how many of the sampled references are within the radius.
func density(b *Bits, o Options) []int32 {
	n := o.References
	if n == 0 {
		n = defaultReferences
	}
	refs := make([]int, b.entries)
	for i := range refs {
		refs[i] = i
	}
	if n < b.entries {
		rng := rand.New(rand.NewPCG(o.Seed, 0x636f616374))
		rng.Shuffle(len(refs), func(i, j int) { refs[i], refs[j] = refs[j], refs[i] })
		refs = refs[:n]
		slices.Sort(refs)
	}
	out := make([]int32, b.entries)
	parallel(b.entries, o.Workers, func(from, to int) {
		for e := from; e < to; e++ {
			if b.count[e] == 0 {
				continue
			}
			for _, r := range refs {
				if r != e && b.Distance(e, r) < o.Tau {
					out[e]++
				}
			}
		}
	})
	return out
}

// parallel cuts [0, n) into equal pieces, one a worker, and waits for all.
func parallel(n, workers int, f func(from, to int)) {
	workers = min(max(workers, 1), n)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { f(w*n/workers, (w+1)*n/workers) })
	}
	wg.Wait()
}

// grower expands medoids into clusters.
type grower struct {
	b      *Bits
	o      Options
	weight []float64     // w_t of the cluster under way
	found  [][]candidate // a worker each
}

func newGrower(b *Bits, o Options) *grower {
	return &grower{b: b, o: o, weight: make([]float64, b.steps), found: make([][]candidate, max(o.Workers, 1))}
}

// near lists the entries closer than the radius to m that may join, nearest first.
func (g *grower) near(m uint32, may func(uint32) bool) []candidate {
	b := g.b
	if b.count[m] == 0 {
		return nil
	}
	// cos > 1-τ needs min(f) > (1-τ)²·max(f): the counts alone rule most entries out.
	most, least := float64(b.count[m]), (1-g.o.Tau)*(1-g.o.Tau)
	n, workers := b.entries, max(g.o.Workers, 1)
	var wg sync.WaitGroup
	look := func(w int) {
		found := g.found[w][:0]
		for e := w * n / workers; e < (w+1)*n/workers; e++ {
			f := float64(b.count[e])
			if f < least*most*(1-rounding) || most < least*f*(1-rounding) || e == int(m) || !may(uint32(e)) {
				continue
			}
			if d := b.Distance(int(m), e); d < g.o.Tau {
				found = append(found, candidate{uint32(e), d})
			}
		}
		g.found[w] = found
	}
	for w := 1; w < workers; w++ {
		wg.Go(func() { look(w) })
	}
	look(0)
	wg.Wait()
	out := g.found[0]
	for _, f := range g.found[1:] {
		out = append(out, f...)
	}
	g.found[0] = out
	slices.SortFunc(out, byDistance)
	return out
}

func (g *grower) grow(m uint32, may func(uint32) bool) []uint32 {
	queue := g.near(m, may)
	c := []uint32{m}
	clear(g.weight)
	g.join(m)
	for _, q := range queue {
		if g.o.MaxSize > 0 && len(c) == g.o.MaxSize {
			break
		}
		if g.o.MedoidOnly || g.mean(q.entry, len(c)) <= g.o.Tau+rounding {
			c = append(c, q.entry)
			g.join(q.entry)
		}
	}
	return c
}

func (g *grower) join(e uint32) {
	inv := g.b.inv[e]
	each(g.b.row(int(e)), func(t int) { g.weight[t] += inv })
}

// mean is the mean distance of e to the cluster under way, which has size entries.
func (g *grower) mean(e uint32, size int) float64 {
	sum := 0.0
	each(g.b.row(int(e)), func(t int) { sum += g.weight[t] })
	return 1 - sum*g.b.inv[e]/float64(size)
}
