package store

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
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
	if f.sums == nil {
		return
	}
	sums := f.sums
	if f.opener != nil {
		sums = f.opener.sums
	}
	var out []skep.Sum
	for _, s := range ch.spans {
		if s.Len == 0 {
			continue
		}
		first, last := f.granules.Cover(s)
		if f.granules.Span(first).Off != s.Off || f.granules.Span(last).End() != s.End() {
			return
		}
		for g := first; g <= last; g++ {
			out = append(out, skep.Sum{Len: f.granules.Span(g).Len, Seed: f.seed.Of(g), Sum: sums[g]})
		}
	}
	ch.out.Sums = out
}

// recallSums reads the checksums of a part that is in memory from its block's record.
// Only chained blocks: an unchained one may have been replaced since it was found, and
// the record be of its successor.
func (s *Store) recallSums(c *chain, f *found) {
	if !c.ns.info.Chained {
		return
	}
	e, ok := s.index.Resolve(f.fp)
	if !ok || e.Location == 0 { // one that is not committed gets another version, and other sums, when it is
		return
	}
	rec, err := s.record(f.fp, e)
	if err == nil {
		err = s.clearSums(c.ns.info.Tenant, &rec)
	}
	if err != nil {
		return
	}
	for i := range rec.Parts {
		p := &rec.Parts[i]
		if p.Name != c.part || p.Size != f.size {
			continue
		}
		g, err := layout.GranulesOf(c.ns.info.Shape, p.Name, p.Size)
		if err != nil || len(p.Sums) != g.N() {
			return
		}
		f.granules, f.seed = g, segment.NewSeed(rec.Instance, rec.SaltTag, rec.Key, p.Name, rec.Version)
		f.sums = append([]uint64(nil), p.Sums...)
	}
}
