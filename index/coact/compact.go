package coact

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/skepkv/skep"
)

// CompactOptions are those of Compact. Zero fields take the defaults, which were chosen
// on the tune questions of the recorded traces (docs/notebook/sparse.md).
type CompactOptions struct {
	Tau     float64 // radius; 0: 0.7
	Size    int     // most entries of a cluster; 0: 128
	Copies  float64 // records per entry, 1 to 2; 0: 1.65
	Seed    uint64
	Workers int
}

func (o *CompactOptions) ensureDefaults() {
	if o.Tau == 0 {
		o.Tau = 0.7
	}
	if o.Size == 0 {
		o.Size = 128
	}
	if o.Copies == 0 {
		o.Copies = 1.65
	}
}

// Compacted is a layout's worth of clusters.
type Compacted struct {
	// Clusters cover every entry exactly once, in an order in which neighbours are
	// activated together. What was never activated lies in clusters of neighbours in the
	// text, which come last.
	Clusters Clusters
	// Second are further copies, within the byte budget: a cluster's entries once more,
	// begun two later, so that an entry has other neighbours on another device.
	Second Clusters
}

// All is what the placement is given: first copies, then second ones.
func (c Compacted) All() Clusters { return slices.Concat(c.Clusters, c.Second) }

// Compact makes few clusters with few copies, where the paper's algorithm makes many with
// many: a wide radius and no overlap; inside a cluster, entries are ordered in a chain
// from the medoid on, each followed by the nearest that is left; a second copy goes to the
// most active, up to the byte budget.
func Compact(b *Bits, o CompactOptions) (Compacted, error) {
	o.ensureDefaults()
	if !(o.Copies >= 1 && o.Copies <= 2) {
		return Compacted{}, skep.Invalidf("cluster", "copies", o.Copies, "1 to 2")
	}
	if o.Size < 2 {
		return Compacted{}, skep.Invalidf("cluster", "cluster size", o.Size, "2 or more")
	}
	built, err := Build(b, Options{Tau: o.Tau, MaxSize: o.Size, NoCopies: true, Seed: o.Seed, Workers: o.Workers})
	if err != nil {
		return Compacted{}, err
	}
	var c Compacted
	var idle []uint32
	for _, k := range built {
		if b.count[k[0]] == 0 {
			idle = append(idle, k...)
			continue
		}
		c.Clusters = append(c.Clusters, k)
	}
	parallel(len(c.Clusters), o.Workers, func(from, to int) {
		for i := from; i < to; i++ {
			b.chain(c.Clusters[i])
		}
	})
	c.Second = b.second(c.Clusters, int((o.Copies-1)*float64(b.entries)))
	slices.Sort(idle)
	for part := range slices.Chunk(idle, o.Size) {
		c.Clusters = append(c.Clusters, part)
	}
	return c, nil
}

// CompactRadii are the radii BestRadius tries when it is given none.
var CompactRadii = []float64{.5, .6, .7, .85}

// BestRadius makes compact clusters for each radius (nil: CompactRadii) and returns the one
// for which cost, the caller's on steps that b does not hold, is least; of equals the first.
func BestRadius(b *Bits, o CompactOptions, radii []float64, cost func(Compacted) (float64, error)) (best float64, err error) {
	if radii == nil {
		radii = CompactRadii
	}
	least := math.Inf(1)
	for _, o.Tau = range radii {
		c, err := Compact(b, o)
		if err != nil {
			return 0, err
		}
		v, err := cost(c)
		if err != nil {
			return 0, err
		}
		if v < least {
			best, least = o.Tau, v
		}
	}
	return best, nil
}

// chain orders a cluster in place: each entry is followed by the nearest that is left.
func (b *Bits) chain(c []uint32) {
	for i := 1; i < len(c); i++ {
		best, least := i, 2.0
		for j := i; j < len(c); j++ {
			if d := b.Distance(int(c[i-1]), int(c[j])); d < least {
				best, least = j, d
			}
		}
		c[i], c[best] = c[best], c[i]
	}
}

// second lists further copies of clusters, at most budget entries, those of the most
// active first.
func (b *Bits) second(cs Clusters, budget int) Clusters {
	type ranked struct {
		cluster int
		heat    float64
	}
	var order []ranked
	for i, c := range cs {
		if len(c) < 3 {
			continue
		}
		sum := 0.0
		for _, e := range c {
			sum += float64(b.count[e])
		}
		order = append(order, ranked{i, sum / float64(len(c))})
	}
	slices.SortStableFunc(order, func(x, y ranked) int { return cmp.Compare(y.heat, x.heat) })
	var out Clusters
	for _, r := range order {
		c := cs[r.cluster]
		if len(c) > budget {
			continue
		}
		budget -= len(c)
		out = append(out, slices.Concat(c[2:], c[:2]))
	}
	return out
}

// Check returns an error unless the clusters cover entries 0 to entries-1, exactly once
// when once is set, and none names an entry twice.
func (cs Clusters) Check(entries int, once bool) error {
	covered, last := make([]int, entries), make([]int, entries)
	for i, c := range cs {
		if len(c) == 0 {
			return fmt.Errorf("cluster %d is empty", i)
		}
		for _, e := range c {
			if int(e) >= entries {
				return fmt.Errorf("cluster %d names entry %d of %d", i, e, entries)
			}
			if last[e] == i+1 {
				return fmt.Errorf("cluster %d names entry %d twice", i, e)
			}
			covered[e]++
			last[e] = i + 1
		}
	}
	for e, n := range covered {
		if n == 0 || once && n > 1 {
			return fmt.Errorf("entry %d is in %d clusters", e, n)
		}
	}
	return nil
}
