package coact

import (
	"math/rand/v2"
	"slices"

	"github.com/skepkv/skep"
)

// TauScore is how one radius did.
type TauScore struct {
	Tau      float64 `json:"tau"`
	Clusters int     `json:"clusters"`
	Copies   float64 `json:"copies"` // records per entry
	Read     float64 `json:"read"`   // entries read per entry wanted
	Cost     float64 `json:"cost"`
}

// TauOptions weigh what a radius costs.
type TauOptions struct {
	Taus []float64 // tried; nil: 0.3 to 0.9
	// Cover is the share of a step's entries that clusters must bring; 0: 0.9.
	Cover float64
	// Medoid and Copy are what a cluster's medoid in DRAM and a further record on the
	// devices cost, in entries read per step. 0: 0.05 and 0.005.
	Medoid, Copy float64
}

// ChooseTau builds clusters from b for each radius and takes the one that serves the
// steps of tune best: steps that are neither in b nor will be used to judge. For each
// step clusters are taken, those with the greatest share of wanted entries first, until
// Cover of what the step activated is in; what that reads, with the weights of medoids
// and copies, is the radius's cost. The least wins, the smaller radius among equals.
func ChooseTau(b *Bits, tune [][]uint32, o Options, t TauOptions) (TauScore, []TauScore, error) {
	if len(tune) == 0 {
		return TauScore{}, nil, skep.Invalidf("choose tau", "tune steps", 0, "1 or more")
	}
	if t.Taus == nil {
		t.Taus = []float64{.3, .4, .5, .6, .7, .8, .9}
	}
	if t.Cover == 0 {
		t.Cover = 0.9
	}
	if t.Medoid == 0 {
		t.Medoid = 0.05
	}
	if t.Copy == 0 {
		t.Copy = 0.005
	}
	var all []TauScore
	best := -1
	for _, tau := range t.Taus {
		o.Tau = tau
		cs, err := Build(b, o)
		if err != nil {
			return TauScore{}, nil, err
		}
		s := TauScore{Tau: tau, Clusters: len(cs), Copies: float64(cs.Members()) / float64(b.entries)}
		read, wanted := 0, 0
		for _, step := range tune {
			r, w := cover(cs, b.entries, step, t.Cover)
			read, wanted = read+r, wanted+w
		}
		s.Read = float64(read) / float64(max(wanted, 1))
		s.Cost = float64(read)/float64(len(tune)) + t.Medoid*float64(len(cs)) + t.Copy*float64(cs.Members()-b.entries)
		all = append(all, s)
		if best < 0 || s.Cost < all[best].Cost {
			best = len(all) - 1
		}
	}
	return all[best], all, nil
}

// cover takes clusters greedily by the share of wanted entries in them until enough of
// wanted is in; it returns entries read and wanted.
func cover(cs Clusters, entries int, wanted []uint32, share float64) (read, want int) {
	is := make([]bool, entries)
	for _, e := range wanted {
		if int(e) < entries {
			is[e] = true
			want++
		}
	}
	scores := make([]float32, len(cs))
	for i, c := range cs {
		n := 0
		for _, e := range c {
			if is[e] {
				n++
			}
		}
		// Of equal shares the larger brings more at once.
		scores[i] = float32(n)/float32(len(c)) + float32(n)*1e-6
	}
	need := int(share*float64(want) + 0.999)
	in := make([]bool, entries)
	for _, c := range Top(scores, len(cs), nil) {
		if need <= 0 {
			break
		}
		for _, e := range cs[c] {
			if in[e] {
				continue
			}
			in[e] = true
			read++
			if is[e] {
				need--
			}
		}
	}
	return read, want
}

// Quantiles are the distances, under a measure, at or below which the given shares of the
// pairs of active entries are, from a sample: radii of the same meaning for measures of
// different scale.
func (b *Bits) Quantiles(m Measure, shares []float64, seed uint64) []float64 {
	var active []int
	for e, n := range b.count {
		if n > 0 {
			active = append(active, e)
		}
	}
	out := make([]float64, len(shares))
	if len(active) < 2 {
		return out
	}
	rng, s := rand.New(rand.NewPCG(seed, 0x7175616e74)), b.sums()
	sample := make([]float64, 0, 200_000)
	for range cap(sample) {
		i, j := active[rng.IntN(len(active))], active[rng.IntN(len(active))]
		if i != j {
			sample = append(sample, b.distance(m, s, i, j))
		}
	}
	slices.Sort(sample)
	for i, share := range shares {
		out[i] = min(max(sample[min(int(share*float64(len(sample))), len(sample)-1)], 1e-9), 1-1e-12)
	}
	return out
}
