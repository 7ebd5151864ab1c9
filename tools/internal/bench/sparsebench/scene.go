package sparsebench

import (
	"slices"

	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
)

// scene is one layer of one document, with its questions split: half of them are
// profiled, a quarter tunes, a quarter judges.
type scene struct {
	name    string
	trace   *Trace
	layer   *Layer
	taught  *Layer // what is learned from: layer, or another document's
	entries int
	skip    []bool // sinks and window: in DRAM in every strategy, in nobody's figures
	profile []int  // steps
	tune    []int
	judge   []int

	bits  *coact.Bits       // profiled steps, without what is skipped
	heat  []float64         // share of attention of each entry in them, mean
	learn map[int][]float32 // attention of each entry in taught's steps
	truth map[int]*stepTruth
}

// stepTruth is what a step really needs.
type stepTruth struct {
	entries []uint32  // activated, without what is skipped
	mass    []float32 // attention of each entry, 0 where skipped
	oracle  float64   // attention of entries
}

// window is how many of the latest entries are in DRAM in any case. The trace's
// questions have 16 steps, so 16 are as many as are asked.
const window = 16

// sceneOptions say what of a trace is profiled.
type sceneOptions struct {
	profiled int    // steps; negative: all of the profile's questions. More than those: of the tune questions too
	from     *Trace // learn from this document in place of the scene's own
}

func newScene(name string, t *Trace, layer int, o sceneOptions) (*scene, error) {
	s := &scene{name: name, trace: t, layer: &t.Layers[layer], entries: t.Entries, skip: make([]bool, t.Entries), truth: map[int]*stepTruth{}, learn: map[int][]float32{}}
	s.taught = s.layer
	if o.from != nil && o.from.Entries == t.Entries && len(o.from.Layers) == len(t.Layers) && o.from.queryWidth() == t.queryWidth() {
		s.taught = &o.from.Layers[layer]
	}
	for q := range t.Questions {
		for i := range t.Steps {
			step := q*t.Steps + i
			switch q % splits {
			case 0, 2:
				s.profile = append(s.profile, step)
			case 1:
				s.tune = append(s.tune, step)
			default:
				s.judge = append(s.judge, step)
			}
		}
	}
	// Sinks are known from the whole profile, whatever of it is used below.
	all, err := bitsOf(s.layer, s.entries, s.profile)
	if err != nil {
		return nil, err
	}
	for _, e := range all.Sinks() {
		s.skip[e] = true
	}
	for e := max(t.Entries-window, 0); e < t.Entries; e++ {
		s.skip[e] = true
	}
	if o.profiled > len(s.profile) {
		s.profile = append(s.profile, s.tune...)
	}
	if o.profiled >= 0 && o.profiled < len(s.profile) {
		s.profile = s.profile[:o.profiled]
	}
	if s.bits, err = bitsOf(s.taught, s.entries, s.profile); err != nil {
		return nil, err
	}
	s.bits = s.bits.Without(func(e int) bool { return s.skip[e] })
	s.heat = make([]float64, t.Entries)
	for _, step := range s.profile {
		for i, w := range s.weights(step) {
			if e := s.taught.Activated[step][i]; !s.skip[e] {
				s.heat[e] += float64(w) / float64(len(s.profile))
			}
		}
	}
	return s, nil
}

// weights are the shares of attention of what a profiled step activated.
func (s *scene) weights(step int) []float32 {
	if w := s.learn[step]; w != nil {
		return w
	}
	mass := s.trace.mass(s.taught, step)
	w, sum := make([]float32, len(s.taught.Activated[step])), float32(0)
	for i, e := range s.taught.Activated[step] {
		if !s.skip[e] {
			w[i] = mass[e]
			sum += mass[e]
		}
	}
	for i := range w {
		w[i] /= max(sum, 1e-30)
	}
	s.learn[step] = w
	return w
}

func bitsOf(l *Layer, entries int, steps []int) (*coact.Bits, error) {
	b, err := coact.NewBits(entries, len(steps))
	if err != nil {
		return nil, err
	}
	for i, step := range steps {
		b.Add(i, l.Activated[step])
	}
	return b, nil
}

func (s *scene) query(step int) []float32 {
	w := s.trace.queryWidth()
	return s.layer.Queries[step*w:][:w]
}

// lesson is a profiled step's query.
func (s *scene) lesson(step int) []float32 {
	w := s.trace.queryWidth()
	return s.taught.Queries[step*w:][:w]
}

func (s *scene) foreseen(step int) []float32 {
	w := s.trace.queryWidth()
	return s.layer.Predicted[step*w:][:w]
}

func (s *scene) heads() coact.Heads {
	return coact.Heads{Query: s.trace.QueryHeads, KV: s.trace.KVHeads, Dim: s.trace.HeadDim}
}

func (s *scene) of(step int) *stepTruth {
	if t := s.truth[step]; t != nil {
		return t
	}
	t := &stepTruth{mass: s.trace.mass(s.layer, step)}
	for e, skip := range s.skip {
		if skip {
			t.mass[e] = 0
		}
	}
	for _, e := range s.layer.Activated[step] {
		if !s.skip[e] {
			t.entries = append(t.entries, e)
			t.oracle += float64(t.mass[e])
		}
	}
	s.truth[step] = t
	return t
}

// choice is a strategy set up for a scene: what lies where, what is in DRAM, and in
// which order it would read for a step.
type choice struct {
	s      *scene
	place  *layout.Placement
	rule   layout.AssignRule
	units  [][]uint32 // what is selected and read together; nil: single entries
	repeat bool       // entries of several chosen units are read several times

	index    int64        // bytes of DRAM for choosing
	resident []bool       // entries in DRAM
	used     int          // how many
	dynamic  func() cache // makes an empty one; nil: resident stays as it is

	// rank lists units (or entries), the most promising first; of single entries as many
	// as limit. It leaves out what it expects nothing of.
	rank func(step, limit int) ([]uint32, error)
	// choose is rank for a query that need not be a step's; nil where there is none.
	choose func(query []float32, limit int) ([]uint32, error)
}

// cache is what Heat and LRU have in common.
type cache interface {
	Has(unit int) bool
	Step(activated []int) []int
}

func (c *choice) unit(u uint32) []uint32 {
	if c.units == nil {
		return []uint32{u}
	}
	return c.units[u]
}

func (c *choice) inDRAM(e uint32) bool { return c.resident[e] || c.s.skip[e] }

// take lists the entries to read when units are taken in order until budget entries are
// in, those at hand not counted. With repeat it lists each unit apart.
func (c *choice) take(order []uint32, budget int, held cache) (sets [][]uint32, distinct []uint32, units []int) {
	in := map[uint32]bool{}
	for _, u := range order {
		if len(in) >= budget {
			break
		}
		if held != nil && held.Has(int(u)) {
			units = append(units, int(u))
			continue
		}
		var set []uint32
		for _, e := range c.unit(u) {
			if c.inDRAM(e) {
				continue
			}
			if c.repeat || !in[e] {
				set = append(set, e)
			}
			if !in[e] {
				in[e] = true
				distinct = append(distinct, e)
			}
		}
		units = append(units, int(u))
		if len(set) > 0 {
			sets = append(sets, set)
		}
	}
	if !c.repeat {
		sets = [][]uint32{distinct}
	}
	return sets, distinct, units
}

// keepPopular fills what is left of capacity (entries) with the units that are worth most:
// attention's own choice on the profiled steps, per entry of memory.
func (c *choice) keepPopular(capacity int) {
	c.resident = make([]bool, c.s.entries)
	n := len(c.units)
	if c.units == nil {
		n = c.s.entries
	}
	worth := make([]float64, n)
	order := make([]uint32, n)
	for u := range n {
		order[u] = uint32(u)
		set := c.unit(uint32(u))
		for _, e := range set {
			worth[u] += c.s.heat[e] / float64(len(set))
		}
	}
	slices.SortStableFunc(order, func(a, b uint32) int {
		switch {
		case worth[a] > worth[b]:
			return -1
		case worth[a] < worth[b]:
			return 1
		}
		return 0
	})
	for _, u := range order {
		if worth[u] == 0 {
			return
		}
		var fresh []uint32
		for _, e := range c.unit(u) {
			if !c.resident[e] && !c.s.skip[e] {
				fresh = append(fresh, e)
			}
		}
		if c.used+len(fresh) > capacity {
			continue
		}
		for _, e := range fresh {
			c.resident[e] = true
		}
		c.used += len(fresh)
	}
}
