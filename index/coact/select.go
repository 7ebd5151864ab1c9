package coact

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"

	"github.com/skepkv/skep"
)

// Heads is the geometry of attention vectors: a key has KV × Dim numbers, a query
// Query × Dim, and query head h reads KV head h·KV/Query.
type Heads struct {
	Query int `json:"query_heads"`
	KV    int `json:"kv_heads"`
	Dim   int `json:"head_dim"`
}

// Validate returns an Invalid error naming the first field outside its limits.
func (h Heads) Validate() error {
	const op = "heads"
	if h.KV < 1 || h.KV > skep.MaxKVHeads {
		return skep.Invalidf(op, "kv heads", h.KV, fmt.Sprintf("1 to %d", skep.MaxKVHeads))
	}
	if h.Query < h.KV || h.Query > skep.MaxKVHeads || h.Query%h.KV != 0 {
		return skep.Invalidf(op, "query heads", h.Query, fmt.Sprintf("a multiple of %d up to %d", h.KV, skep.MaxKVHeads))
	}
	if h.Dim < 1 || h.Dim > skep.MaxDim || h.Query*h.Dim > 1<<20 {
		return skep.Invalidf(op, "head dimension", h.Dim, "1 or more, and at most 1048576 numbers a query")
	}
	return nil
}

// KeyWidth is how many numbers a key has, all KV heads together.
func (h Heads) KeyWidth() int { return h.KV * h.Dim }

// QueryWidth is how many numbers a query has.
func (h Heads) QueryWidth() int { return h.Query * h.Dim }

// Index scores clusters against queries by their representatives' keys. Keys are kept
// head by head in float32, so that one matrix product a KV head does all.
type Index struct {
	heads Heads
	n     int
	keys  [][]float32 // [KV head][cluster × dim]
	bias  []float32   // log of the cluster's size
}

// NewIndex makes an index of n = len(sizes) clusters; keys are [n][KeyWidth] and copied.
func NewIndex(h Heads, keys []float32, sizes []int) (*Index, error) {
	if err := h.Validate(); err != nil {
		return nil, err
	}
	n := len(sizes)
	if n < 1 || len(keys) != n*h.KeyWidth() {
		return nil, skep.Invalidf("index of clusters", "key numbers", len(keys), n*h.KeyWidth())
	}
	x := &Index{heads: h, n: n, keys: make([][]float32, h.KV), bias: make([]float32, n)}
	for i, s := range sizes {
		x.bias[i] = float32(math.Log(float64(max(s, 1))))
	}
	for v := range x.keys {
		x.keys[v] = make([]float32, n*h.Dim)
		for c := range n {
			copy(x.keys[v][c*h.Dim:], keys[c*h.KeyWidth()+v*h.Dim:][:h.Dim])
		}
	}
	return x, nil
}

// Len is the number of clusters.
func (x *Index) Len() int { return x.n }

// Bytes is the memory of the keys and sizes.
func (x *Index) Bytes() int64 { return int64(4 * x.n * (x.heads.KeyWidth() + 1)) }

// Scores is the attention mass each cluster is expected to get from queries, rows of
// QueryWidth (of requests and tokens alike): for each head a softmax over the
// representatives, each weighted by its cluster's size, summed over the heads of a KV
// head, over KV heads and over rows. perKV, when not nil, is [KV heads][clusters] and
// gets the sums of each KV head. The scores add up to rows × query heads.
func (x *Index) Scores(queries []float32, perKV []float32) ([]float32, error) {
	w := x.heads.QueryWidth()
	if len(queries) == 0 || len(queries)%w != 0 {
		return nil, skep.Invalidf("select", "query numbers", len(queries), fmt.Sprintf("a multiple of %d", w))
	}
	if perKV != nil && len(perKV) != x.n*x.heads.KV {
		return nil, skep.Invalidf("select", "scores for each KV head", len(perKV), x.n*x.heads.KV)
	}
	group, dim := x.heads.Query/x.heads.KV, x.heads.Dim
	out := make([]float32, x.n)
	logits := make([]float32, x.n)
	scale := float32(1 / math.Sqrt(float64(dim)))
	for at := 0; at < len(queries); at += w {
		for h := range x.heads.Query {
			copy(logits, x.bias)
			blas32.Gemv(blas.NoTrans, scale, blas32.General{Rows: x.n, Cols: dim, Stride: dim, Data: x.keys[h/group]},
				blas32.Vector{N: dim, Inc: 1, Data: queries[at+h*dim:][:dim]}, 1, blas32.Vector{N: x.n, Inc: 1, Data: logits})
			softmax(logits)
			blas32.Axpy(1, blas32.Vector{N: x.n, Inc: 1, Data: logits}, blas32.Vector{N: x.n, Inc: 1, Data: out})
			if perKV != nil {
				blas32.Axpy(1, blas32.Vector{N: x.n, Inc: 1, Data: logits}, blas32.Vector{N: x.n, Inc: 1, Data: perKV[h/group*x.n:][:x.n]})
			}
		}
	}
	return out, nil
}

func softmax(v []float32) {
	most := slices.Max(v)
	var sum float32
	for i, l := range v {
		// Below e^-20 nothing adds up to anything.
		if l -= most; l < -20 {
			v[i] = 0
			continue
		}
		v[i] = float32(math.Exp(float64(l)))
		sum += v[i]
	}
	for i := range v {
		v[i] /= sum
	}
}

// SelectOptions say how much is chosen.
type SelectOptions struct {
	Budget int // entries
	// Overshoot lets in the cluster that passes the budget; else the choice ends before.
	Overshoot bool
}

// Select takes clusters by score, greatest first, until their entries, each counted once,
// fill the budget. skip, when not nil, says which entries count for nothing because they
// are at hand. It returns the clusters and the union of their entries, ascending.
func Select(cs Clusters, scores []float32, o SelectOptions, skip func(uint32) bool) (chosen []int, entries []uint32, err error) {
	if o.Budget < 0 {
		return nil, nil, skep.Invalidf("select", "budget", o.Budget, "0 or more")
	}
	if len(scores) != len(cs) {
		return nil, nil, skep.Invalidf("select", "scores", len(scores), len(cs))
	}
	order := make([]int, len(cs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	in := map[uint32]bool{}
	for _, c := range order {
		if len(in) >= o.Budget {
			break
		}
		before := len(entries)
		for _, e := range cs[c] {
			if !in[e] && (skip == nil || !skip(e)) {
				in[e] = true
				entries = append(entries, e)
			}
		}
		if !o.Overshoot && len(entries) > o.Budget {
			for _, e := range entries[before:] {
				delete(in, e)
			}
			entries = entries[:before]
			break
		}
		chosen = append(chosen, c)
	}
	slices.Sort(entries)
	return chosen, entries, nil
}
