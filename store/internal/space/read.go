package space

import (
	"context"
	"errors"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// WholePolicy is how blocks of g are read as a whole: from the drive in the best condition, and what a
// drive gives that is wrong counts against it.
func (t *Table) WholePolicy(g *Group) segio.Policy {
	return segio.Policy{
		Timeout: t.Timeout,
		Rank:    func(i int) int { return g.Drives[i].ReadRank() },
		Wrong:   func(i int) { g.Drives[i].GaveWrong() },
	}
}

// ReadVerified reads a whole block into buf: segio.ReadBlock.
func (t *Table) ReadVerified(ctx context.Context, g *Group, shape skep.Shape, rec *segment.Record,
	buf []byte) (got []byte, err error) {
	return segio.ReadBlock(ctx, g, shape, rec, buf, t.WholePolicy(g))
}

// ReadOpening is ReadVerified for an open, which asks no drive again that did not answer once.
func (t *Table) ReadOpening(ctx context.Context, g *Group, shape skep.Shape, rec *segment.Record,
	buf []byte) (got []byte, err error) {
	p := t.WholePolicy(g)
	p.Rank = func(i int) int {
		if g.Drives[i].silent.Load() {
			return segio.NoPlace
		}
		return g.Drives[i].ReadRank()
	}
	p.Silent = func(i int) {
		if d := g.Drives[i]; !d.silent.Swap(true) {
			t.Log.Warn("drive does not answer while the store opens: it is read around", "device", d.Path, "after",
				t.Timeout)
		}
	}
	return segio.ReadBlock(ctx, g, shape, rec, buf, p)
}

// LogOf is g's log on the device at position i of its list.
func (t *Table) LogOf(g *Group, i int) segio.Log {
	store, secret := t.Identity()
	id := segment.LogID{Store: store, Secret: secret, Group: g.Num, Generation: g.Generation, Position: uint16(i)}
	return segio.Log{Drive: g.Drives[i].IO(), Segment: g.Segments[i], ID: id,
		Down: g.Drives[i].Condition() == health.Dead}
}

// Scanner visits the entries in all logs of a group.
type Scanner func(ctx context.Context, g *Group, visit func(a *segment.Append, e segment.Entry) error) error

// ScanGroupLogs visits the entries in all logs of a group; those of which there are
// copies come more than once. One log that cannot be read is overlooked where there are
// others: what counts of names, purges and deletions stands on two drives at least. So is that of a
// drive whose logs nobody needs (Resaid).
func (t *Table) ScanGroupLogs(ctx context.Context, g *Group, visit func(a *segment.Append,
	e segment.Entry) error) error {
	unread, err := t.scanLogs(ctx, g, visit)
	if err != nil {
		return err
	}
	var failed []error
	for i, err := range unread {
		if g.Drives[i].Resaid.Load() {
			continue
		}
		// what only stood on such a drive is lost with it
		if err != nil && (err == segio.ErrNoDrive || !g.Drives[i].Away()) {
			failed = append(failed, err)
		}
	}
	if len(failed) > 1 || len(failed) > 0 && len(failed) == len(g.Drives) {
		return errors.Join(failed...)
	}
	return nil
}

// ScanWholeGroup is ScanGroupLogs for what may stand on one drive only. No log is overlooked but those of drives
// that were taken out of the store, or given up: another drive may be back one day, with what it has.
func (t *Table) ScanWholeGroup(ctx context.Context, g *Group, visit func(a *segment.Append,
	e segment.Entry) error) error {
	unread, err := t.scanLogs(ctx, g, visit)
	for i, e := range unread {
		if !g.Drives[i].out() {
			err = errors.Join(err, e)
		}
	}
	return err
}

// scanLogs visits the entries in the logs of a group that can be read: segio.ScanGroup.
func (t *Table) scanLogs(ctx context.Context, g *Group, visit func(a *segment.Append,
	e segment.Entry) error) (unread []error, inner error) {
	logs := make([]segio.Log, len(g.Drives))
	for i := range g.Drives {
		logs[i] = t.LogOf(g, i)
	}
	return segio.ScanGroup(ctx, logs, t.Timeout, visit)
}
