package coact

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/skepkv/skep"
)

// Clusters are sets of entries, which may overlap; the first of each is its medoid, the
// others follow in the order they joined.
type Clusters [][]uint32

// Options of clustering.
type Options struct {
	// Tau is the radius: the largest distance to the medoid, and the largest mean
	// distance to the cluster, of an entry that joins. 0 to 1, both excluded.
	Tau float64
	// MaxSize is the most entries of a cluster; 0: no limit.
	MaxSize int
	// Measure is the distance; Build has Cosine only.
	Measure Measure
	// NoCopies keeps an entry in the first cluster it joins.
	NoCopies bool
	// MedoidOnly lets in everything within Tau of the medoid, whatever its distance to
	// the rest.
	MedoidOnly bool
	// References is how many entries Build samples to estimate densities; 0: 1024. As
	// many as there are entries: exact.
	References int
	Seed       uint64 // of the sample
	Workers    int    // goroutines of Build; 0: 1. The result does not depend on it
}

func (o *Options) validate() error {
	const op = "cluster"
	if !(o.Tau > 0 && o.Tau < 1) {
		return skep.Invalidf(op, "tau", o.Tau, "between 0 and 1")
	}
	if o.MaxSize < 0 {
		return skep.Invalidf(op, "cluster size", o.MaxSize, "0 or more")
	}
	if o.Measure >= numMeasures {
		return skep.Invalidf(op, "measure", o.Measure, fmt.Sprintf("below %d", numMeasures))
	}
	if o.References < 0 || o.Workers < 0 {
		return skep.Invalidf(op, "references and workers", min(o.References, o.Workers), "0 or more")
	}
	return nil
}

type candidate struct {
	entry uint32
	d     float64
}

func byDistance(a, b candidate) int {
	return cmp.Or(cmp.Compare(a.d, b.d), cmp.Compare(a.entry, b.entry))
}

// medoidQueue orders entries by density, greatest first, and by number among equals.
func medoidQueue(density []int32) []uint32 {
	q := make([]uint32, len(density))
	for i := range q {
		q[i] = uint32(i)
	}
	slices.SortStableFunc(q, func(a, b uint32) int { return cmp.Compare(density[b], density[a]) })
	return q
}

// Exact is Algorithm 1 of the paper word for word, with a distance for every pair: time
// and memory are quadratic in the entries. It is what the fast one is compared with.
func Exact(b *Bits, o Options) (Clusters, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	n, s := b.entries, b.sums()
	d := make([]float64, n*n) // d[m*n+e], m the medoid
	density := make([]int32, n)
	for i := range n {
		for j := range n {
			if i == j {
				continue
			}
			d[i*n+j] = b.distance(o.Measure, s, i, j)
			if d[i*n+j] < o.Tau {
				density[i]++
			}
		}
	}
	covered := make([]bool, n)
	var out Clusters
	for _, m := range medoidQueue(density) {
		if covered[m] {
			continue
		}
		var queue []candidate
		for e := range n {
			if dist := d[int(m)*n+e]; e != int(m) && dist < o.Tau && !(o.NoCopies && covered[e]) {
				queue = append(queue, candidate{uint32(e), dist})
			}
		}
		slices.SortFunc(queue, byDistance)
		c := []uint32{m}
		for _, q := range queue {
			if o.MaxSize > 0 && len(c) == o.MaxSize {
				break
			}
			sum := 0.0
			for _, k := range c {
				sum += d[int(k)*n+int(q.entry)]
			}
			if o.MedoidOnly || sum/float64(len(c)) <= o.Tau+rounding {
				c = append(c, q.entry)
			}
		}
		for _, e := range c {
			covered[e] = true
		}
		out = append(out, c)
	}
	return out, nil
}

// rounding is what a mean distance may exceed the radius by: sums over pairs and sums
// over steps differ in their last bits.
const rounding = 1e-9

// Spread is the mean distance of a cluster's entries to its medoid, 0 for one alone.
func (b *Bits) Spread(c []uint32) float64 {
	if len(c) < 2 {
		return 0
	}
	sum := 0.0
	for _, e := range c[1:] {
		sum += b.Distance(int(c[0]), int(e))
	}
	return sum / float64(len(c)-1)
}

// Radius is the largest distance of a cluster's entries to its medoid.
func (b *Bits) Radius(c []uint32) float64 {
	r := 0.0
	for _, e := range c[1:] {
		r = math.Max(r, b.Distance(int(c[0]), int(e)))
	}
	return r
}

// Members is how many entries the clusters hold, copies counted.
func (cs Clusters) Members() int {
	n := 0
	for _, c := range cs {
		n += len(c)
	}
	return n
}
