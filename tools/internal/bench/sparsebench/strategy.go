package sparsebench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
)

// remember makes a value once for each name.
func remember[T any](b *run, name string, f func() (T, error)) (T, error) {
	if v, ok := b.memo[name]; ok {
		return v.(T), nil
	}
	v, err := f()
	if err == nil {
		b.memo[name] = v
	}
	return v, err
}

// strategy makes choices; variants are the settings that are tried on the tune questions.
type strategy struct {
	name     string
	tracks   string // "A", "B" or "AB"
	variants []float64
	make     func(b *run, s *scene, variant float64, devices int, cost layout.ReadCost) (*choice, error)
}

// errTooLarge is a variant whose index alone is more than the DRAM there is.
var errTooLarge = errors.New("index larger than the DRAM budget")

// vectorBytes is what one key takes in an index: a quarter of an entry, which is half key
// and half value, at one byte a number in place of two. All strategies are charged so.
func (b *run) vectorBytes() int64 { return b.o.EntryBytes / 4 }

// routeBytes is what finding a record takes: device and slot.
const routeBytes = 8

// settle charges index and routes and fills what is left of the DRAM.
func (b *run) settle(c *choice, index int64) (*choice, error) {
	c.index = index + int64(c.place.Records())*routeBytes
	left := int64(b.o.DRAM*float64(c.s.entries))*b.o.EntryBytes - c.index
	if left < 0 {
		return nil, errTooLarge
	}
	c.keepPopular(int(left / b.o.EntryBytes))
	return c, nil
}

func (b *run) placed(s *scene, cs [][]uint32, o layout.PlaceOptions) (*layout.Placement, error) {
	return layout.PlaceClusters(s.entries, cs, o)
}

func (b *run) strategies() []strategy {
	taus := []float64{.3, .45, .6, .7, .8, .9, .95}
	paper := func(change func(*paperOptions)) func(*run, *scene, float64, int, layout.ReadCost) (*choice, error) {
		return func(b *run, s *scene, tau float64, devices int, _ layout.ReadCost) (*choice, error) {
			p := paperOptions{cluster: coact.Options{Tau: tau, MaxSize: 128, Seed: b.o.Seed, Workers: b.workers, References: s.entries}, rule: layout.Buckets}
			if change != nil {
				change(&p)
			}
			return b.paper(s, p, devices)
		}
	}
	skep := func(change func(*skepOptions)) func(*run, *scene, float64, int, layout.ReadCost) (*choice, error) {
		return func(b *run, s *scene, recall float64, devices int, cost layout.ReadCost) (*choice, error) {
			steps, prior := math.Modf(recall)
			o := skepOptions{steps: int(steps), prior: float32(prior)}
			if change != nil {
				change(&o)
			}
			return b.skep(s, o, devices, cost)
		}
	}
	// Steps remembered, and behind the point the weight of popularity.
	one, recalls := []float64{0}, []float64{64.1, 128.1, 192.1, 256.02, 256.1, 384.1, 768.1}
	return []strategy{
		{"token-order", "AB", one, (*run).tokenOrder},
		{"blocks", "AB", []float64{4, 8, 16, 32}, (*run).blocks},
		{"quest", "B", []float64{4, 8, 16, 32}, (*run).quest},
		{"kmeans", "AB", []float64{64, 128, 256, 512, 1024}, (*run).kmeans},
		{"frequency", "AB", one, (*run).frequency},
		{"medoid-only", "AB", taus, paper(func(p *paperOptions) { p.cluster.MedoidOnly = true })},
		{"no-copies", "AB", taus, paper(func(p *paperOptions) { p.cluster.NoCopies = true })},
		{"place-one", "AB", taus, paper(func(p *paperOptions) { p.place.Whole = true })},
		{"no-balance", "AB", taus, paper(func(p *paperOptions) { p.rule = layout.FirstCopy })},
		{"no-dedup", "B", taus, paper(func(p *paperOptions) { p.repeat = true })},
		{"static-route", "B", taus, paper(func(p *paperOptions) { p.repeat, p.rule = true, layout.FirstCopy })},
		{"paper", "AB", taus, paper(nil)},
		{"shuffled", "AB", recalls, skep(func(o *skepOptions) { o.shuffle = true })},
		{"lru", "B", []float64{256.02}, skep(func(o *skepOptions) { o.lru = true })},
		{"skep", "AB", recalls, skep(nil)},
	}
}

// tokenOrder stores entries in token order, around the devices, and chooses by oracle:
// the paper's No Cluster, whose reading of all keys is not counted, for it or against it.
func (b *run) tokenOrder(s *scene, _ float64, devices int, _ layout.ReadCost) (*choice, error) {
	place, err := b.placed(s, nil, layout.PlaceOptions{Devices: devices})
	if err != nil {
		return nil, err
	}
	c := &choice{s: s, place: place, rule: layout.Balanced}
	c.rank = func(step, limit int) ([]uint32, error) { return coact.Top(s.of(step).mass, limit, c.inDRAM), nil }
	return b.settle(c, 0)
}

// fixedBlocks are n successive entries each.
func fixedBlocks(entries, n int) [][]uint32 {
	var out [][]uint32
	for from := 0; from < entries; from += n {
		var u []uint32
		for e := from; e < min(from+n, entries); e++ {
			u = append(u, uint32(e))
		}
		out = append(out, u)
	}
	return out
}

// blocks is InfLLM's way: blocks of tokens, chosen by their mean key, each read whole
// from one device.
func (b *run) blocks(s *scene, size float64, devices int, _ layout.ReadCost) (*choice, error) {
	units := fixedBlocks(s.entries, int(size))
	return b.byVector(s, units, s.meanKeys(units), layout.PlaceOptions{Devices: devices, Whole: true})
}

// byVector makes a choice of units by one key each.
func (b *run) byVector(s *scene, units [][]uint32, keys []float32, o layout.PlaceOptions) (*choice, error) {
	place, err := b.placed(s, units, o)
	if err != nil {
		return nil, err
	}
	sizes := make([]int, len(units))
	for i, u := range units {
		sizes[i] = len(u)
	}
	x, err := coact.NewIndex(s.heads(), keys, sizes)
	if err != nil {
		return nil, err
	}
	c := &choice{s: s, place: place, rule: layout.Balanced, units: units}
	c.rank = func(step, _ int) ([]uint32, error) {
		scores, err := x.Scores(s.query(step), nil)
		if err != nil {
			return nil, err
		}
		return perEntry(scores, sizes), nil
	}
	return b.settle(c, int64(len(units))*b.vectorBytes())
}

// perEntry orders units by the score an entry of theirs may expect.
func perEntry(scores []float32, sizes []int) []uint32 {
	each := make([]float32, len(scores))
	for i, v := range scores {
		each[i] = v / float32(max(sizes[i], 1))
	}
	return coact.Top(each, len(each), nil)
}

func (s *scene) meanKeys(units [][]uint32) []float32 {
	w := s.trace.keyWidth()
	out := make([]float32, len(units)*w)
	for u, set := range units {
		for _, e := range set {
			for i := range w {
				out[u*w+i] += s.layer.Keys[int(e)*w+i] / float32(len(set))
			}
		}
	}
	return out
}

// quest chooses pages of tokens by the largest score any key between the page's smallest
// and largest numbers could have (Quest, eq. of its section 3.3): two vectors a page.
func (b *run) quest(s *scene, size float64, devices int, _ layout.ReadCost) (*choice, error) {
	units := fixedBlocks(s.entries, int(size))
	place, err := b.placed(s, units, layout.PlaceOptions{Devices: devices, Whole: true})
	if err != nil {
		return nil, err
	}
	w := s.trace.keyWidth()
	low, high := make([]float32, len(units)*w), make([]float32, len(units)*w)
	for u, set := range units {
		for i := range w {
			lo, hi := float32(math.Inf(1)), float32(math.Inf(-1))
			for _, e := range set {
				k := s.layer.Keys[int(e)*w+i]
				lo, hi = min(lo, k), max(hi, k)
			}
			low[u*w+i], high[u*w+i] = lo, hi
		}
	}
	c := &choice{s: s, place: place, rule: layout.Balanced, units: units}
	h := s.heads()
	c.rank = func(step, _ int) ([]uint32, error) {
		q := s.query(step)
		total := make([]float32, len(units))
		logits := make([]float64, len(units))
		for head := range h.Query {
			qh := q[head*h.Dim:][:h.Dim]
			at := head / (h.Query / h.KV) * h.Dim
			most := math.Inf(-1)
			for u := range units {
				var sum float32
				for i, v := range qh {
					sum += max(v*low[u*w+at+i], v*high[u*w+at+i])
				}
				logits[u] = float64(sum) / math.Sqrt(float64(h.Dim))
				most = max(most, logits[u])
			}
			sum := 0.0
			for u, l := range logits {
				logits[u] = math.Exp(l - most)
				sum += logits[u]
			}
			for u, l := range logits {
				total[u] += float32(l / sum)
			}
		}
		return coact.Top(total, len(total), nil), nil
	}
	return b.settle(c, 2*int64(len(units))*b.vectorBytes())
}

// kmeans is PQCache as the paper describes it: keys grouped by similarity, groups chosen
// by their centroid.
func (b *run) kmeans(s *scene, k float64, devices int, _ layout.ReadCost) (*choice, error) {
	type grouped struct {
		cs   coact.Clusters
		keys []float32
	}
	g, err := remember(b, fmt.Sprint(s.name, " kmeans ", k), func() (g grouped, err error) {
		g.cs, g.keys, err = coact.ByKeys(s.layer.Keys, s.trace.keyWidth(), coact.KeyOptions{Clusters: min(int(k), s.entries), Seed: b.o.Seed, Workers: b.workers})
		return g, err
	})
	if err != nil {
		return nil, err
	}
	return b.byVector(s, g.cs, g.keys, layout.PlaceOptions{Devices: devices})
}

// byFrequency lists entries by popularity.
func (s *scene) byFrequency() []uint32 {
	order := make([]uint32, s.entries)
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortStableFunc(order, func(a, b uint32) int { return cmp.Compare(s.heat[b], s.heat[a]) })
	return order
}

// frequency lays entries out by popularity and always chooses the most popular.
func (b *run) frequency(s *scene, _ float64, devices int, cost layout.ReadCost) (*choice, error) {
	order := s.byFrequency()
	place, err := b.placed(s, [][]uint32{order}, layout.PlaceOptions{Devices: devices, Strip: 4})
	if err != nil {
		return nil, err
	}
	c := &choice{s: s, place: place, rule: layout.Balanced}
	c.rank = func(int, int) ([]uint32, error) { return order, nil }
	return b.settle(c, 0)
}

type paperOptions struct {
	cluster coact.Options
	place   layout.PlaceOptions
	rule    layout.AssignRule
	repeat  bool
}

// paper is Algorithm 1, medoids, eq. 7, and buckets. Clusters of entries that were never
// activated are not in its index: nothing would ever choose them well.
func (b *run) paper(s *scene, p paperOptions, devices int) (*choice, error) {
	cs, err := remember(b, fmt.Sprintf("%s %+v", s.name, p.cluster), func() (coact.Clusters, error) { return coact.Build(s.bits, p.cluster) })
	if err != nil {
		return nil, err
	}
	p.place.Devices = devices
	place, err := b.placed(s, cs, p.place)
	if err != nil {
		return nil, err
	}
	w := s.trace.keyWidth()
	var units [][]uint32
	var sizes []int
	var keys []float32
	for _, u := range cs {
		if s.bits.Count(int(u[0])) > 0 {
			units, sizes = append(units, u), append(sizes, len(u))
			keys = append(keys, s.layer.Keys[int(u[0])*w:][:w]...)
		}
	}
	if len(units) == 0 {
		return nil, fmt.Errorf("paper: nothing profiled")
	}
	x, err := coact.NewIndex(s.heads(), keys, sizes)
	if err != nil {
		return nil, err
	}
	c := &choice{s: s, place: place, rule: p.rule, units: units, repeat: p.repeat}
	c.rank = func(step, _ int) ([]uint32, error) {
		scores, err := x.Scores(s.query(step), nil)
		if err != nil {
			return nil, err
		}
		return perEntry(scores, sizes), nil
	}
	return b.settle(c, int64(len(units))*b.vectorBytes())
}

type skepOptions struct {
	shuffle bool
	lru     bool
	steps   int     // remembered, evenly taken from the profile
	prior   float32 // weight of an entry's popularity beside the votes
}

// skep is ours: compact clusters in strips with second copies, balanced reads over
// neighbours, what similar steps activated as the choice, the most popular in DRAM.
func (b *run) skep(s *scene, o skepOptions, devices int, cost layout.ReadCost) (*choice, error) {
	l, err := b.learned(s, o.shuffle)
	if err != nil {
		return nil, err
	}
	pages := int(b.o.EntryBytes / layout.PageSize)
	place, err := b.placed(s, l.compact.All(), layout.PlaceOptions{Devices: devices, Strip: 2 * layout.StripFor(cost, pages)})
	if err != nil {
		return nil, err
	}
	c := &choice{s: s, place: place, rule: layout.Balanced}
	r, index, err := b.recall(c, l, o.steps, !o.lru)
	if err != nil {
		return nil, err
	}
	votes := make([]float32, s.entries)
	c.rank = func(step, limit int) ([]uint32, error) { return c.choose(s.query(step), limit) }
	c.choose = func(query []float32, limit int) ([]uint32, error) {
		clear(votes)
		if _, err := r.Votes(query, coact.RecallOptions{}, votes); err != nil {
			return nil, err
		}
		for e, f := range s.heat {
			votes[e] += o.prior * float32(f)
		}
		return coact.Top(votes, limit, c.inDRAM), nil
	}
	if o.lru {
		return b.withLRU(c, index)
	}
	return b.settle(c, index)
}

// learned is what a profile teaches: made once a scene.
type learned struct {
	compact coact.Compacted
	lists   [][]uint32  // of each profiled step
	weights [][]float32 // and the attention of its entries
}

func (b *run) learned(s *scene, shuffle bool) (*learned, error) {
	return remember(b, fmt.Sprint(s.name, " learned ", shuffle), func() (*learned, error) {
		l := &learned{lists: make([][]uint32, len(s.profile)), weights: make([][]float32, len(s.profile))}
		bits := s.bits
		for i, step := range s.profile {
			l.lists[i], l.weights[i] = s.taught.Activated[step], s.weights(step)
		}
		if shuffle {
			bits = b.shuffled(s, l.lists)
			for i, list := range l.lists { // what an entry weighs in general is kept too
				l.weights[i] = make([]float32, len(list))
				for j, e := range list {
					l.weights[i][j] = float32(s.heat[e])
				}
			}
		}
		var err error
		l.compact, err = coact.Compact(bits, coact.CompactOptions{Seed: b.o.Seed, Workers: b.workers})
		return l, err
	})
}

// recall learns the lists without what will be in DRAM, which is what is left of the
// budget beside the recall itself: found by trying. Where DRAM changes (not fixed), all
// are learned.
func (b *run) recall(c *choice, l *learned, steps int, fixed bool) (*coact.Recall, int64, error) {
	popular := c.s.byFrequency()
	capacity := int64(b.o.DRAM*float64(c.s.entries))*b.o.EntryBytes - int64(c.place.Records())*routeBytes
	for resident := capacity / b.o.EntryBytes; ; {
		hot := make([]bool, c.s.entries)
		left := resident
		if !fixed {
			left = 0
		}
		for _, e := range popular {
			if left <= 0 {
				break
			}
			if !c.s.skip[e] {
				hot[e] = true
				left--
			}
		}
		r, err := coact.NewRecall(c.s.entries, c.s.trace.queryWidth(), coact.RecallDims, b.o.Seed)
		if err != nil {
			return nil, 0, err
		}
		// Drawn, not every so-manieth: questions have equal lengths.
		drawn := map[int]bool{}
		for _, i := range rand.New(rand.NewPCG(b.o.Seed, 3)).Perm(len(c.s.profile)) {
			if drawn[i] = true; len(drawn) == steps {
				break
			}
		}
		for i, step := range c.s.profile {
			if !drawn[i] {
				continue
			}
			if err := r.Learn(c.s.lesson(step), l.lists[i], l.weights[i], func(e uint32) bool { return c.s.skip[e] || hot[e] }); err != nil {
				return nil, 0, err
			}
		}
		index, _ := r.Bytes()
		if fits := (capacity - index) / b.o.EntryBytes; fixed && fits < resident && resident > 0 {
			resident = max(fits, 0)
			continue
		}
		return r, index, nil
	}
}

// withLRU gives the DRAM that is left to the entries read last.
func (b *run) withLRU(c *choice, index int64) (*choice, error) {
	if _, err := b.settle(c, index); err != nil {
		return nil, err
	}
	sizes := make([]int, c.s.entries)
	for i := range sizes {
		sizes[i] = 1
	}
	c.dynamic = func() cache { return coact.NewLRU(sizes, c.used) }
	c.resident = make([]bool, c.s.entries)
	return c, nil
}

// shuffled swaps activations between steps and entries so that every entry keeps how
// often it is active and every step how many it activates, and nothing else is kept. It
// changes lists in place and returns their matrix.
func (b *run) shuffled(s *scene, lists [][]uint32) *coact.Bits {
	rng := rand.New(rand.NewPCG(b.o.Seed, 0x73687566))
	sets := make([]map[uint32]bool, len(lists))
	flat := make([][]uint32, len(lists))
	total := 0
	for i, l := range lists {
		sets[i] = map[uint32]bool{}
		for _, e := range l {
			if !s.skip[e] {
				sets[i][e] = true
				flat[i] = append(flat[i], e)
			}
		}
		total += len(flat[i])
	}
	for range 10 * total {
		i, j := rng.IntN(len(flat)), rng.IntN(len(flat))
		if len(flat[i]) == 0 || len(flat[j]) == 0 {
			continue
		}
		x, y := rng.IntN(len(flat[i])), rng.IntN(len(flat[j]))
		e, f := flat[i][x], flat[j][y]
		if i == j || sets[i][f] || sets[j][e] {
			continue
		}
		delete(sets[i], e)
		delete(sets[j], f)
		sets[i][f], sets[j][e] = true, true
		flat[i][x], flat[j][y] = f, e
	}
	bits, _ := coact.NewBits(s.entries, len(lists)) // as large as one that exists
	for i := range flat {
		slices.Sort(flat[i])
		lists[i] = flat[i]
		bits.Add(i, flat[i])
	}
	return bits
}
