package leases

import (
	"slices"

	"github.com/skepkv/skep/index"
)

// Runs is what the lease of a lookup of runs covers. It does not change once a caller knows the lease. Make it with
// NewRuns.
type Runs struct {
	at      map[run]struct{}
	lengths []int // of the runs found, each once, the longest first
}

// run is a run's leading blocks.
type run struct {
	blocks int
	fp     index.Fingerprint // of the deepest
}

// NewRuns covers nothing yet.
func NewRuns() *Runs { return &Runs{at: map[run]struct{}{}} }

// Add covers a run's leading blocks, the deepest of which is fp.
func (v *Runs) Add(blocks int, fp index.Fingerprint) {
	v.at[run{blocks, fp}] = struct{}{}
	if i, ok := slices.BinarySearchFunc(v.lengths, blocks, func(a, b int) int { return b - a }); !ok {
		v.lengths = slices.Insert(v.lengths, i, blocks)
	}
}

// only is what is covered of some blocks.
func (v *Runs) only(blocks []leased) *Runs {
	if v == nil {
		return nil
	}
	there := map[index.Fingerprint]bool{}
	for _, o := range blocks {
		there[o.fp] = true
	}
	out := NewRuns()
	for c := range v.at {
		if there[c.fp] {
			out.Add(c.blocks, c.fp)
		}
	}
	return out
}

// of is how many leading blocks of a chain are covered.
func (v *Runs) of(c Chain) int {
	for _, n := range v.lengths {
		if n > c.Blocks {
			continue
		}
		if _, ok := v.at[run{n, c.At(n)}]; ok {
			return n
		}
	}
	return 0
}
