package sparse

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/skepkv/skep/layout"
)

// drives is what reads cost, measured: T = wait + base × runs + page × pages of the busiest
// drive of a batch, fitted by least squares of relative errors to batches that completed.
// It begins with a drive of the middle, 3 GB/s and 500,000 reads a second, is taught by
// reads of both kinds when the first context is opened, and by every Fetch after.
type drives struct {
	fixed bool // Options.Cost says it

	mu     sync.Mutex
	xx     [3][3]float64 // of wait, runs, pages; weighted
	xy     [3]float64
	cost   layout.ReadCost
	probed bool
}

const (
	driveForgets = 0.998 // weight of a batch after the next
	maxBasePages = 64    // a run never counts as more than so many pages
)

func newDrives(fixed layout.ReadCost) *drives {
	d := &drives{cost: layout.ReadCost{Base: 1/5e5 - layout.PageSize/3e9, Page: layout.PageSize / 3e9}}
	if fixed != (layout.ReadCost{}) {
		d.fixed, d.cost = true, fixed
	}
	return d
}

// now is the cost to plan with.
func (d *drives) now() layout.ReadCost {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cost
}

// learn takes a batch whose busiest drive had so many runs and pages.
func (d *drives) learn(runs, pages int, took time.Duration) {
	t := took.Seconds()
	if d.fixed || runs < 1 || pages < runs || t <= 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	x := [3]float64{1 / t, float64(runs) / t, float64(pages) / t}
	for i := range x {
		for j := range x {
			d.xx[i][j] = d.xx[i][j]*driveForgets + x[i]*x[j]
		}
		d.xy[i] = d.xy[i]*driveForgets + x[i]
	}
	// The best fit without a negative number: of all sets of terms that have pages.
	best := 0.0
	for set := range 4 {
		var b [3]float64
		terms := []int{2}
		if set&1 != 0 {
			terms = append(terms, 1)
		}
		if set&2 != 0 {
			terms = append(terms, 0)
		}
		if !d.solve(terms, &b) || b[0] < 0 || b[1] < 0 || b[2] <= 0 {
			continue
		}
		if explained := b[0]*d.xy[0] + b[1]*d.xy[1] + b[2]*d.xy[2]; explained > best {
			best = explained
			d.cost = layout.ReadCost{Base: min(b[1], maxBasePages*b[2]), Page: b[2]}
		}
	}
}

// solve fits the terms alone, by elimination; false when the batches do not tell them
// apart. REQUIRES: mu.
func (d *drives) solve(terms []int, b *[3]float64) bool {
	n := len(terms)
	var m [3][4]float64
	for i, p := range terms {
		for j, q := range terms {
			m[i][j] = d.xx[p][q]
		}
		m[i][n] = d.xy[p]
	}
	for i := range n { // positive definite but for rounding: no pivots
		if m[i][i] <= 1e-9*d.xx[terms[i]][terms[i]] {
			return false
		}
		for r := range n {
			if r == i {
				continue
			}
			f := m[r][i] / m[i][i]
			for c := i; c <= n; c++ {
				m[r][c] -= f * m[i][c]
			}
		}
	}
	for i, p := range terms {
		b[p] = m[i][n] / m[i][i]
	}
	return true
}

const (
	probeRounds  = 3
	probeSingles = 16 // of each drive
	probeBlocks  = 2
)

// probe reads single records and whole blocks of every drive, a few milliseconds' worth,
// once for all contexts. What cannot be read teaches nothing.
func (k *sparseContext) probe(ctx context.Context) {
	d := k.s.drives
	d.mu.Lock()
	done := d.probed || d.fixed
	d.probed = true
	d.mu.Unlock()
	if done {
		return
	}
	y := k.layers[0]
	a := y.arranged()
	a.readers.RLock()
	defer a.readers.RUnlock()
	rng := rand.New(rand.NewPCG(k.head.Seed, 0x70726f6265))
	for range probeRounds {
		for _, b := range []struct{ reads, slots int }{{probeSingles, 1}, {probeBlocks, slotsPerBlock}} {
			var runs []layout.SparseRun
			for dev, blocks := range a.where {
				for i := 0; len(blocks) > 0 && i < b.reads; i++ {
					slot := rng.IntN(len(blocks)) * slotsPerBlock
					if b.slots == 1 {
						slot += rng.IntN(slotsPerBlock)
					}
					runs = append(runs, layout.SparseRun{Device: uint32(dev), Slot: uint32(slot), Slots: uint32(b.slots)})
				}
			}
			begin := time.Now()
			if _, err := y.readRuns(ctx, a, runs, nil, nil); err != nil {
				return
			}
			d.learn(b.reads, b.reads*b.slots*int(k.record/layout.PageSize), time.Since(begin))
		}
	}
}
