package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// Len is how many segments the group has.
func (g *group) Len() int { return len(g.drives) }

// Segment is the i-th: its device, and where on that it begins.
func (g *group) Segment(i int) (dev device.Device, off int64) {
	d := g.drives[i]
	return d.dev, d.segmentOffset(g.segments[i])
}

// Drive is the drive that segment i is on.
func (g *group) Drive(i int) restore.Drive { return g.drives[i] }

// Healthy says that no drive of the group needs to be read around.
func (g *group) Healthy() bool {
	for _, d := range g.drives {
		if d.condition() != health.Healthy {
			return false
		}
	}
	return true
}

// Queue is what waits to be read from d.
func (d *drive) Queue() *restore.Queue { return &d.reads }

// Number is d's among the store's drives.
func (d *drive) Number() int { return int(d.index) }

// Submit is its device's.
func (d *drive) Submit(ops []*device.Op) error { return d.dev.Submit(ops) }

// GaveWrong counts a read that brought what was not written.
func (d *drive) GaveWrong() { d.standing.Wrong.Add(1) }

// ReadCost is what it costs to read from d: less is better, segio.NoPlace and above never.
func (d *drive) ReadCost() int {
	if c := d.condition(); c < health.Dead {
		return int(c)
	}
	return segio.NoPlace
}

// wholePolicy is how blocks of g are read as a whole: from the drive in the best condition, and what a
// drive gives that is wrong counts against it.
func (s *Store) wholePolicy(g *group) segio.Policy {
	return segio.Policy{
		Timeout: s.options.OpTimeout,
		Cost:    func(i int) int { return g.drives[i].ReadCost() },
		Wrong:   func(i int) { g.drives[i].GaveWrong() },
	}
}

// readVerified reads a whole block into buf: segio.ReadBlock.
func (s *Store) readVerified(ctx context.Context, g *group, shape skep.Shape, rec *segment.Record, buf []byte) (got []byte, err error) {
	return segio.ReadBlock(ctx, g, shape, rec, buf, s.wholePolicy(g))
}

// readOpening is readVerified for an open, which asks no drive again that did not answer once.
func (s *Store) readOpening(ctx context.Context, g *group, shape skep.Shape, rec *segment.Record, buf []byte) (got []byte, err error) {
	p := s.wholePolicy(g)
	p.Cost = func(i int) int {
		if g.drives[i].silent.Load() {
			return segio.NoPlace
		}
		return g.drives[i].ReadCost()
	}
	p.Silent = func(i int) {
		if d := g.drives[i]; !d.silent.Swap(true) {
			s.log.Warn("drive does not answer while the store opens: it is read around", "device", d.path, "after", s.options.OpTimeout)
		}
	}
	return segio.ReadBlock(ctx, g, shape, rec, buf, p)
}
