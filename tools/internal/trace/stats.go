package trace

import (
	"slices"
	"time"
)

// Stats sums up the requests given to Add, as an infinite cache would see
// them. The zero value is ready to use. It keeps every id and every length.
type Stats struct {
	Requests  int
	BlockRefs int // block references, Σ len(Blocks)
	HitBlocks int // of these, hits under the prefix rule: known, and all before it in the request known
	Partial   int // requests whose last block is partly filled
	Last      time.Duration

	seen    map[uint64]struct{}
	inputs  []int
	outputs []int
}

// Add counts one request; it keeps nothing of r.Blocks. It returns how many
// leading blocks an infinite cache would have had.
func (s *Stats) Add(r Request) (hit int) {
	if s.seen == nil {
		s.seen = make(map[uint64]struct{})
	}
	for hit < len(r.Blocks) {
		if _, ok := s.seen[r.Blocks[hit]]; !ok {
			break
		}
		hit++
	}
	for _, id := range r.Blocks[hit:] {
		s.seen[id] = struct{}{}
	}
	s.Requests++
	s.BlockRefs += len(r.Blocks)
	s.HitBlocks += hit
	if r.LastValidTokens > 0 {
		s.Partial++
	}
	s.Last = max(s.Last, r.Time)
	s.inputs = append(s.inputs, r.InputTokens)
	s.outputs = append(s.outputs, r.OutputTokens)
	return hit
}

// UniqueBlocks is the number of distinct ids.
func (s *Stats) UniqueBlocks() int { return len(s.seen) }

// HitRatio is HitBlocks ÷ BlockRefs, 0 before the first block.
func (s *Stats) HitRatio() float64 {
	if s.BlockRefs == 0 {
		return 0
	}
	return float64(s.HitBlocks) / float64(s.BlockRefs)
}

// InputQuantile and OutputQuantile return the q-quantile (0 ≤ q ≤ 1, nearest
// rank) of the lengths in tokens, 0 before the first request. They sort on
// every call.
func (s *Stats) InputQuantile(q float64) int  { return quantile(s.inputs, q) }
func (s *Stats) OutputQuantile(q float64) int { return quantile(s.outputs, q) }

func quantile(v []int, q float64) int {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	i := int(q*float64(len(v))+0.999999) - 1
	return v[min(max(i, 0), len(v)-1)]
}
