package coact

import (
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"

	"github.com/skepkv/skep"
)

// KeyOptions are those of ByKeys.
type KeyOptions struct {
	Clusters int
	Rounds   int // of Lloyd's algorithm; 0: 8
	Seed     uint64
	Workers  int
}

// ByKeys groups entries whose keys are similar (k-means): what a context without a
// profile starts from. keys are [entries][width]. It returns the clusters, each led by
// the entry nearest to its centroid, and the centroids. An empty cluster is left out.
func ByKeys(keys []float32, width int, o KeyOptions) (Clusters, []float32, error) {
	const op = "cluster keys"
	if width < 1 || len(keys) == 0 || len(keys)%width != 0 || len(keys)/width > MaxEntries {
		return nil, nil, skep.Invalidf(op, "key numbers", len(keys), fmt.Sprintf("a multiple of width %d, up to %d entries", width, MaxEntries))
	}
	n := len(keys) / width
	if o.Clusters < 1 || o.Clusters > n {
		return nil, nil, skep.Invalidf(op, "clusters", o.Clusters, fmt.Sprintf("1 to %d", n))
	}
	if o.Rounds == 0 {
		o.Rounds = 8
	}
	rng := rand.New(rand.NewPCG(o.Seed, 0x6b6579))
	k := o.Clusters
	centroids := make([]float32, k*width)
	for c, e := range rng.Perm(n)[:k] {
		copy(centroids[c*width:(c+1)*width], keys[e*width:])
	}
	assign, near := make([]int32, n), make([]float32, n)
	for round := range o.Rounds + 1 {
		half := make([]float32, k) // |c|²/2: the nearest has the greatest x·c - |c|²/2
		for c := range k {
			v := blas32.Vector{N: width, Inc: 1, Data: centroids[c*width:]}
			half[c] = blas32.Dot(v, v) / 2
		}
		m := blas32.General{Rows: k, Cols: width, Stride: width, Data: centroids}
		parallel(n, o.Workers, func(from, to int) {
			dots := make([]float32, k)
			for e := from; e < to; e++ {
				x := blas32.Vector{N: width, Inc: 1, Data: keys[e*width : (e+1)*width]}
				blas32.Gemv(blas.NoTrans, 1, m, x, 0, blas32.Vector{N: k, Inc: 1, Data: dots})
				best := 0
				for c := range dots {
					if dots[c] -= half[c]; dots[c] > dots[best] {
						best = c
					}
				}
				assign[e], near[e] = int32(best), dots[best]-blas32.Dot(x, x)/2
			}
		})
		if round == o.Rounds {
			break
		}
		counts := make([]float32, k)
		clear(centroids)
		for e := range n {
			c := int(assign[e])
			counts[c]++
			blas32.Axpy(1, blas32.Vector{N: width, Inc: 1, Data: keys[e*width:]}, blas32.Vector{N: width, Inc: 1, Data: centroids[c*width:]})
		}
		for c := range k {
			if counts[c] > 0 {
				blas32.Scal(1/counts[c], blas32.Vector{N: width, Inc: 1, Data: centroids[c*width:]})
			} else { // an empty one tries elsewhere
				copy(centroids[c*width:(c+1)*width], keys[rng.IntN(n)*width:])
			}
		}
	}
	sets := make(Clusters, k)
	best := make([]float32, k)
	for c := range best {
		best[c] = float32(math.Inf(-1))
	}
	for e := range n {
		c := assign[e]
		sets[c] = append(sets[c], uint32(e))
		if last := len(sets[c]) - 1; near[e] > best[c] {
			best[c] = near[e]
			sets[c][0], sets[c][last] = sets[c][last], sets[c][0]
		}
	}
	var out Clusters
	var kept []float32
	for c, s := range sets {
		if len(s) > 0 {
			out = append(out, s)
			kept = append(kept, centroids[c*width:(c+1)*width]...)
		}
	}
	return out, kept, nil
}
