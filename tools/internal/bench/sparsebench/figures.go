package sparsebench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/tools/internal/bench"
)

// figures are the numbers beside the tracks, a document each, and those that need none.
func (b *run) figures(ctx context.Context, traces []*Trace) (out []Figure, err error) {
	add := func(figure, document, setting string, value float64, unit string) {
		out = append(out, Figure{figure, document, setting, value, unit})
	}
	if len(b.o.Generate) > 0 {
		for _, t := range traces {
			if err := errors.Join(ctx.Err(), b.scaleFigures(t, add)); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	for i, t := range traces {
		b.o.Note("figures of %s", t.Document)
		other := traces[(i+1)%len(traces)]
		for _, f := range []func(*Trace, *Trace, func(string, string, string, float64, string)) error{
			b.profileLengths, b.scaling, b.memoryFigures, b.prefetchFigures, b.appendFigures, b.measureFigures,
		} {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := f(t, other, add); err != nil {
				return nil, err
			}
		}
	}
	b.o.Note("choice among 1M entries, clustering 128k entries")
	if err := b.choiceFigures(add); err != nil {
		return nil, err
	}
	return out, b.clusteringFigures(add)
}

type addFigure = func(figure, document, setting string, value float64, unit string)

const (
	figureDrive   = "pm9a3"
	figureDevices = 4
)

// ioAt is the mean I/O time of a strategy at a mass of 0.90 over a document's layers.
func (b *run) ioAt(t *Trace, o sceneOptions, st strategy, variant float64, track string, devices int, profile string) (io float64, err error) {
	total := sums{questions: map[int][]float64{}}
	for l := range t.Layers {
		s, err := newScene(fmt.Sprintf("%s layer %d %+v", t.Document, l, o.profiled), t, l, o)
		if err != nil {
			return 0, err
		}
		if o.from != nil {
			s.name += " from " + o.from.Document
		}
		c, err := st.make(b, s, variant, devices, b.cost(profile))
		if err != nil {
			return 0, err
		}
		budget := 0
		if track == "B" {
			if budget, err = b.budgetFor(c, 0.9, s.judge, profile, devices); err != nil {
				return 0, err
			}
		}
		if err := b.measure(c, s.judge, track, budget, profile, devices, &total); err != nil {
			return 0, err
		}
	}
	return total.mean().IOMs, nil
}

func (b *run) named(name string) strategy {
	for _, s := range b.strategies() {
		if s.name == name {
			return s
		}
	}
	return strategy{}
}

// profileLengths: I/O after so many observed steps, and with another document's profile.
func (b *run) profileLengths(t, other *Trace, add addFigure) error {
	const figure = "I/O at mass 0.90 by steps observed"
	io, err := b.ioAt(t, sceneOptions{profiled: 0}, b.named("kmeans"), 256, "B", figureDevices, figureDrive)
	if err != nil {
		return err
	}
	add(figure, t.Document, "0 (clusters of keys)", io*1e3, "µs")
	for _, n := range []int{16, 64, 256, 768, 1024} {
		io, err := b.ioAt(t, sceneOptions{profiled: n}, b.named("skep"), 256.1, "B", figureDevices, figureDrive)
		if err != nil {
			return err
		}
		add(figure, t.Document, fmt.Sprint(n), io*1e3, "µs")
	}
	if other == t {
		return nil
	}
	io, err = b.ioAt(t, sceneOptions{profiled: 768, from: other}, b.named("skep"), 256.1, "B", figureDevices, figureDrive)
	if err != nil {
		return err
	}
	add(figure, t.Document, "768 of document "+other.Document, io*1e3, "µs")
	return nil
}

// scaling: how much faster more devices are, the same entries asked for.
func (b *run) scaling(t, _ *Trace, add addFigure) error {
	for _, drive := range []string{"pm9a3", "900p"} {
		var one float64
		for _, n := range []int{1, 2, 4, 8} {
			io, err := b.ioAt(t, sceneOptions{profiled: -1}, b.named("skep"), 256.1, "A", n, drive)
			if err != nil {
				return err
			}
			if n == 1 {
				one = io
			}
			add("speed-up over one device, track A, "+drive, t.Document, fmt.Sprint(n), one/io, "×")
		}
	}
	return nil
}

// memoryFigures: bytes served by DRAM, eq. 6 against LRU over the same units.
func (b *run) memoryFigures(t, _ *Trace, add addFigure) error {
	for _, share := range []float64{.05, .10, .20} {
		served := map[string]float64{}
		for l := range t.Layers {
			s, err := newScene(fmt.Sprintf("%s layer %d", t.Document, l), t, l, sceneOptions{profiled: -1})
			if err != nil {
				return err
			}
			learned, err := b.learned(s, false)
			if err != nil {
				return err
			}
			var units [][]uint32
			unitOf := make([]int, s.entries)
			for _, c := range learned.compact.Clusters {
				for part := range slices.Chunk(c, 8) {
					for _, e := range part {
						unitOf[e] = len(units)
					}
					units = append(units, part)
				}
			}
			sizes, first := make([]int, len(units)), make([]float64, len(units))
			for u, part := range units {
				sizes[u] = len(part)
			}
			touched := func(step int) (on []int) {
				seen := map[int]bool{}
				for _, e := range s.of(step).entries {
					if u := unitOf[e]; !seen[u] {
						seen[u] = true
						on = append(on, u)
					}
				}
				slices.Sort(on)
				return on
			}
			for _, step := range s.profile {
				for _, u := range touched(step) {
					first[u]++
				}
			}
			capacity := int(share * float64(s.entries))
			cost := b.cost(figureDrive)
			heat := func(decay float64) cache {
				h, err2 := coact.NewHeat(sizes, first, coact.HeatOptions{Capacity: capacity, Base: cost.Least, Transfer: cost.Page, Decay: decay})
				if err2 != nil {
					err = err2
				}
				return h
			}
			lru := coact.NewLRU(sizes, capacity)
			for _, step := range s.profile {
				lru.Step(touched(step))
			}
			for name, c := range map[string]cache{"lru": lru, "eq. 6, decay 1 (paper)": heat(1), "eq. 6, decay 0.1": heat(.1), "eq. 6, decay 0.02": heat(.02)} {
				if err != nil {
					return err
				}
				for _, step := range s.judge {
					for _, e := range s.of(step).entries {
						if c.Has(unitOf[e]) {
							served[name]++
						}
					}
					c.Step(touched(step))
				}
			}
		}
		wanted := 0
		for l := range t.Layers {
			s, err := newScene(fmt.Sprintf("%s layer %d", t.Document, l), t, l, sceneOptions{profiled: -1})
			if err != nil {
				return err
			}
			for _, step := range s.judge {
				wanted += len(s.of(step).entries)
			}
		}
		add(fmt.Sprintf("share of bytes served by DRAM of %.0f %%", share*100), t.Document, "lru", served["lru"]/float64(wanted), "share")
		add(fmt.Sprintf("share of bytes served by DRAM of %.0f %%", share*100), t.Document, "eq. 6, decay 0.02", served["eq. 6, decay 0.02"]/float64(wanted), "share")
		for _, name := range []string{"eq. 6, decay 1 (paper)", "eq. 6, decay 0.1", "eq. 6, decay 0.02"} {
			add(fmt.Sprintf("bytes served by DRAM of %.0f %%, against LRU", share*100), t.Document, name, served[name]/served["lru"], "×")
		}
	}
	return nil
}

// prefetchFigures: how much of what is chosen by the foreseen query is chosen again.
func (b *run) prefetchFigures(t, _ *Trace, add addFigure) error {
	for l := range t.Layers {
		if l == 0 {
			continue // nothing is before it
		}
		s, err := newScene(fmt.Sprintf("%s layer %d", t.Document, l), t, l, sceneOptions{profiled: -1})
		if err != nil {
			return err
		}
		c, err := b.named("skep").make(b, s, 256.1, figureDevices, b.cost(figureDrive))
		if err != nil {
			return err
		}
		budget, err := b.budgetFor(c, 0.9, s.judge, figureDrive, figureDevices)
		if err != nil {
			return err
		}
		ahead, err := b.aheadOf(s)
		if err != nil {
			return err
		}
		hit, fetched, taught := 0, 0, 0
		votes := make([]float32, s.entries)
		for _, step := range s.judge {
			real, err := c.rank(step, budget)
			if err != nil {
				return err
			}
			real = slices.Clone(real)
			foreseen, err := c.choose(s.foreseen(step), budget)
			if err != nil {
				return err
			}
			for _, e := range foreseen {
				if slices.Contains(real, e) {
					hit++
				}
			}
			fetched += len(foreseen)
			clear(votes)
			if _, err := ahead.Votes(s.foreseen(step), coact.RecallOptions{}, votes); err != nil {
				return err
			}
			for e, f := range s.heat {
				votes[e] += .1 * float32(f)
			}
			for _, e := range coact.Top(votes, len(foreseen), c.inDRAM) {
				if slices.Contains(real, e) {
					taught++
				}
			}
		}
		layer := fmt.Sprintf("layer %d", l)
		add("prefetched that is fetched", t.Document, layer, float64(hit)/float64(max(fetched, 1)), "share")
		add("prefetched that is fetched, taught by foreseen queries", t.Document, layer, float64(taught)/float64(max(fetched, 1)), "share")
		add("prefetched in vain", t.Document, layer, float64(fetched-hit)*float64(b.o.EntryBytes)/1024/float64(len(s.judge)), "KiB/step")
	}
	return nil
}

// aheadOf remembers the profiled steps by the queries foreseen for them.
func (b *run) aheadOf(s *scene) (*coact.Recall, error) {
	r, err := coact.NewRecall(s.entries, s.trace.queryWidth(), coact.RecallDims, b.o.Seed)
	if err != nil {
		return nil, err
	}
	for _, step := range s.profile {
		if err := r.Learn(s.foreseen(step), s.layer.Activated[step], s.weights(step), func(e uint32) bool { return s.skip[e] }); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// appendFigures: entries taken out of the profile join clusters by what a window shows.
func (b *run) appendFigures(t, _ *Trace, add addFigure) error {
	const fresh = 256
	type count struct{ sum, n float64 }
	var original count
	ratio := map[string]*count{}
	type rule struct {
		coact.JoinRule
		doubt float64
	}
	rules := map[string]rule{"offline distance": {coact.ByDistance, 0}, "offline distance, doubt 2": {coact.ByDistance, 2}, "offline distance, doubt 4": {coact.ByDistance, 4},
		"offline distance, doubt 8": {coact.ByDistance, 8}, "eq. 9": {coact.ByShare, 0}, "key": {coact.ByKey, 0}}
	for l := range t.Layers {
		s, err := newScene(fmt.Sprintf("%s layer %d", t.Document, l), t, l, sceneOptions{profiled: -1})
		if err != nil {
			return err
		}
		from := s.entries - window - fresh
		isFresh := func(e int) bool { return e >= from && e < from+fresh }
		cs, err := coact.Build(s.bits.Without(isFresh), coact.Options{Tau: .7, MaxSize: 128, NoCopies: true, Workers: b.workers, Seed: b.o.Seed})
		if err != nil {
			return err
		}
		var medoids []uint32
		var keys []float32
		var kept coact.Clusters
		w := t.keyWidth()
		for _, c := range cs {
			if s.bits.Count(int(c[0])) > 0 && !isFresh(int(c[0])) {
				kept = append(kept, c)
				medoids = append(medoids, c[0])
				keys = append(keys, s.layer.Keys[int(c[0])*w:][:w]...)
			}
		}
		steps := slices.Concat(s.tune, s.judge)
		const watch = 64 // steps in the window: four questions
		for begin := 0; begin+watch+32 <= len(steps); begin += watch + 32 {
			after, err := coact.NewBits(s.entries, 32)
			if err != nil {
				return err
			}
			for i, step := range steps[begin+watch:][:32] {
				after.Add(i, s.of(step).entries)
			}
			for _, c := range kept {
				for _, e := range c[1:] {
					if after.Count(int(e)) > 0 {
						original.sum += after.Distance(int(c[0]), int(e))
						original.n++
					}
				}
			}
			for name, rule := range rules {
				j, err := coact.NewJoiner(medoids, keys, w, watch, .7, rule.JoinRule)
				if err != nil {
					return err
				}
				j.Doubt = rule.doubt
				for e := from; e < from+fresh; e++ {
					if err := j.Arrive(uint32(e), s.layer.Keys[e*w:][:w]); err != nil {
						return err
					}
				}
				for _, step := range steps[begin:][:watch] {
					j.Step(s.of(step).entries)
				}
				if ratio[name] == nil {
					ratio[name] = &count{}
				}
				for e := from; e < from+fresh; e++ {
					if c, ok := j.Place(uint32(e)); ok && after.Count(e) > 0 {
						ratio[name].sum += after.Distance(int(medoids[c]), e)
						ratio[name].n++
					}
				}
			}
		}
	}
	for _, name := range []string{"offline distance", "offline distance, doubt 2", "offline distance, doubt 4", "offline distance, doubt 8", "eq. 9", "key"} {
		add("appended entries' distance to their medoid ÷ members'", t.Document, name, bench.Div(bench.Div(ratio[name].sum, ratio[name].n), bench.Div(original.sum, original.n)), "×")
	}
	return nil
}

// measureFigures: the distances, each with the radius that serves the tune steps best.
func (b *run) measureFigures(t, _ *Trace, add addFigure) error {
	s, err := newScene(t.Document+" layer 1", t, min(1, len(t.Layers)-1), sceneOptions{profiled: -1})
	if err != nil {
		return err
	}
	var tune, judge [][]uint32
	for i, step := range s.tune {
		if i%8 == 0 {
			tune = append(tune, s.of(step).entries)
		}
	}
	for i, step := range s.judge {
		if i%8 == 0 {
			judge = append(judge, s.of(step).entries)
		}
	}
	for _, m := range coact.Measures() {
		// Radii at the same ranks of the distances, whatever their scale.
		taus := s.bits.Quantiles(m, []float64{.0005, .002, .008}, b.o.Seed)
		o := coact.Options{Measure: m, MaxSize: 128, Workers: b.workers, References: s.entries}
		best, _, err := coact.ChooseTau(s.bits, tune, o, coact.TauOptions{Taus: taus})
		if err != nil {
			return err
		}
		judged, _, err := coact.ChooseTau(s.bits, judge, o, coact.TauOptions{Taus: []float64{best.Tau}})
		if err != nil {
			return err
		}
		add("entries read per entry wanted, by distance", t.Document, fmt.Sprintf("%s, τ %.6g: %d clusters, %.2f copies", m, best.Tau, judged.Clusters, judged.Copies), judged.Read, "×")
	}
	return nil
}

// choiceFigures: what choosing costs with a million entries, on one core.
func (b *run) choiceFigures(add addFigure) error {
	const entries, steps, heads, dim = 1 << 20, 2000, 64, 128
	rng := rand.New(rand.NewPCG(b.o.Seed, 1))
	query := make([]float32, heads*dim)
	for i := range query {
		query[i] = float32(rng.NormFloat64())
	}
	for _, c := range []struct {
		what              string
		n, on, neighbours int
	}{
		{"entries, a twentieth of them a step, 24 nearest", entries, entries / 20, 24},
		{"clusters of 16, a fifth of them a step, 24 nearest", entries / 16, entries / 80, 24},
		{"clusters of 16, a fifth of them a step, 16 nearest", entries / 16, entries / 80, 16},
	} {
		r, err := coact.NewRecall(c.n, heads*dim, coact.RecallDims, b.o.Seed)
		if err != nil {
			return err
		}
		list := make([]uint32, 0, c.on)
		q := make([]float32, heads*dim)
		for range steps {
			list = list[:0]
			gap := 2 * c.n / c.on
			for e := rng.IntN(gap); e < c.n; e += 1 + rng.IntN(gap-1) {
				list = append(list, uint32(e))
			}
			for i := range q {
				q[i] = float32(rng.NormFloat64())
			}
			if err := r.Learn(q, list, nil, nil); err != nil {
				return err
			}
		}
		votes := make([]float32, c.n)
		took := fastest(func() {
			clear(votes)
			if _, e := r.Votes(query, coact.RecallOptions{Nearest: c.neighbours}, votes); e != nil {
				err = e
			}
			coact.TopSet(votes, c.on, nil)
		})
		if err != nil {
			return err
		}
		bytes, shared := r.Bytes()
		setting := fmt.Sprintf("recall over %s; %d steps, int8 × %d, 64 query heads", c.what, steps, coact.RecallDims)
		add("choice among 1M entries, one core", "-", setting, took.Seconds()*1e3, "ms")
		add("its memory", "-", setting, float64(bytes+shared+int64(4*c.n))/(1<<20), "MiB")
	}
	h := coact.Heads{Query: heads, KV: 8, Dim: dim}
	for _, n := range []int{512, 4096} {
		keys, sizes := make([]float32, n*h.KeyWidth()), make([]int, n)
		for i := range keys {
			keys[i] = float32(rng.NormFloat64())
		}
		for i := range sizes {
			sizes[i] = entries / n
		}
		x, err := coact.NewIndex(h, keys, sizes)
		if err != nil {
			return err
		}
		took := fastest(func() {
			if _, e := x.Scores(query, nil); e != nil {
				err = e
			}
		})
		if err != nil {
			return err
		}
		setting := fmt.Sprintf("%d medoids, float32, 64 query heads over 8 KV heads of 128", n)
		add("choice among 1M entries, one core", "-", setting, took.Seconds()*1e3, "ms")
		add("its memory", "-", setting, float64(x.Bytes())/(1<<20), "MiB")
	}
	return nil
}

// fastest of seven: others share the machine.
func fastest(f func()) time.Duration {
	best := time.Duration(1 << 62)
	for range 7 {
		begin := time.Now()
		f()
		best = min(best, time.Since(begin))
	}
	return best
}

// clusteringFigures: 128k entries × 2,000 steps, a tenth of the entries active in each, in
// topics of different sizes with noise.
func (b *run) clusteringFigures(add addFigure) error {
	const entries, steps = 128 << 10, 2000
	rng := rand.New(rand.NewPCG(b.o.Seed, 2))
	bits, err := coact.NewBits(entries, steps)
	if err != nil {
		return err
	}
	var topics [][]uint32
	for _, e := range rng.Perm(entries) {
		if k := len(topics) - 1; k < 0 || len(topics[k]) >= 16+(k%7)*32 {
			topics = append(topics, nil)
		}
		topics[len(topics)-1] = append(topics[len(topics)-1], uint32(e))
	}
	for s := range steps {
		for n := 0; n < entries/10; {
			// Squared: some topics are much more popular than others.
			topic := topics[int(float64(len(topics))*rng.Float64()*rng.Float64())]
			on := make([]uint32, 0, len(topic))
			for _, e := range topic {
				if rng.IntN(10) < 7 {
					on = append(on, e)
				}
			}
			bits.Add(s, on)
			n += len(on)
		}
	}
	begin := time.Now()
	c, err := coact.Compact(bits, coact.CompactOptions{Seed: b.o.Seed, Workers: 2})
	if err != nil {
		return err
	}
	setting := fmt.Sprintf("%d clusters, %.2f records an entry, 2 cores asked for", len(c.Clusters), float64(c.All().Members())/entries)
	add("clustering 128k entries × 2,000 steps", "-", setting, time.Since(begin).Seconds(), "s")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	add("memory of the process then", "-", setting, float64(m.Sys)/(1<<30), "GiB")
	_, err = layout.PlaceClusters(entries, c.All(), layout.PlaceOptions{Devices: 8, Strip: 4})
	return err
}
