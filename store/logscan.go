package store

import (
	"context"
	"errors"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// A log is read from its segment's end downwards, in pieces: the first holds most logs
// whole, and of none is much read that is not its own.
const (
	logPiece = 256 << 10
	// logBeyond is how many pages after the last whole append are looked at before the
	// log is taken to have ended: a page of the log that was lost is one of few.
	logBeyond = 32
)

// scanLog visits the whole appends in the log of one segment, in order. buf is memory
// for the reads, aligned, of logPiece bytes; nothing of an append may be kept. After an
// error of kind Deadline a drive may still write to buf.
func (s *Store) scanLog(ctx context.Context, d *drive, seg uint32, id segment.LogID, buf []byte,
	visit func(a *segment.Append) error) (segment.LogEnd, error) {
	r := segment.NewLogReader(id, true)
	bottom, n := s.segBytes, int64(logPiece)
	for {
		a, err := r.Next()
		if err == nil {
			if err := visit(&a); err != nil {
				return r.End(), err
			}
			continue
		}
		ended := !r.Midway() && r.Looked() > 0 && r.Looked()-r.End().Pages >= logBeyond
		if !errors.Is(err, segment.ErrMore) || ended || bottom <= layout.PageSize {
			return r.End(), nil
		}
		n = min(n, bottom-layout.PageSize)
		bottom -= n
		w := newWaiter(1)
		w.submit(d, &device.Op{Kind: device.Read, Bufs: [][]byte{buf[:n]}, Offset: d.segmentOffset(seg) + bottom})
		if err := w.wait(ctx, s.options.OpTimeout); err != nil {
			return r.End(), err
		}
		if err := r.Feed(buf[:n]); err != nil {
			return r.End(), err
		}
	}
}

// logID is the identity of g's log on the device at position i of its list.
func (s *Store) logID(g *group, i int) segment.LogID {
	return segment.LogID{Store: s.id, Secret: s.secret, Group: g.num, Generation: g.generation, Position: uint16(i)}
}

// scanGroupLogs visits the entries in all logs of a group; those of which there are
// copies come more than once. One log that cannot be read is overlooked where there are
// others: what counts stands on two drives.
func (s *Store) scanGroupLogs(ctx context.Context, g *group, visit func(a *segment.Append, e segment.Entry) error) error {
	buf := device.AlignedBuffer(logPiece)
	var failed []error
	for i, d := range g.drives {
		if d.condition() == dead { // it would not answer
			failed = append(failed, errNoDrive)
			continue
		}
		var inner error
		_, err := s.scanLog(ctx, d, g.segments[i], s.logID(g, i), buf, func(a *segment.Append) error {
			for e := range a.Entries() {
				if inner = visit(a, e); inner != nil {
					return inner
				}
			}
			return nil
		})
		if inner != nil {
			return inner
		}
		if err != nil && !d.away() { // what only stood on such a drive is lost with it
			failed = append(failed, err)
		}
		if skep.KindOf(err) == skep.Deadline {
			buf = device.AlignedBuffer(logPiece)
		}
	}
	if len(failed) > 1 || len(failed) > 0 && len(failed) == len(g.drives) {
		return errors.Join(failed...)
	}
	return nil
}
