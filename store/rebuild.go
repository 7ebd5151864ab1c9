package store

import (
	"cmp"
	"context"
)

// Rebuild makes a new catalog for the store in o.Dir from its devices alone, which
// nobody may have open. A catalog that is there is set aside, not read and not removed,
// as catalog.old-TIME beside it. With dryRun nothing is changed.
//
// With Options.Degraded DegradedAlways it goes on without devices that are not there: blocks
// that can be read from the others are kept, the rest are named as lost, and the missing
// devices are given up: they cannot come back.
//
// Errors by kind: Locked, Missing (no device, or one that groups need), Foreign (devices
// of different stores), Version, DeviceFailed.
func Rebuild(ctx context.Context, o Options, dryRun bool, progress func(RebuildProgress)) (RebuildReport, error) {
	if err := o.prepare(); err != nil {
		return RebuildReport{}, err
	}
	o.ReadOnly = false
	if dryRun { // it says what there is without, and loses nothing
		o.Degraded, o.looking = DegradedAlways, true
	}
	s := newStore(o)
	rep, err := s.opening.Rebuild(ctx, dryRun, progress)
	s.catalog = s.opening.Catalog
	return rep, cmp.Or(err, s.abandon())
}
