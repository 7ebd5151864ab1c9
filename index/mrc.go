package index

import (
	"container/heap"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"

	"github.com/skepkv/skep"
)

// Reuse is a sampled reuse profile: from it follows what hit ratio an LRU of any size
// would have on the references it was told of, and with that what more drives or DRAM
// would gain.
//
// It is SHARDS with a fixed number of samples (Waldspurger et al., FAST '15): a key is
// sampled by its hash, so all its references are or none; the distance of a reuse is the
// number of other sampled keys since, divided by the rate; when there are more samples
// than there is room for, those with the highest hashes go and the rate comes down. What
// sampling missed of the references is corrected in the curve's first bucket
// (SHARDS-adj). Counts are halved every Window references, so that the curve is of lately.
//
// Rate and Add may be called concurrently with everything; the rest is not safe for
// concurrent use.
type Reuse struct {
	max       int
	threshold atomic.Uint64 // hashes at or above are not sampled
	added     atomic.Uint64 // references since counts were halved last

	keys  map[uint64]*sample
	byTop hashHeap // the highest hash first
	// at is a Fenwick tree over places in time: 1 where a sampled key was used last.
	at    []int32
	clock int

	total   float64 // references, halved like the counts
	sampled float64 // of them, as far as sampling saw
	buckets [reuseBuckets]float64
	cold    float64
}

type sample struct {
	hash uint64
	last int // place in time
	pos  int // in the heap
}

const (
	// perOctave buckets double the distance: curves are exact to 9 %.
	perOctave    = 8
	reuseBuckets = 40 * perOctave
	// ReuseWindow is how many references counts speak of before they are halved.
	ReuseWindow = 1 << 24
	// firstRate is the share of keys sampled while there are few.
	firstRate = 8
)

// NewReuse keeps up to samples sampled keys, some 100 bytes each.
func NewReuse(samples int) (*Reuse, error) {
	const least, most = 64, 1 << 22
	if samples < least || samples > most {
		return nil, skep.Invalidf("reuse profile", "samples", samples, fmt.Sprintf("%d to %d", least, most))
	}
	r := &Reuse{max: samples, keys: make(map[uint64]*sample, samples), at: make([]int32, 4*samples+1)}
	r.threshold.Store(math.MaxUint64 / firstRate)
	return r, nil
}

// ReuseHash spreads 16 bytes that are a hash already, such as the middle of a key.
func ReuseHash(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xbf58476d1ce4e5b9)
	return hi ^ lo
}

// Threshold is below what a hash must be to be sampled.
func (r *Reuse) Threshold() uint64 { return r.threshold.Load() }

// Rate is the share of keys sampled.
func (r *Reuse) Rate() float64 { return float64(r.threshold.Load()) / math.MaxUint64 }

// Add counts references, sampled or not.
func (r *Reuse) Add(n int) { r.added.Add(uint64(n)) }

// Note takes a reference to a sampled key; others are passed over.
func (r *Reuse) Note(hash uint64) {
	if hash >= r.threshold.Load() {
		return
	}
	if r.clock+1 >= len(r.at) { // before the key's old place is taken out of the tree
		r.renumber()
	}
	weight := 1 / r.Rate()
	r.sampled += weight
	s := r.keys[hash]
	if s == nil {
		r.cold += weight
		s = &sample{hash: hash}
		r.keys[hash] = s
		heap.Push(&r.byTop, s)
	} else {
		between := r.count(r.clock) - r.count(s.last) // other keys used since
		r.buckets[bucketOf(float64(between)*weight)] += weight
		r.change(s.last, -1)
	}
	r.clock++
	s.last = r.clock
	r.change(s.last, 1)
	for len(r.keys) > r.max {
		top := heap.Pop(&r.byTop).(*sample)
		r.threshold.Store(top.hash)
		delete(r.keys, top.hash)
		r.change(top.last, -1)
	}
	r.age()
}

// age halves what was counted once a window of references has passed.
func (r *Reuse) age() {
	n := r.added.Load()
	if n < ReuseWindow {
		return
	}
	r.added.Add(-n)
	r.total = (r.total + float64(n)) / 2
	r.sampled /= 2
	r.cold /= 2
	for i := range r.buckets {
		r.buckets[i] /= 2
	}
}

// renumber gives the samples places 1, 2, … in the order of their last use.
func (r *Reuse) renumber() {
	order := make([]*sample, r.clock+1)
	for _, s := range r.keys {
		if s.last > 0 {
			order[s.last] = s
		}
	}
	clear(r.at)
	r.clock = 0
	for _, s := range order {
		if s != nil && r.keys[s.hash] == s {
			r.clock++
			s.last = r.clock
			r.change(s.last, 1)
		}
	}
}

func (r *Reuse) change(i int, by int32) {
	for ; i < len(r.at); i += i & -i {
		r.at[i] += by
	}
}

// count is how many samples were used last at places 1 to i.
func (r *Reuse) count(i int) (n int32) {
	for ; i > 0; i -= i & -i {
		n += r.at[i]
	}
	return n
}

// steps are where the buckets of an octave begin, as shares of where the octave does.
var steps = func() (s [perOctave]float64) {
	for i := range s {
		s[i] = math.Exp2(float64(i) / perOctave)
	}
	return s
}()

// bucketOf is 1 + ⌊perOctave · log2 distance⌋, from the number's bits.
func bucketOf(distance float64) int {
	if distance < 1 {
		return 0
	}
	const mantissa, bias = 52, 1023
	b := math.Float64bits(distance)
	octave := int(b>>mantissa) - bias
	share := math.Float64frombits(b&(1<<mantissa-1) | bias<<mantissa) // 1 to 2
	step := 1
	for step < perOctave && share >= steps[step] {
		step++
	}
	return min(reuseBuckets-1, 1+perOctave*octave+step-1)
}

// distanceOf is the largest distance that falls into a bucket.
func distanceOf(bucket int) float64 { return math.Exp2(float64(bucket) / perOctave) }

// References is how many the curve speaks of.
func (r *Reuse) References() float64 { return r.total + float64(r.added.Load()) }

// HitRatio is what an LRU of so many blocks would have: references found ÷ all.
func (r *Reuse) HitRatio(blocks float64) float64 {
	all := r.References()
	if all == 0 || blocks < 1 {
		return 0
	}
	hits := all - r.sampled // what sampling missed, or saw too much of, is reckoned as hot
	for i, n := range r.buckets {
		if top := distanceOf(i); top <= blocks {
			hits += n
		} else {
			below := 0.0
			if i > 0 {
				below = distanceOf(i - 1)
			}
			hits += n * max(0, (blocks-below)/(top-below))
			break
		}
	}
	return min(1, max(0, hits/all))
}

// Bytes is the memory it takes, reckoned.
func (r *Reuse) Bytes() int64 { return int64(r.max)*96 + int64(len(r.at))*4 + reuseBuckets*8 }

// hashHeap orders samples by hash, the highest first.
type hashHeap []*sample

func (h hashHeap) Len() int           { return len(h) }
func (h hashHeap) Less(i, j int) bool { return h[i].hash > h[j].hash }
func (h hashHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

// Push implements heap.Interface.
func (h *hashHeap) Push(x any) {
	s := x.(*sample)
	s.pos = len(*h)
	*h = append(*h, s)
}

// Pop implements heap.Interface.
func (h *hashHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return s
}
