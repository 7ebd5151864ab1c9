package store

import (
	"context"
	"errors"

	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// logOf is g's log on the device at position i of its list.
func (s *Store) logOf(g *group, i int) segio.Log {
	id := segment.LogID{Store: s.id, Secret: s.secret, Group: g.num, Generation: g.generation, Position: uint16(i)}
	return segio.Log{Drive: g.drives[i].io(), Segment: g.segments[i], ID: id, Down: g.drives[i].condition() == health.Dead}
}

// scanner visits the entries in all logs of a group.
type scanner func(ctx context.Context, g *group, visit func(a *segment.Append, e segment.Entry) error) error

// scanGroupLogs visits the entries in all logs of a group; those of which there are
// copies come more than once. One log that cannot be read is overlooked where there are
// others: what counts of names, purges and deletions stands on two drives.
func (s *Store) scanGroupLogs(ctx context.Context, g *group, visit func(a *segment.Append, e segment.Entry) error) error {
	unread, err := s.scanLogs(ctx, g, visit)
	if err != nil {
		return err
	}
	var failed []error
	for i, err := range unread {
		if err != nil && (err == segio.ErrNoDrive || !g.drives[i].away()) { // what only stood on such a drive is lost with it
			failed = append(failed, err)
		}
	}
	if len(failed) > 1 || len(failed) > 0 && len(failed) == len(g.drives) {
		return errors.Join(failed...)
	}
	return nil
}

// scanWholeGroup is scanGroupLogs for what may stand on one drive only. No log is overlooked but those of drives
// that were taken out of the store: another drive may be back one day, with what it has.
func (s *Store) scanWholeGroup(ctx context.Context, g *group, visit func(a *segment.Append, e segment.Entry) error) error {
	unread, err := s.scanLogs(ctx, g, visit)
	for i, e := range unread {
		if !g.drives[i].removed.Load() {
			err = errors.Join(err, e)
		}
	}
	return err
}

// scanLogs visits the entries in the logs of a group that can be read: segio.ScanGroup.
func (s *Store) scanLogs(ctx context.Context, g *group, visit func(a *segment.Append, e segment.Entry) error) (unread []error, inner error) {
	logs := make([]segio.Log, len(g.drives))
	for i := range g.drives {
		logs[i] = s.logOf(g, i)
	}
	return segio.ScanGroup(ctx, logs, s.options.OpTimeout, visit)
}
