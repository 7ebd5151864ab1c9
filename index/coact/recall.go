package coact

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"

	"github.com/skepkv/skep"
)

// Recall foresees what a query activates from what similar queries did: each observed
// step leaves a short signature of its query and the list of what it activated; a query
// asks the steps with the nearest signatures, and they vote. Co-activation is used whole
// this way, not through one representative of each cluster, and the cost of a choice
// depends on the number of steps remembered, not on the length of the context.
//
// A signature is a random projection of the query vectors of all heads, at unit length:
// the angle between two queries survives it within about 1/√dims.
type Recall struct {
	entries, width, dims int
	seed                 uint64
	project              []float32 // [dims][width]
	signs                []int8    // [steps][dims], cosines × 127·√dims÷4
	lists                []byte    // one step's after another: gap to the entry before << 4 | weight, as uvarints
	ends                 []uint32  // [steps] where a step's list ends
	scale                []float32 // [steps] what weight 0 stands for; n is 2^(-n/2) of it
}

const (
	// RecallDims is the default length of a signature.
	RecallDims = 32
	// MaxRecallSteps is the most steps one Recall remembers; when it is full the oldest
	// quarter is forgotten.
	MaxRecallSteps = 1 << 14
	// recallKeep is the share of a step's attention whose entries are remembered, the
	// heaviest first: the many that share the rest are guessed no better than by chance.
	recallKeep     = 0.6
	maxRecallBytes = 1 << 31
)

// NewRecall makes an empty one for queries of width numbers (query heads × dimension).
func NewRecall(entries, width, dims int, seed uint64) (*Recall, error) {
	const op = "recall"
	if entries < 1 || entries > MaxEntries {
		return nil, skep.Invalidf(op, "entries", entries, fmt.Sprintf("1 to %d", MaxEntries))
	}
	if width < 1 || width > 1<<20 {
		return nil, skep.Invalidf(op, "query width", width, "1 to 1048576")
	}
	if dims < 1 || dims > 1024 {
		return nil, skep.Invalidf(op, "dimensions", dims, "1 to 1024")
	}
	r := &Recall{entries: entries, width: width, dims: dims, seed: seed, project: make([]float32, dims*width)}
	rng := rand.New(rand.NewPCG(seed, 0x726563616c6c))
	for i := range r.project {
		r.project[i] = float32(rng.NormFloat64())
	}
	return r, nil
}

// Signature of a query: the mean over its tokens (rows of width), projected.
func (r *Recall) signature(query []float32) ([]float32, error) {
	if len(query) == 0 || len(query)%r.width != 0 {
		return nil, skep.Invalidf("recall", "query numbers", len(query), fmt.Sprintf("a multiple of %d", r.width))
	}
	out := make([]float32, r.dims)
	m := blas32.General{Rows: r.dims, Cols: r.width, Stride: r.width, Data: r.project}
	for at := 0; at < len(query); at += r.width {
		blas32.Gemv(blas.NoTrans, 1, m, blas32.Vector{N: r.width, Inc: 1, Data: query[at : at+r.width]}, 1, blas32.Vector{N: r.dims, Inc: 1, Data: out})
	}
	if n := blas32.Nrm2(blas32.Vector{N: r.dims, Inc: 1, Data: out}); n > 0 {
		blas32.Scal(1/n, blas32.Vector{N: r.dims, Inc: 1, Data: out})
	}
	return out, nil
}

// Learn remembers a step: its query, what it activated, ascending, and how much attention
// each of those got, in any unit; nil: all the same. drop, when not nil, says which entries
// need no recalling (sinks).
func (r *Recall) Learn(query []float32, activated []uint32, weights []float32, drop func(uint32) bool) error {
	sig, err := r.signature(query)
	if err != nil {
		return err
	}
	if weights != nil && len(weights) != len(activated) {
		return skep.Invalidf("recall", "weights", len(weights), len(activated))
	}
	total, left := 0.0, 0.0
	kept := make([]int32, 0, len(activated))
	for i, e := range activated {
		if i > 0 && e <= activated[i-1] || int(e) >= r.entries {
			return skep.Invalidf("recall", "activated entry", e, fmt.Sprintf("ascending and below %d", r.entries))
		}
		w := 1.0
		if weights != nil {
			if w = float64(weights[i]); !(w >= 0 && w < 1e30) {
				return skep.Invalidf("recall", "weight", w, "0 or more, finite")
			}
		}
		total += w
		if (drop == nil || !drop(e)) && w > 0 {
			kept = append(kept, int32(i))
			left += w
		}
	}
	scale := float32(1)
	if weights != nil && len(kept) > 0 {
		slices.SortFunc(kept, func(a, b int32) int { return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(a, b)) })
		scale = weights[kept[0]]
		n := 0
		for sum := 0.0; n < len(kept) && sum < recallKeep*left; n++ {
			sum += float64(weights[kept[n]])
		}
		kept = kept[:n]
		slices.Sort(kept)
	}
	list := make([]byte, 0, 2*len(kept))
	prev := int64(-1)
	for _, i := range kept {
		half := 0.0
		if weights != nil {
			half = min(math.Round(2*math.Log2(float64(scale/weights[i]))), 15)
		}
		e := int64(activated[i])
		list = binary.AppendUvarint(list, uint64(e-prev)<<4|uint64(half))
		prev = e
	}
	if len(r.ends) >= MaxRecallSteps || len(r.lists)+len(list) > maxRecallBytes {
		r.forget(max(len(r.ends)/4, 1))
	}
	if weights != nil && total > 0 {
		scale /= float32(total)
	}
	r.lists = append(r.lists, list...)
	r.ends = append(r.ends, uint32(len(r.lists)))
	r.scale = append(r.scale, scale)
	r.signs = append(r.signs, r.quantise(sig)...)
	return nil
}

// forget drops the n oldest steps.
func (r *Recall) forget(n int) {
	n = min(n, len(r.ends))
	if n == 0 {
		return
	}
	cut := r.ends[n-1]
	r.lists = slices.Clone(r.lists[cut:])
	r.signs = slices.Clone(r.signs[n*r.dims:])
	r.ends = slices.Clone(r.ends[n:])
	r.scale = slices.Clone(r.scale[n:])
	for i := range r.ends {
		r.ends[i] -= cut
	}
}

// quantise brings a unit vector's numbers, which are seldom above 4/√dims, into a byte.
func (r *Recall) quantise(sig []float32) []int8 {
	out := make([]int8, r.dims)
	scale := 127 * math.Sqrt(float64(r.dims)) / 4
	for i, v := range sig {
		out[i] = int8(max(min(math.Round(float64(v)*scale), 127), -127))
	}
	return out
}

// list is what step s activated, encoded.
func (r *Recall) list(s int32) []byte {
	from := uint32(0)
	if s > 0 {
		from = r.ends[s-1]
	}
	return r.lists[from:r.ends[s]]
}

// Entries is how many entries there are.
func (r *Recall) Entries() int { return r.entries }

// Steps is how many are remembered.
func (r *Recall) Steps() int { return len(r.ends) }

// Bytes is the memory signatures and lists take; the projection, which all layers and
// contexts of a model share, is apart.
func (r *Recall) Bytes() (remembered, projection int64) {
	return int64(len(r.signs)) + int64(len(r.lists)) + 8*int64(len(r.ends)), int64(4 * len(r.project))
}

// RecallOptions say who votes.
type RecallOptions struct {
	Nearest int     // steps; 0: 24
	Sharp   float64 // how much more a nearer step counts: weight e^(Sharp·cosine); 0: 30
}

// Votes adds to votes, a number an entry, what may be expected of it: the share of a
// step's attention it gets, or, of steps learned without weights, the chance that it is
// activated; between 0 and 1. It returns how many steps voted.
func (r *Recall) Votes(query []float32, o RecallOptions, votes []float32) (int, error) {
	if len(votes) != r.entries {
		return 0, skep.Invalidf("recall", "votes", len(votes), r.entries)
	}
	sig, err := r.signature(query)
	if err != nil || len(r.ends) == 0 {
		return 0, err
	}
	if o.Nearest == 0 {
		o.Nearest = 24
	}
	if o.Sharp == 0 {
		o.Sharp = 30
	}
	n := len(r.ends)
	cos := r.cosines(sig)
	near := make([]int32, n)
	for i := range near {
		near[i] = int32(i)
	}
	k := min(o.Nearest, n)
	smallest(near, k, func(a, b int32) int { return cmp.Or(cmp.Compare(cos[b], cos[a]), cmp.Compare(a, b)) })
	near = near[:k]
	weight, sum := make([]float64, k), 0.0
	most := cos[near[0]]
	for _, s := range near {
		most = max(most, cos[s])
	}
	for i, s := range near {
		weight[i] = math.Exp(o.Sharp * float64(cos[s]-most))
		sum += weight[i]
	}
	for i, s := range near {
		r.vote(s, float32(weight[i]/sum), votes)
	}
	return k, nil
}

// vote adds what step s activated, times w.
func (r *Recall) vote(s int32, w float32, votes []float32) {
	var worth [16]float32
	for i := range worth {
		worth[i] = w * r.scale[s] * float32(math.Exp2(-float64(i)/2))
	}
	e := -1
	for list := r.list(s); len(list) > 0; {
		v, used := uint64(list[0]), 1
		if v >= 0x80 {
			if v, used = v&0x7f|uint64(list[1])<<7, 2; list[1] >= 0x80 {
				v, used = binary.Uvarint(list)
			}
		}
		list = list[used:]
		e += int(v >> 4)
		votes[e] += worth[v&15]
	}
}

// Popularity adds to out, a number an entry, the mean of what the remembered steps say of
// it.
func (r *Recall) Popularity(out []float32) error {
	if len(out) != r.entries {
		return skep.Invalidf("recall", "popularity", len(out), r.entries)
	}
	for s := range r.ends {
		r.vote(int32(s), 1/float32(len(r.ends)), out)
	}
	return nil
}

// cosines of a signature and all remembered ones.
func (r *Recall) cosines(sig []float32) []float32 {
	q := r.quantise(sig)
	scale := 4 / (127 * float32(math.Sqrt(float64(r.dims))))
	out := make([]float32, len(r.ends))
	for s := range out {
		var dot int32
		for i, v := range r.signs[s*r.dims : (s+1)*r.dims] {
			dot += int32(v) * int32(q[i])
		}
		out[s] = float32(dot) * scale * scale
	}
	return out
}

// smallest puts the k first elements of the order before all others, in any order among
// themselves (quickselect).
func smallest[T any](a []T, k int, less func(x, y T) int) {
	lo, hi := 0, len(a)
	for hi-lo > 16 && k > lo && k < hi {
		// Median of three, moved to the middle.
		mid := lo + (hi-lo)/2
		if less(a[mid], a[lo]) < 0 {
			a[mid], a[lo] = a[lo], a[mid]
		}
		if less(a[hi-1], a[lo]) < 0 {
			a[hi-1], a[lo] = a[lo], a[hi-1]
		}
		if less(a[hi-1], a[mid]) < 0 {
			a[hi-1], a[mid] = a[mid], a[hi-1]
		}
		pivot, i, j := a[mid], lo, hi-1
		for i <= j {
			for less(a[i], pivot) < 0 {
				i++
			}
			for less(pivot, a[j]) < 0 {
				j--
			}
			if i <= j {
				a[i], a[j] = a[j], a[i]
				i++
				j--
			}
		}
		switch {
		case k <= j+1:
			hi = j + 1
		case k > i:
			lo = i
		default:
			return
		}
	}
	slices.SortFunc(a[lo:hi], less)
}

// Top lists the k entries with the greatest scores above zero, greatest first, leaving
// out those for which skip is true.
func Top(scores []float32, k int, skip func(uint32) bool) []uint32 {
	var c []uint32
	for e, s := range scores {
		if s > 0 && (skip == nil || !skip(uint32(e))) {
			c = append(c, uint32(e))
		}
	}
	order := func(a, b uint32) int { return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(a, b)) }
	k = min(max(k, 0), len(c))
	smallest(c, k, order)
	slices.SortFunc(c[:k], order)
	return c[:k]
}

// TopSet is Top without the order: the same k entries, ascending. It takes two passes over
// scores and no sort of what is clearly in.
func TopSet(scores []float32, k int, skip func(uint32) bool) []uint32 {
	if k <= 0 {
		return nil
	}
	// Positive floats order as their bits do: exponent and the first mantissa bits make
	// buckets.
	const shift = 19
	var counts [1 << (32 - shift)]int32
	for e, s := range scores {
		if s > 0 && (skip == nil || !skip(uint32(e))) {
			counts[math.Float32bits(s)>>shift]++
		}
	}
	cut, above := len(counts)-1, 0
	for ; cut > 0 && above+int(counts[cut]) < k; cut-- {
		above += int(counts[cut])
	}
	out := make([]uint32, 0, min(k, above+int(counts[cut])))
	edge := make([]uint32, 0, counts[cut])
	for e, s := range scores {
		if !(s > 0) {
			continue
		}
		switch b := int(math.Float32bits(s) >> shift); {
		case b < cut || skip != nil && skip(uint32(e)):
		case b > cut:
			out = append(out, uint32(e))
		default:
			edge = append(edge, uint32(e))
		}
	}
	if room := min(k-len(out), len(edge)); room > 0 {
		smallest(edge, room, func(a, b uint32) int { return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(a, b)) })
		out = append(out, edge[:room]...)
		slices.Sort(out)
	}
	return out
}

// AppendBinary appends what is remembered, for UnmarshalRecall; the projection is made
// from the seed again.
func (r *Recall) AppendBinary(b []byte) []byte {
	b = append(b, recallMagic...)
	for _, v := range []uint64{uint64(r.entries), uint64(r.width), uint64(r.dims), r.seed, uint64(len(r.ends)), uint64(len(r.lists))} {
		b = binary.AppendUvarint(b, v)
	}
	for _, s := range r.signs {
		b = append(b, byte(s))
	}
	prev := uint32(0)
	for i, e := range r.ends {
		b = binary.AppendUvarint(b, uint64(e-prev))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(r.scale[i]))
		prev = e
	}
	return append(b, r.lists...)
}

// recallMagic begins what AppendBinary writes.
const recallMagic = "SKRECL01"

// UnmarshalRecall reads what AppendBinary wrote; Damaged when it is anything else.
func UnmarshalRecall(b []byte) (*Recall, error) {
	damaged := &skep.Error{Op: "read recall", Kind: skep.Damaged}
	if len(b) < len(recallMagic) || string(b[:len(recallMagic)]) != recallMagic {
		return nil, damaged
	}
	b = b[len(recallMagic):]
	var v [6]uint64
	for i := range v {
		x, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, damaged
		}
		v[i], b = x, b[n:]
	}
	steps, bytes := v[4], v[5]
	if v[0] > MaxEntries || v[1] > 1<<20 || v[2] > 1024 || steps > MaxRecallSteps || bytes > uint64(len(b)) || steps*v[2] > uint64(len(b)) {
		return nil, damaged
	}
	r, err := NewRecall(int(v[0]), int(v[1]), int(v[2]), v[3])
	if err != nil {
		return nil, damaged
	}
	for _, s := range b[:steps*v[2]] {
		r.signs = append(r.signs, int8(s))
	}
	b = b[steps*v[2]:]
	at := uint64(0)
	for range steps {
		x, n := binary.Uvarint(b)
		if n <= 0 || x > bytes || at+x > bytes || len(b) < n+4 {
			return nil, damaged
		}
		scale := math.Float32frombits(binary.LittleEndian.Uint32(b[n:]))
		if !(scale >= 0 && scale < 1e30) {
			return nil, damaged
		}
		at, b = at+x, b[n+4:]
		r.ends = append(r.ends, uint32(at))
		r.scale = append(r.scale, scale)
	}
	if at != bytes || uint64(len(b)) != bytes {
		return nil, damaged
	}
	r.lists = slices.Clone(b)
	for s := range r.ends { // every list must stay within the entries
		e := int64(-1)
		for list := r.list(int32(s)); len(list) > 0; {
			v, n := binary.Uvarint(list)
			gap := v >> 4
			if n <= 0 || gap < 1 || gap > MaxEntries {
				return nil, damaged
			}
			if e += int64(gap); e >= int64(r.entries) {
				return nil, damaged
			}
			list = list[n:]
		}
	}
	return r, nil
}

// Grow makes room for more entries, as the context grows.
func (r *Recall) Grow(entries int) {
	if entries > r.entries && entries <= MaxEntries {
		r.entries = entries
	}
}
