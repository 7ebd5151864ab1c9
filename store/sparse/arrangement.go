package sparse

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
)

// arrangement says where a layer's records are and which entries form clusters.
type arrangement struct {
	gen      uint64
	entries  int
	tau      float64    // radius of the clusters
	at       [][]uint32 // [device as dealt][slot] entry
	clusters coact.Clusters
	keys     []float32 // of the clusters' representatives
	first    bool      // it was read in the form of "SKARRN01"
	rows     int64     // bytes of it that the Store keeps as rows; 0: none, or they could not be kept

	// Made of the above by settle.
	placement *layout.Placement // with devices as they are
	where     [][]blockAt       // [device as it is][slot ÷ 64]
	index     *coact.Index
	placedAs  []int // runs of each cluster when it was laid out
	overgrown int   // clusters that appended entries have given more runs than they should have
	assigners sync.Pool

	// readers is shared by reads and taken whole before records are deleted. All
	// arrangements of one generation have the same.
	readers *sync.RWMutex
}

// blockAt names a record block.
type blockAt struct{ device, block int }

func blocksOf(slots []uint32) int { return (len(slots) + slotsPerBlock - 1) / slotsPerBlock }

func (a *arrangement) recordKeys(k *sparseContext, layer int) []skep.Key {
	var keys []skep.Key
	for d, slots := range a.at {
		for b := range blocksOf(slots) {
			keys = append(keys, k.recordKey(layer, a.gen, d, b))
		}
	}
	return keys
}

// settle asks where the blocks are and makes what is reckoned with.
func (a *arrangement) settle(k *sparseContext, layer int) error {
	if a.readers == nil {
		a.readers = &sync.RWMutex{}
	}
	n := max(k.s.devices(), len(a.at))
	real := make([][]uint32, n)
	a.where = make([][]blockAt, n)
	for d, slots := range a.at {
		for b := range blocksOf(slots) {
			at := d
			if k.s.locates {
				if dev, err := k.s.st.DeviceOf(k.records, k.recordKey(layer, a.gen, d, b)); err == nil && dev < n {
					at = dev
				}
			}
			part := slices.Clone(slots[b*slotsPerBlock : min(len(slots), (b+1)*slotsPerBlock)])
			for len(part) < slotsPerBlock {
				part = append(part, layout.NoEntry)
			}
			real[at] = append(real[at], part...)
			a.where[at] = append(a.where[at], blockAt{d, b})
		}
	}
	var err error
	if a.placement, err = layout.PlacementOf(a.entries, real); err != nil {
		return err
	}
	sizes := make([]int, len(a.clusters))
	for i, c := range a.clusters {
		sizes[i] = len(c)
	}
	if len(a.keys) == len(sizes)*k.heads.KeyWidth() && len(sizes) > 0 {
		if a.index, err = coact.NewIndex(k.heads, a.keys, sizes); err != nil {
			return err
		}
	}
	runs := make([]int, len(a.clusters))
	for i, c := range a.clusters {
		runs[i] = a.placement.RunsOf(c)
		if a.placedAs != nil && i < len(a.placedAs) && runs[i] > layout.RewriteRuns(a.placedAs[i]) {
			a.overgrown++
		}
	}
	if a.placedAs == nil {
		a.placedAs = runs
	}
	pages := int(k.record / layout.PageSize)
	a.assigners.New = func() any {
		return layout.NewAssigner(a.placement, k.cost(), pages, slotsPerBlock*pages, layout.Balanced)
	}
	return nil
}

// bytes is the memory of routes and keys.
func (a *arrangement) bytes() int64 {
	n := int64(a.placement.Records())*(8+4+4) + int64(a.entries)*24 + int64(a.clusters.Members())*4
	if a.index != nil {
		n += a.index.Bytes()
	}
	return n + int64(4*len(a.keys))
}

func (a *arrangement) plan(entries []uint32, cost layout.ReadCost) *layout.SparsePlan {
	as := a.assigners.Get().(*layout.Assigner)
	defer a.assigners.Put(as)
	as.Reckon(cost)
	return as.Plan(entries)
}

// cost is what reads are reckoned with, as it is known now.
func (k *sparseContext) cost() layout.ReadCost { return k.s.drives.now() }

// deal lays clusters out for a new generation.
func (k *sparseContext) deal(gen uint64, entries int, clusters coact.Clusters, second coact.Clusters) (*arrangement, error) {
	pages := int(k.record / layout.PageSize)
	p, err := layout.PlaceClusters(entries, slices.Concat(clusters, second),
		layout.PlaceOptions{Devices: k.s.devices(), Strip: 2 * layout.StripFor(k.cost(), pages)})
	if err != nil {
		return nil, err
	}
	a := &arrangement{gen: gen, entries: entries, tau: firstTau, clusters: clusters}
	for d := range p.Devices() {
		a.at = append(a.at, p.Slots(d))
	}
	return a, nil
}

// build makes a layer's first arrangement, by keys, and stores its records.
func (k *sparseContext) build(ctx context.Context, n int) error {
	y := k.layers[n]
	recs, err := k.transposed(ctx, n)
	if err != nil {
		return err
	}
	defer recs.release()
	keys := k.keysOf(recs.at, k.head.Entries)
	clusters := coact.Clusters{}
	if keys == nil { // element types we do not read: neighbours in the text
		for e := 0; e < k.head.Entries; e += firstClusterSize {
			var c []uint32
			for i := e; i < min(e+firstClusterSize, k.head.Entries); i++ {
				c = append(c, uint32(i))
			}
			clusters = append(clusters, c)
		}
	} else if clusters, _, err = coact.ByKeys(keys, k.heads.KeyWidth(), coact.KeyOptions{
		Clusters: max(k.head.Entries/firstClusterSize, 1), Seed: k.head.Seed, Workers: k.s.o.Workers}); err != nil {
		return err
	}
	a, err := k.deal(1, k.head.Entries, clusters, nil)
	if err != nil {
		return err
	}
	a.keys, a.readers = medoidKeys(keys, k.heads.KeyWidth(), clusters), &sync.RWMutex{}
	y.mu.Lock()
	y.mu.arrangement = a // a drop of what fails here names the records by it
	y.mu.Unlock()
	if _, err := k.writeRecords(ctx, n, a, recs.at, nil); err != nil {
		return err
	}
	if err := y.put(ctx, a); err != nil {
		return err
	}
	return y.adopt(a)
}

// firstClusterSize is the mean size of clusters made from keys.
const firstClusterSize = 16

func medoidKeys(keys []float32, width int, clusters coact.Clusters) []float32 {
	if keys == nil {
		return nil
	}
	out := make([]float32, 0, len(clusters)*width)
	for _, c := range clusters {
		out = append(out, keys[int(c[0])*width:][:width]...)
	}
	return out
}

// adopt puts an arrangement in force, with memory and window set up for it.
func (y *layer) adopt(a *arrangement) error {
	if err := a.settle(y.k, y.n); err != nil {
		return err
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.mu.arrangement = a
	y.mu.share, y.mu.best, y.mu.joined = 0, 0, nil
	if y.mu.madeAt = 0; a.gen > 1 {
		y.mu.madeAt = y.mu.profile.Steps()
	}
	if err := y.followLocked(); err != nil {
		return err
	}
	return y.watchLocked()
}

// followLocked sets up the memory for the clusters there are. REQUIRES: mu.
func (y *layer) followLocked() error {
	a, k := y.mu.arrangement, y.k
	y.mu.units, y.mu.unitOf = nil, make([]int32, a.entries)
	for e := range y.mu.unitOf {
		y.mu.unitOf[e] = -1
	}
	for _, c := range a.clusters {
		for part := range slices.Chunk(c, unitSize) {
			for _, e := range part {
				y.mu.unitOf[e] = int32(len(y.mu.units))
			}
			y.mu.units = append(y.mu.units, part)
		}
	}
	sizes, first := make([]int, len(y.mu.units)), make([]float64, len(y.mu.units))
	// An entry counts as active by its share of attention, where that was observed, in all
	// as often as entries were.
	popular, counts, shares, steps := make([]float32, y.mu.recall.Entries()), 0.0, 0.0, y.mu.profile.Counts()
	if err := y.mu.recall.Popularity(popular); err != nil {
		return err
	}
	for _, n := range steps {
		counts += float64(n)
	}
	for _, v := range popular {
		shares += float64(v)
	}
	for u, part := range y.mu.units {
		sizes[u] = len(part)
		for _, e := range part {
			if int(e) < len(popular) && shares > 0 {
				first[u] += float64(popular[e]) * counts / shares / float64(len(part))
			} else if int(e) < len(steps) {
				first[u] += float64(steps[e]) / float64(len(part))
			}
		}
	}
	cost := k.cost()
	heat, err := coact.NewHeat(sizes, first, coact.HeatOptions{Capacity: int(k.head.DRAM / k.record),
		Base: cost.Least, Transfer: cost.Page * float64(k.record/layout.PageSize), Decay: heatDecay})
	if err != nil {
		return err
	}
	y.mu.heat = heat
	for e := range y.mu.hot {
		if !y.hotLocked(e) {
			delete(y.mu.hot, e)
		}
	}
	return nil
}

// hotLocked reports whether an entry's unit is to be in memory. REQUIRES: mu.
func (y *layer) hotLocked(e uint32) bool {
	return int(e) < len(y.mu.unitOf) && y.mu.unitOf[e] >= 0 && y.mu.heat.Has(int(y.mu.unitOf[e]))
}

// watchLocked begins to watch for what the window's entries are activated with.
// REQUIRES: mu.
func (y *layer) watchLocked() (err error) {
	a, k := y.mu.arrangement, y.k
	y.mu.joiner = nil
	if a.index == nil {
		return nil
	}
	medoids := make([]uint32, len(a.clusters))
	for i, c := range a.clusters {
		medoids[i] = c[0]
	}
	if y.mu.joiner, err = coact.NewJoiner(medoids, a.keys, k.heads.KeyWidth(), min(k.s.o.Window, coact.MaxJoinWindow), a.tau, coact.ByDistance); err != nil {
		return err
	}
	for e, rec := range y.mu.window {
		if err := y.mu.joiner.Arrive(e, k.keysOf(func(uint32) []byte { return rec }, 1)); err != nil {
			return err
		}
	}
	return nil
}

const (
	// heatDecay is what a unit's frequency loses in a step that does not activate it. The
	// paper's 1 forgets all that is used in less than half of the steps; see docs/notebook/sparse.md.
	heatDecay = 0.02
	// firstTau is the radius before one was chosen: within it of a medoid an appended entry
	// joins clusters made from keys.
	firstTau = 0.7
)

// errNoArrangement says that a layer of a context that is described has no arrangement.
var errNoArrangement = errors.New("sparse: a layer's arrangement is not stored")

// load reads a layer's arrangement and what was observed.
func (k *sparseContext) load(ctx context.Context, n int) error {
	y := k.layers[n]
	a, err := y.stored(ctx)
	if err != nil {
		return err
	}
	// What is damaged of these is learned anew: without it all records can be read, and dropped. What cannot be
	// read now is there yet, and would be written over.
	for what, take := range map[string]func([]byte) error{
		"profile": y.mu.profile.UnmarshalBinary,
		"recall": func(data []byte) error {
			r, err := coact.UnmarshalRecall(data)
			if err == nil {
				y.mu.recall = r
			}
			return err
		},
	} {
		data, err := k.getMeta(ctx, k.key(what, uint64(n)))
		if err == nil && data != nil {
			err = take(data)
		}
		if err != nil && !errors.Is(err, skep.Damaged) {
			return err
		}
	}
	return y.adopt(a)
}
