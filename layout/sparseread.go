package layout

import (
	"cmp"
	"slices"
)

// ReadCost is how long a device is occupied by one read, in seconds: a read of p pages
// takes Base + p·Page, and at least Least. Drives limited in bytes and in operations have
// Least = 1/IOPS and no Base; a drive with a seek has Base.
type ReadCost struct {
	Base  float64 `json:"base_s"`
	Page  float64 `json:"page_s"`
	Least float64 `json:"least_s"`
}

// Of is the cost of one read.
func (c ReadCost) Of(pages int) float64 {
	if pages < 1 {
		return 0
	}
	return max(c.Least, c.Base+float64(pages)*c.Page)
}

// SparseRun is one read: Slots records of a device from Slot on. Records that were not
// asked for may lie between those that were.
type SparseRun struct {
	Device uint32
	Slot   uint32
	Slots  uint32
}

// SparsePlan is what to read for a set of entries.
type SparsePlan struct {
	From  []Spot      // of each entry asked for, in the order asked
	Runs  []SparseRun // by device and slot
	Loads []float64   // seconds each device is occupied
}

// Time is how long the plan takes: what the busiest device needs.
func (p *SparsePlan) Time() float64 {
	if len(p.Loads) == 0 {
		return 0
	}
	return slices.Max(p.Loads)
}

// Busiest is the device that Time is of.
func (p *SparsePlan) Busiest() uint32 {
	at := 0
	for d, l := range p.Loads {
		if l > p.Loads[at] {
			at = d
		}
	}
	return uint32(at)
}

// Balance is the mean load over the greatest, 1 when all devices do the same.
func (p *SparsePlan) Balance() float64 {
	most, sum := p.Time(), 0.0
	if most == 0 {
		return 1
	}
	for _, l := range p.Loads {
		sum += l
	}
	return sum / most / float64(len(p.Loads))
}

// Records counts the records read, those in gaps included.
func (p *SparsePlan) Records() int {
	n := 0
	for _, r := range p.Runs {
		n += int(r.Slots)
	}
	return n
}

// AssignRule says which copy is read.
type AssignRule uint8

const (
	// Balanced: entries available on the fewest devices first, each where the load is
	// least, then moved while that lowers the greatest loads. Ours.
	Balanced AssignRule = iota
	// Buckets is the paper's: the same order, the device with the fewest entries, no
	// regard for neighbours, no second look.
	Buckets
	// FirstCopy always reads the first copy.
	FirstCopy
)

// Assigner plans reads of one placement. It is for one goroutine at a time.
type Assigner struct {
	p     *Placement
	cost  ReadCost
	pages int // of a record
	rule  AssignRule
	most  int // records of a run, at most

	epoch  uint32
	chosen [][]uint32 // [device][slot] epoch: to be read
	wanted [][]uint32 // [device][slot] epoch: holds an entry asked for
	loads  []float64
	memo   []float64 // cost of a run of so many records
}

// NewAssigner makes an assigner for records of pages each; a run has at most maxPages.
func NewAssigner(p *Placement, cost ReadCost, pages, maxPages int, rule AssignRule) *Assigner {
	a := &Assigner{p: p, cost: cost, pages: max(pages, 1), rule: rule, loads: make([]float64, p.devices),
		chosen: make([][]uint32, p.devices), wanted: make([][]uint32, p.devices)}
	a.most = max(maxPages/a.pages, 1)
	a.memo = make([]float64, 65)
	a.reckon()
	return a
}

// Reckon takes another cost of reads for the plans to come.
func (a *Assigner) Reckon(cost ReadCost) {
	if a.cost != cost {
		a.cost = cost
		a.reckon()
	}
}

func (a *Assigner) reckon() {
	for i := range a.memo {
		a.memo[i] = a.cost.Of(i * a.pages)
	}
}

func (a *Assigner) of(records int) float64 {
	if records < len(a.memo) {
		return a.memo[records]
	}
	return a.cost.Of(records * a.pages)
}

// Plan says what to read for entries, each named once. An entry without a place has the
// zero Spot and no read.
func (a *Assigner) Plan(entries []uint32) *SparsePlan {
	a.begin()
	plan := &SparsePlan{From: make([]Spot, len(entries)), Loads: make([]float64, a.p.devices)}
	order := make([]int32, 0, len(entries))
	degree := make([]uint8, len(entries))
	for i, e := range entries {
		spots := a.p.Spots(e)
		for _, s := range spots {
			a.wanted[s.Device][s.Slot] = a.epoch
		}
		switch {
		case len(spots) == 0:
			continue
		case len(spots) == 1 || a.rule == FirstCopy:
			plan.From[i] = spots[0]
			a.add(spots[0])
			continue
		}
		degree[i] = distinctDevices(spots)
		order = append(order, int32(i))
	}
	slices.SortStableFunc(order, func(x, y int32) int { return cmp.Compare(degree[x], degree[y]) })
	if a.rule == Buckets {
		a.buckets(plan, entries, order)
	} else {
		for _, i := range order {
			plan.From[i] = a.best(a.p.Spots(entries[i]))
			a.add(plan.From[i])
		}
		a.improve(plan, entries, order)
	}
	a.collect(plan, entries)
	return plan
}

// begin forgets what was chosen, and grows with the placement.
func (a *Assigner) begin() {
	a.epoch++
	clear(a.loads)
	for d, slots := range a.p.at {
		if grow := len(slots) - len(a.chosen[d]); grow > 0 {
			a.chosen[d] = append(a.chosen[d], make([]uint32, grow)...)
			a.wanted[d] = append(a.wanted[d], make([]uint32, grow)...)
		}
	}
	if a.epoch == 0 { // once in 2³² plans
		a.epoch = 1
		for d := range a.chosen {
			clear(a.chosen[d])
			clear(a.wanted[d])
		}
	}
}

func distinctDevices(spots []Spot) uint8 {
	var set uint64 // MaxDevices fit
	n := uint8(0)
	for _, s := range spots {
		if set>>s.Device&1 == 0 {
			set |= 1 << s.Device
			n++
		}
	}
	return n
}

// sides is how many chosen records lie directly before and after a spot.
func (a *Assigner) sides(s Spot) (left, right int) {
	row := a.chosen[s.Device]
	for i := int(s.Slot) - 1; i >= 0 && row[i] == a.epoch && left < a.most; i-- {
		left++
	}
	for i := int(s.Slot) + 1; i < len(row) && row[i] == a.epoch && right < a.most; i++ {
		right++
	}
	return left, right
}

// marginal is what reading a spot adds to its device's load.
func (a *Assigner) marginal(s Spot) float64 {
	l, r := a.sides(s)
	return a.of(l+r+1) - a.of(l) - a.of(r)
}

func (a *Assigner) add(s Spot) {
	a.loads[s.Device] += a.marginal(s)
	a.chosen[s.Device][s.Slot] = a.epoch
}

func (a *Assigner) remove(s Spot) {
	a.chosen[s.Device][s.Slot] = a.epoch - 1
	a.loads[s.Device] -= a.marginal(s)
}

// best is the spot whose device is least loaded with it; of near equals the one beside
// which something else is wanted.
func (a *Assigner) best(spots []Spot) Spot {
	best, least := spots[0], 0.0
	for i, s := range spots {
		load := a.loads[s.Device] + a.marginal(s)
		row := a.wanted[s.Device]
		if s.Slot > 0 && row[s.Slot-1] == a.epoch || int(s.Slot)+1 < len(row) && row[s.Slot+1] == a.epoch {
			load -= (2*a.of(1) - a.of(2)) / 2 // half of what a pair saves
		}
		if i == 0 || load < least {
			best, least = s, load
		}
	}
	return best
}

const improvePasses = 4

// improve moves entries to another of their copies while that lowers the sum of squared
// loads, which pulls the greatest down and lets neighbours come together.
func (a *Assigner) improve(plan *SparsePlan, entries []uint32, order []int32) {
	for range improvePasses {
		moved := false
		for _, i := range order {
			from := plan.From[i]
			had := a.loads[from.Device]
			a.remove(from)
			left := a.loads[from.Device]
			to, gain := from, 0.0
			for _, s := range a.p.Spots(entries[i]) {
				if s == from {
					continue
				}
				l := a.loads[s.Device]
				with := l + a.marginal(s)
				g := had*had - left*left + l*l - with*with
				if s.Device == from.Device {
					g = had*had - with*with
				}
				if g > gain*(1+1e-9)+1e-18 {
					to, gain = s, g
				}
			}
			a.add(to)
			plan.From[i] = to
			moved = moved || to != from
		}
		if !moved {
			return
		}
	}
}

func (a *Assigner) buckets(plan *SparsePlan, entries []uint32, order []int32) {
	size := make([]int, a.p.devices)
	for i, e := range entries {
		if len(a.p.Spots(e)) == 1 {
			size[plan.From[i].Device]++
		}
	}
	for _, i := range order {
		spots := a.p.Spots(entries[i])
		best := spots[0]
		for _, s := range spots[1:] {
			if size[s.Device] < size[best.Device] {
				best = s
			}
		}
		size[best.Device]++
		plan.From[i] = best
		a.add(best)
	}
}

// collect makes runs of what was chosen, over gaps where one read is cheaper than two.
func (a *Assigner) collect(plan *SparsePlan, entries []uint32) {
	spots := make([]Spot, 0, len(entries))
	for i, s := range plan.From {
		if len(a.p.Spots(entries[i])) > 0 {
			spots = append(spots, s)
		}
	}
	slices.SortFunc(spots, func(x, y Spot) int { return cmp.Or(cmp.Compare(x.Device, y.Device), cmp.Compare(x.Slot, y.Slot)) })
	plan.Runs = a.merge(spots)
	for _, r := range plan.Runs {
		plan.Loads[r.Device] += a.of(int(r.Slots))
	}
}

func (a *Assigner) merge(spots []Spot) []SparseRun {
	var runs []SparseRun
	for _, s := range spots { // whole neighbours first
		if k := len(runs) - 1; k >= 0 && runs[k].Device == s.Device && runs[k].Slot+runs[k].Slots == s.Slot && int(runs[k].Slots) < a.most {
			runs[k].Slots++
			continue
		}
		runs = append(runs, SparseRun{s.Device, s.Slot, 1})
	}
	out := runs[:0]
	for _, r := range runs {
		if k := len(out) - 1; k >= 0 && out[k].Device == r.Device {
			span := int(r.Slot + r.Slots - out[k].Slot)
			if span <= a.most && a.of(span) < a.of(int(out[k].Slots))+a.of(int(r.Slots)) {
				out[k].Slots = uint32(span)
				continue
			}
		}
		out = append(out, r)
	}
	return out
}
