package sparsebench

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/skepkv/skep/layout"
)

// budgetFor is how many entries must be read for the mean mass over steps to be target.
func (b *run) budgetFor(c *choice, target float64, steps []int, profile string, devices int) (int, error) {
	if c.dynamic != nil {
		return b.budgetByTrying(c, target, steps, profile, devices)
	}
	budgets := make([]int, 0, 64)
	for k := 0; k <= c.s.entries; k += max(8, k/12) {
		budgets = append(budgets, k)
	}
	budgets = append(budgets, c.s.entries)
	mass := make([]float64, len(budgets))
	for _, step := range steps {
		order, err := c.rank(step, c.s.entries)
		if err != nil {
			return 0, err
		}
		truth := c.s.of(step)
		got := c.atHand(truth)
		in := map[uint32]bool{}
		i := 0
		for _, u := range order {
			for ; i < len(budgets) && len(in) >= budgets[i]; i++ {
				mass[i] += got / truth.oracle
			}
			for _, e := range c.unit(u) {
				if !in[e] && !c.inDRAM(e) {
					in[e] = true
					got += float64(truth.mass[e])
				}
			}
		}
		for ; i < len(budgets); i++ {
			mass[i] += got / truth.oracle
		}
	}
	want := target * float64(len(steps))
	for i, m := range mass {
		if m >= want {
			if i == 0 || m == mass[i-1] {
				return budgets[i], nil
			}
			share := (want - mass[i-1]) / (m - mass[i-1])
			return budgets[i-1] + int(math.Round(share*float64(budgets[i]-budgets[i-1]))), nil
		}
	}
	return c.s.entries, nil
}

// budgetByTrying is budgetFor where what is in DRAM depends on what was read before.
func (b *run) budgetByTrying(c *choice, target float64, steps []int, profile string, devices int) (int, error) {
	low, high := 0, c.s.entries
	for high-low > 2 {
		mid := (low + high) / 2
		sum := sums{questions: map[int][]float64{}}
		if err := b.measure(c, steps, "B", mid, profile, devices, &sum); err != nil {
			return 0, err
		}
		if sum.Row.Mass/float64(sum.Steps) < target {
			low = mid
		} else {
			high = mid
		}
	}
	return high, nil
}

// atHand is the attention that what is in DRAM has.
func (c *choice) atHand(t *stepTruth) float64 {
	got := 0.0
	for e, in := range c.resident {
		if in {
			got += float64(t.mass[e])
		}
	}
	return got
}

func (b *run) measure(c *choice, steps []int, track string, budget int, profile string, devices int, sum *sums) error {
	d := b.drive(profile)
	if profile == nativeDrive {
		if err := b.native.write(context.Background(), c.place); err != nil {
			return err
		}
	}
	pages := int(b.o.EntryBytes / layout.PageSize)
	a := layout.NewAssigner(c.place, b.cost(profile), pages, maxReadPages, c.rule)
	var later []nativeStep
	var held cache
	if c.dynamic != nil {
		held = c.dynamic()
	}
	for _, step := range steps {
		truth := c.s.of(step)
		var sets [][]uint32
		var distinct []uint32
		if track == "A" {
			distinct = truth.entries
			sets = [][]uint32{distinct}
		} else {
			begin := time.Now()
			order, err := c.rank(step, budget)
			sum.SelectMs += time.Since(begin).Seconds() * 1e3
			if err != nil {
				return err
			}
			var units []int
			sets, distinct, units = c.take(order, budget, held)
			if held != nil {
				for _, u := range units {
					if held.Has(u) {
						for _, e := range c.unit(uint32(u)) {
							sum.Mass += float64(truth.mass[e]) / truth.oracle
						}
					}
				}
				held.Step(units)
			}
		}
		loads := make([]float64, devices)
		delivered := map[uint32]bool{}
		var plans []*layout.SparsePlan
		for _, set := range sets {
			plan := a.Plan(set)
			plans = append(plans, plan)
			for i, l := range plan.Loads {
				loads[i] += l
			}
			sum.Reads += float64(len(plan.Runs))
			sum.Bytes += float64(plan.Records()) * float64(b.o.EntryBytes)
			sum.Runs += float64(neighbours(plan.From))
			for _, r := range plan.Runs {
				for i := range r.Slots {
					delivered[c.place.Slots(int(r.Device))[r.Slot+i]] = true
				}
			}
		}
		busiest := slices.Max(loads) * 1e3
		q := step / c.s.trace.Steps
		if profile == nativeDrive {
			later = append(later, nativeStep{q, plans})
		} else {
			sum.took(q, busiest)
		}
		if busiest > 0 {
			total := 0.0
			for _, l := range loads {
				total += l
			}
			sum.Balance += total * 1e3 / busiest / float64(devices)
		} else {
			sum.Balance++
		}
		got := c.atHand(truth)
		for e := range delivered {
			if !c.inDRAM(e) {
				got += float64(truth.mass[e])
			}
		}
		sum.Mass += got / truth.oracle
		bytes := float64(len(distinct)) * float64(b.o.EntryBytes)
		all := float64(devices)
		fewest := math.Max(math.Min(all, float64(len(distinct))), math.Ceil(bytes/(maxReadPages*layout.PageSize)))
		sum.BoundMs += 1e3 * math.Max(bytes/(all*d.BytesPerSecond), fewest/(all*d.IOPS))
		sum.EntryMs += 1e3 * math.Max(bytes/(all*d.BytesPerSecond), float64(len(distinct))/(all*d.IOPS))
		sum.Steps++
	}
	return b.readSteps(c.place, later, sum)
}

func (t *sums) took(question int, ms float64) {
	t.IOMs += ms
	t.questions[question] = append(t.questions[question], ms)
}

// nativeStep is a step to be read from real devices.
type nativeStep struct {
	question int
	plans    []*layout.SparsePlan
}

// readSteps reads steps one after another with nothing between them: a drive, and more so
// the kernel's throttle of an emulated one, makes up for idle time. For the same reason
// some of them are read before, unmeasured.
func (b *run) readSteps(p *layout.Placement, steps []nativeStep, sum *sums) error {
	for _, s := range steps[:min(len(steps), 64)] {
		if _, err := b.native.read(p, s.plans); err != nil {
			return err
		}
	}
	for _, s := range steps {
		took, err := b.native.read(p, s.plans)
		if err != nil {
			return err
		}
		sum.took(s.question, took.Seconds()*1e3)
	}
	return nil
}

// neighbours counts runs of neighbouring spots.
func neighbours(spots []layout.Spot) int {
	s := slices.Clone(spots)
	slices.SortFunc(s, func(x, y layout.Spot) int {
		return cmp.Or(cmp.Compare(x.Device, y.Device), cmp.Compare(x.Slot, y.Slot))
	})
	n := 0
	for i, v := range s {
		if i == 0 || v.Device != s[i-1].Device || v.Slot > s[i-1].Slot+1 {
			n++
		}
	}
	return n
}
