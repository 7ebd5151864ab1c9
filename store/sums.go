package store

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/segio"
)

// attachSums gives the chunk the checksums made when its bytes were put, when the
// session asked for them and whole granules are what it asked for.
func (ch *chunk) attachSums() {
	if !ch.ses.sums {
		return
	}
	f := ch.at
	if f.memory != nil {
		f.recalled.Do(func() { ch.ses.s.recallSums(ch.chain, f) })
	}
	if f.sums.Sums == nil {
		return
	}
	granules, sums := f.sums.Granules, f.sums.Sums
	if f.opener != nil {
		sums = f.opener.Sums()
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
			out = append(out, skep.Sum{Len: granules.Span(g).Len, Seed: f.sums.Seed.Of(g), Sum: sums[g]})
		}
	}
	ch.out.Sums = out
}

// recallSums reads the checksums of a part that is in memory from its block's record.
// Only chained blocks: an unchained one may have been replaced since it was found, and
// the record be of its successor.
func (s *Store) recallSums(c *chain, f *found) {
	if !c.ns.Info.Chained {
		return
	}
	e, ok := s.index.Resolve(f.fp)
	if !ok || e.Location == 0 { // one that is not committed gets another version, and other sums, when it is
		return
	}
	rec, err := s.record(f.fp, e)
	if err == nil {
		err = s.keys.ClearSums(c.ns.Info.Tenant, &rec)
	}
	if err != nil {
		return
	}
	for i := range rec.Parts {
		p := &rec.Parts[i]
		if p.Name != c.Part || p.Size != f.size {
			continue
		}
		if sums, err := segio.SumsOf("restore", c.ns.Info.Shape, &rec, i); err == nil {
			sums.Sums = slices.Clone(sums.Sums)
			f.sums = sums
		}
	}
}
