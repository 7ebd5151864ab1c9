package restore

import (
	"github.com/skepkv/skep"
)

// attachSums gives the chunk the checksums made when its bytes were put, when the
// session asked for them and whole granules are what it asked for.
func (ch *chunk) attachSums() {
	if !ch.ses.sums {
		return
	}
	f := ch.at
	if f.Memory != nil {
		f.recalled.Do(func() { ch.ses.rs.Source.Recall(&ch.chain.Asked, f) })
	}
	if f.Sums.Sums == nil {
		return
	}
	granules, sums := f.Sums.Granules, f.Sums.Sums
	if f.Opener != nil {
		sums = f.Opener.Sums()
	}
	var out []skep.Sum
	for _, s := range ch.spans {
		if s.Len == 0 {
			continue
		}
		first, last := granules.Cover(s)
		if granules.Span(first).Off != s.Off || granules.Span(last).End() != s.End() {
			return
		}
		for g := first; g <= last; g++ {
			out = append(out, skep.Sum{Len: granules.Span(g).Len, Seed: f.Sums.Seed.Of(g), Sum: sums[g]})
		}
	}
	ch.out.Sums = out
}
