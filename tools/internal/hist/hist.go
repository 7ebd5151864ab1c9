package hist

import (
	"iter"
	"math"
	"math/bits"
	"time"
)

// stepBits is log2 of the steps between two powers of two. Values below 2^stepBits
// have a counter each.
const (
	stepBits = 5
	steps    = 1 << stepBits
	counters = (63-stepBits)*steps + steps
)

// RelativeError bounds |Quantile − exact| ÷ exact: half a step, as quantiles
// are read at the middle of one.
const RelativeError = 1.0 / (2 * steps)

// Hist is a histogram of durations; the zero value is empty and ready. It must
// not be used by two goroutines at once.
type Hist struct {
	count    uint64
	sum      float64 // ns; float, as years of nanoseconds add up past 64 bits
	min, max int64
	n        [counters]uint64
}

// index is the counter of v ≥ 0: v itself below 32, then 32 for each octave.
func index(v int64) int {
	if v < steps {
		return int(v)
	}
	shift := bits.Len64(uint64(v)) - 1 - stepBits
	return shift*steps + int(v>>shift)
}

// bounds are the first and the last value that counter i takes.
func bounds(i int) (lo, hi int64) {
	if i < steps {
		return int64(i), int64(i)
	}
	shift := i/steps - 1
	lo = int64(steps+i%steps) << shift
	return lo, lo + 1<<shift - 1
}

// Record counts one duration; a negative one, which only a clock that was set
// back yields, counts as 0.
func (h *Hist) Record(d time.Duration) {
	v := max(int64(d), 0)
	if h.count == 0 || v < h.min {
		h.min = v
	}
	h.max = max(h.max, v)
	h.count++
	h.sum += float64(v)
	h.n[index(v)]++
}

// Merge adds what o counted; o stays as it is.
func (h *Hist) Merge(o *Hist) {
	if o.count == 0 {
		return
	}
	if h.count == 0 || o.min < h.min {
		h.min = o.min
	}
	h.max = max(h.max, o.max)
	h.count += o.count
	h.sum += o.sum
	for i, n := range o.n {
		h.n[i] += n
	}
}

// Reset empties h.
func (h *Hist) Reset() { *h = Hist{} }

// Count is the number of recorded durations.
func (h *Hist) Count() uint64 { return h.count }

// Min and Max are the exact extremes, 0 when nothing was recorded.
func (h *Hist) Min() time.Duration { return time.Duration(h.min) }
func (h *Hist) Max() time.Duration { return time.Duration(h.max) }

// Sum is the total of what was recorded, at most the largest Duration.
func (h *Hist) Sum() time.Duration {
	if h.sum >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(h.sum)
}

// Mean is Sum ÷ Count, 0 when nothing was recorded.
func (h *Hist) Mean() time.Duration {
	if h.count == 0 {
		return 0
	}
	return time.Duration(h.sum / float64(h.count))
}

// Quantile is the duration that a share q of what was recorded does not
// exceed: within RelativeError of the ⌈q·Count⌉-th smallest, and exact for
// q = 0 and q = 1, beyond which q is cut. 0 when nothing was recorded.
func (h *Hist) Quantile(q float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	if !(q > 0) {
		return h.Min()
	}
	rank := uint64(math.Ceil(q * float64(h.count)))
	if rank >= h.count {
		return h.Max()
	}
	for b := range h.Buckets() {
		if b.Cumulative >= rank {
			mid := b.Low + (b.High-b.Low)/2
			return min(max(mid, h.Min()), h.Max())
		}
	}
	return h.Max() // not reached: the last bucket's Cumulative is Count
}

// Bucket is one counter that is not zero: Count durations in [Low, High],
// Cumulative of them up to and with this one.
type Bucket struct {
	Low, High         time.Duration
	Count, Cumulative uint64
}

// Buckets yields the counters that are not zero, shortest durations first.
func (h *Hist) Buckets() iter.Seq[Bucket] {
	return func(yield func(Bucket) bool) {
		var sum uint64
		for i, n := range h.n {
			if n == 0 {
				continue
			}
			sum += n
			lo, hi := bounds(i)
			if !yield(Bucket{time.Duration(lo), time.Duration(hi), n, sum}) {
				return
			}
		}
	}
}
