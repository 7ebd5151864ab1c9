package segio

import (
	"context"
	"time"

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

// LogBuffer is memory to scan logs with.
func LogBuffer() []byte { return device.AlignedBuffer(logPiece) }

// Log is the log of one segment.
type Log struct {
	Drive   Drive
	Segment uint32
	ID      segment.LogID
	Down    bool // its drive would not answer: a scan of the group does not ask it
}

// ScanLog visits the whole appends in a log, in order. buf is a LogBuffer; nothing of an append may
// be kept. After an error of kind Deadline a drive may still write to buf.
func ScanLog(ctx context.Context, l Log, buf []byte, timeout time.Duration, visit func(a *segment.Append) error) (segment.LogEnd, error) {
	r := segment.NewLogReader(l.ID)
	bottom, n := l.Drive.SegmentBytes, int64(logPiece)
	for {
		if a, ok := r.Next(); ok {
			if err := visit(&a); err != nil {
				return r.End(), err
			}
			continue
		}
		ended := !r.Midway() && r.Looked() > 0 && r.Looked()-r.End().Pages >= logBeyond
		if ended || bottom <= layout.PageSize {
			return r.End(), nil
		}
		n = min(n, bottom-layout.PageSize)
		bottom -= n
		if err := read(ctx, l.Drive.Dev, buf[:n], l.Drive.Offset(l.Segment)+bottom, timeout); err != nil {
			return r.End(), err
		}
		if err := r.Feed(buf[:n]); err != nil {
			return r.End(), err
		}
	}
}

// ScanGroup visits the entries in the logs of a group that can be read; those of which there are copies
// come more than once. It gives for each log why it cannot be read, ErrNoDrive for one that is down; what
// follows from that, the caller knows. The error is visit's.
func ScanGroup(ctx context.Context, logs []Log, timeout time.Duration, visit func(a *segment.Append, e segment.Entry) error) (unread []error, inner error) {
	buf := LogBuffer()
	unread = make([]error, len(logs))
	for i, l := range logs {
		if l.Down {
			unread[i] = ErrNoDrive
			continue
		}
		_, unread[i] = ScanLog(ctx, l, buf, timeout, func(a *segment.Append) error {
			for e := range a.Entries() {
				if inner = visit(a, e); inner != nil {
					return inner
				}
			}
			return nil
		})
		if inner != nil {
			return nil, inner
		}
		if skep.KindOf(unread[i]) == skep.Deadline {
			buf = LogBuffer()
		}
	}
	return unread, nil
}
