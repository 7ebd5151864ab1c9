package sparsebench

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/skepkv/skep/index/coact"
)

// The model whose queries are timed where contexts are long: the recorded one's are short.
const (
	scaleHeads = 64
	scaleDim   = 128
	scaleSteps = 2000 // remembered
	scaleUnit  = 16   // entries chosen together
)

// scaleFigures: what choosing costs in a long context, one core, and how many entries it
// takes to attention mass 0.90 of the oracle's, a layer each. Choosing is between pieces of
// clusters. The mass is that of the steps profiled; the time is with so many copies of them
// that scaleSteps are remembered, under queries of a large model (made up: what they cost
// does not depend on what they say).
func (b *run) scaleFigures(t *Trace, add addFigure) error {
	for l := range t.Layers {
		s, err := newScene(fmt.Sprintf("%s layer %d", t.Document, l), t, l, sceneOptions{profiled: -1})
		if err != nil {
			return err
		}
		b.o.Note("clustering %s", s.name)
		c, err := coact.Compact(s.bits, coact.CompactOptions{Seed: b.o.Seed, Workers: b.workers})
		if err != nil {
			return err
		}
		if err := b.scaleLayer(t, l, s, c, add); err != nil {
			return err
		}
	}
	return nil
}

func (b *run) scaleLayer(t *Trace, l int, s *scene, c coact.Compacted, add addFigure) error {
	var units [][]uint32
	unitOf := make([]uint32, s.entries)
	for _, k := range c.Clusters {
		for part := range slices.Chunk(k, scaleUnit) {
			for _, e := range part {
				unitOf[e] = uint32(len(units))
			}
			units = append(units, part)
		}
	}
	// Memory for choosing is charged to the DRAM as the recorded traces' is, but at its size:
	// there is no other charge here, so it is stated and not charged.
	hot := make([]bool, s.entries)
	left := int(b.o.DRAM * float64(s.entries))
	for _, e := range s.byFrequency() {
		if left > 0 && !s.skip[e] {
			hot[e] = true
			left--
		}
	}
	learn := func(r *coact.Recall, query []float32, step int) error {
		sum := map[uint32]float32{}
		for i, w := range s.weights(step) {
			if e := s.taught.Activated[step][i]; !hot[e] && w > 0 {
				sum[unitOf[e]] += w
			}
		}
		on := make([]uint32, 0, len(sum))
		for u := range sum {
			on = append(on, u)
		}
		slices.Sort(on)
		weights := make([]float32, len(on))
		for i, u := range on {
			weights[i] = sum[u]
		}
		return r.Learn(query, on, weights, nil)
	}
	r, err := coact.NewRecall(len(units), t.queryWidth(), coact.RecallDims, b.o.Seed)
	if err != nil {
		return err
	}
	long, err := coact.NewRecall(len(units), scaleHeads*scaleDim, coact.RecallDims, b.o.Seed)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(b.o.Seed, 4))
	made := make([]float32, scaleHeads*scaleDim)
	for i := range max(scaleSteps, len(s.profile)) {
		step := s.profile[i%len(s.profile)]
		if i < len(s.profile) {
			if err := learn(r, s.lesson(step), step); err != nil {
				return err
			}
		}
		for j := range made {
			made[j] = float32(rng.NormFloat64())
		}
		if err := learn(long, made, step); err != nil {
			return err
		}
	}
	need, oracle, base := s.entriesFor(0.9, r, units, hot)
	votes := make([]float32, len(units))
	chosen := make([]uint32, 0, s.entries)
	took := fastest(func() {
		clear(votes)
		if _, e := long.Votes(made, coact.RecallOptions{}, votes); e != nil {
			err = e
		}
		chosen = chosen[:0]
		for _, u := range coact.TopSet(votes, max(need/scaleUnit, 1), nil) {
			chosen = append(chosen, units[u]...)
		}
	})
	if err != nil {
		return err
	}
	bytes, shared := long.Bytes()
	document := fmt.Sprintf("%s layer %d", t.Document, l)
	setting := fmt.Sprintf("pieces of clusters of %d, %d steps profiled, %d remembered where timed, 64 query heads of 128", scaleUnit, len(s.profile), scaleSteps)
	for _, f := range []struct {
		name  string
		value float64
		unit  string
	}{
		{"choice, one core", took.Seconds() * 1e3, "ms"},
		{"its memory: steps and votes", float64(bytes+int64(4*len(votes))) / (1 << 20), "MiB"},
		{"its memory: routes to entries", float64(8*s.entries) / (1 << 20), "MiB"},
		{"its memory: projection, once a model", float64(shared) / (1 << 20), "MiB"},
		{"entries read to mass 0.90, of all", float64(need) / float64(s.entries), "share"},
		{"entries an oracle reads to mass 0.90, of all", float64(oracle) / float64(s.entries), "share"},
		{"mass of what is in DRAM", base, "share"},
	} {
		add(f.name, document, setting, f.value, f.unit)
	}
	return nil
}

// entriesFor is how many entries have to be read, the same number in each judged step, for
// a mean mass of target: by recalled units, and by an oracle that reads single entries; and
// the mass that is in memory anyway.
func (s *scene) entriesFor(target float64, r *coact.Recall, units [][]uint32, hot []bool) (need, oracle int, base float64) {
	gains, best := make([]float64, s.entries+1), make([]float64, s.entries+1)
	votes := make([]float32, len(units))
	atHand := func(e uint32) bool { return hot[e] || s.skip[e] }
	n := float64(len(s.judge))
	for _, step := range s.judge {
		truth := s.of(step)
		delete(s.truth, step) // of long contexts not all fit
		for e, in := range hot {
			if in {
				base += float64(truth.mass[e]) / truth.oracle / n
			}
		}
		clear(votes)
		if _, err := r.Votes(s.query(step), coact.RecallOptions{}, votes); err != nil {
			return 0, 0, 0 // widths agree
		}
		read := 0
		for _, u := range coact.Top(votes, len(votes), nil) {
			for _, e := range units[u] {
				if !atHand(e) {
					gains[read] += float64(truth.mass[e]) / truth.oracle / n
					read++
				}
			}
		}
		for i, e := range coact.Top(truth.mass, s.entries/5, atHand) {
			best[i] += float64(truth.mass[e]) / truth.oracle / n
		}
	}
	reach := func(gains []float64) int {
		got := base
		for i, g := range gains {
			if got >= target {
				return i
			}
			got += g
		}
		return s.entries
	}
	return reach(gains), reach(best), base
}
