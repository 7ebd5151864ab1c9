package coact

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"gonum.org/v1/gonum/blas/blas32"

	"github.com/skepkv/skep"
)

// JoinRule says which cluster an appended entry joins.
type JoinRule uint8

const (
	// ByDistance joins the cluster whose medoid is nearest by the offline distance over
	// the window's steps, if that is within the radius, else the nearest by key. Ours.
	ByDistance JoinRule = iota
	// ByShare is eq. 9: the share f(new, m) has of Σ_j f(new, m_j). Shares add up to 1
	// over all clusters, so no radius fits them: the greatest share wins, else the
	// nearest by key.
	ByShare
	// ByKey looks at keys alone (the paper's Min-Diff).
	ByKey
)

// Joiner watches the window: the steps since an entry was generated and what they
// activated of it and of the medoids. It is for one goroutine at a time.
type Joiner struct {
	// Doubt is how many more times than seen medoids count as active; NewJoiner sets
	// defaultDoubt, 0 is the plain distance.
	Doubt float64

	rule    JoinRule
	tau     float64
	width   int
	medoids []uint32
	keys    []float32 // [medoids][width]
	of      map[uint32]int
	window  int
	step    int
	seen    []lately            // of each medoid
	fresh   map[uint32]*arrival // entries in the window
}

type arrival struct {
	since int // step
	seen  lately
	key   []float32
}

// defaultDoubt was chosen on the tune questions of the recorded traces.
const defaultDoubt = 4

// MaxJoinWindow is the most steps a Joiner looks back.
const MaxJoinWindow = 256

// lately says which of the last MaxJoinWindow steps activated something: bit 0 is the
// last step.
type lately [MaxJoinWindow / 64]uint64

func (l *lately) shift() {
	for i := len(l) - 1; i > 0; i-- {
		l[i] = l[i]<<1 | l[i-1]>>63
	}
	l[0] <<= 1
}

// both counts the steps among the last n in which both are set.
func (l *lately) both(o *lately, n int) (count int) {
	for i := 0; i < len(l) && n > 0; i, n = i+1, n-64 {
		mask := ^uint64(0)
		if n < 64 {
			mask = 1<<n - 1
		}
		count += bits.OnesCount64(l[i] & o[i] & mask)
	}
	return count
}

// NewJoiner makes one for clusters with these medoids, whose keys are [medoids][width];
// an entry may join after window steps.
func NewJoiner(medoids []uint32, keys []float32, width, window int, tau float64, rule JoinRule) (*Joiner, error) {
	const op = "join"
	if len(medoids) == 0 || width < 1 || len(keys) != len(medoids)*width {
		return nil, skep.Invalidf(op, "key numbers", len(keys), fmt.Sprintf("%d medoids of %d", len(medoids), width))
	}
	if window < 1 || window > MaxJoinWindow {
		return nil, skep.Invalidf(op, "window in steps", window, fmt.Sprintf("1 to %d", MaxJoinWindow))
	}
	j := &Joiner{Doubt: defaultDoubt, rule: rule, tau: tau, width: width, medoids: medoids, keys: keys, of: map[uint32]int{}, window: window,
		seen: make([]lately, len(medoids)), fresh: map[uint32]*arrival{}}
	for i, m := range medoids {
		j.of[m] = i
	}
	return j, nil
}

// Arrive says that entry was generated, with its key, which is copied.
func (j *Joiner) Arrive(entry uint32, key []float32) error {
	if len(key) != j.width {
		return skep.Invalidf("join", "key numbers", len(key), j.width)
	}
	j.fresh[entry] = &arrival{since: j.step, key: append([]float32(nil), key...)}
	return nil
}

// Step says what a step activated.
func (j *Joiner) Step(activated []uint32) {
	for i := range j.seen {
		j.seen[i].shift()
	}
	for _, a := range j.fresh {
		a.seen.shift()
	}
	for _, e := range activated {
		if i, ok := j.of[e]; ok {
			j.seen[i][0] |= 1
		}
		if a := j.fresh[e]; a != nil {
			a.seen[0] |= 1
		}
	}
	j.step++
}

// Ready lists the entries that have been in the window for its length, and Place gives
// their clusters; both in no particular order of arrival.
func (j *Joiner) Ready() []uint32 {
	var out []uint32
	for e, a := range j.fresh {
		if j.step-a.since >= j.window {
			out = append(out, e)
		}
	}
	return out
}

// Waiting lists all entries in the window, in no particular order.
func (j *Joiner) Waiting() []uint32 { return slices.Collect(maps.Keys(j.fresh)) }

// Place takes entry out of the window and names the cluster it joins; false for an entry
// that is not there.
func (j *Joiner) Place(entry uint32) (cluster int, ok bool) {
	a := j.fresh[entry]
	if a == nil {
		return 0, false
	}
	delete(j.fresh, entry)
	n := min(j.step-a.since, MaxJoinWindow)
	if f := a.seen.both(&a.seen, n); f > 0 && j.rule != ByKey {
		best, most := -1, 0.0
		for i := range j.medoids {
			both := float64(a.seen.both(&j.seen[i], n))
			if both == 0 {
				continue
			}
			worth := both // eq. 9's share, but for what all have in common
			if j.rule == ByDistance {
				// The square of 1 - d, which orders as d does, as if each medoid had been
				// active a few times more: after a short window 1 of 1 says less than 9 of 10.
				worth = both * both / (float64(f) * (float64(j.seen[i].both(&j.seen[i], n)) + j.Doubt))
			}
			if worth > most {
				best, most = i, worth
			}
		}
		if best >= 0 && (j.rule == ByShare || most > (1-j.tau)*(1-j.tau)) {
			return best, true
		}
	}
	return j.nearest(a.key), true
}

// nearest is the medoid with the greatest product of keys: what a query that likes the
// one likes in the other.
func (j *Joiner) nearest(key []float32) int {
	best, most := 0, float32(0)
	k := blas32.Vector{N: j.width, Inc: 1, Data: key}
	for i := range j.medoids {
		m := blas32.Vector{N: j.width, Inc: 1, Data: j.keys[i*j.width:]}
		cos := blas32.Dot(k, m) / max(blas32.Nrm2(m), 1e-30)
		if i == 0 || cos > most {
			best, most = i, cos
		}
	}
	return best
}
