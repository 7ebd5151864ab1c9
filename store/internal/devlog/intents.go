package devlog

import (
	"context"
	"time"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// CarryOut writes what was intended to the devices. It does not fail: what cannot be
// written now is written later, and until then only the catalog knows it.
func (l *Log) CarryOut(ctx context.Context, list ...catalog.Intent) {
	l.CarryOutWithin(ctx, l.SpaceTimeout, list)
}

// CarryOutWithin is CarryOut for who may wait so long for room.
func (l *Log) CarryOutWithin(ctx context.Context, wait time.Duration, list []catalog.Intent) {
	l.CarryOutTo(ctx, space.User, wait, list)
}

// CarryOutTo is CarryOutWithin to a stream's group.
func (l *Log) CarryOutTo(ctx context.Context, st space.Stream, wait time.Duration, list []catalog.Intent) {
	for n, i := range list {
		if err := l.writeIntent(ctx, st, wait, i); err != nil {
			if l.Context.Err() == nil && ctx.Err() == nil {
				l.Log.Warn("names or deletions not on the devices yet: tried again when there is room", "error", err)
			}
			l.Intents.Add(list[n:]...)
			return
		}
		b := l.Catalog.NewBatch()
		b.DeleteIntent(i.Number)
		if err := l.Catalog.Commit(l.Context, b, false); err != nil {
			l.Log.Debug("intent stays: it is carried out again at the next open", "error", err)
		}
	}
}

// writeIntent writes to the devices what of an intent still holds.
func (l *Log) writeIntent(ctx context.Context, st space.Stream, wait time.Duration, i catalog.Intent) error {
	defer l.Entering.Begin()()
	entries, err := l.ended(i.Entries)
	if err != nil || len(entries) == 0 {
		return err
	}
	return l.Appends.Entries(ctx, st, wait, entries)
}

// Retry tries again what could not be written. The cleaner calls it.
func (l *Log) Retry() {
	defer l.Intents.Tried()
	if list := l.Intents.Take(); len(list) > 0 {
		l.CarryOutWithin(l.Context, 0, list)
	}
}

// ended gives entries as they are to be written now. A namespace that is no more is not said to be one. That it is
// deleted is said with a number of now, and so is the purge of its instance: what cleaning drops goes by it, and the
// namespace's own entry may have been written again, to a group opened since the deletion began. All else stays as it
// is: the number of a salt's purge is the salt's epoch. REQUIRES: the caller is one of l.Entering.
func (l *Log) ended(entries []byte) ([]byte, error) {
	ended := map[uint32]bool{}
	for e := range segment.Entries(entries) {
		if e.Kind == segment.KindNamespace {
			if v, err := segment.DecodeNamespace(e.Body); err == nil && v.Deleted {
				ended[v.Instance] = true
			}
		}
	}
	var seq uint64
	if len(ended) > 0 {
		seq = l.Root.Next()
	}
	var w segment.LogWriter
	for e := range segment.Entries(entries) {
		write := func() error { return w.Entry(e) }
		switch e.Kind {
		case segment.KindNamespace:
			v, err := segment.DecodeNamespace(e.Body)
			switch {
			case err != nil:
			case v.Deleted:
				v.Seq = seq
				write = func() error { return w.Namespace(&v) }
			case l.Names.Of(v.Instance) == nil:
				continue
			}
		case segment.KindSealing:
			if v, err := segment.DecodeSealing(e.Body); err == nil && l.Names.Of(v.Instance) == nil {
				continue
			}
		case segment.KindPurge:
			p, err := segment.DecodePurge(e.Body)
			if err == nil && !p.Salted && ended[p.Instance] {
				p.Seq, p.Covers = seq, seq
				write = func() error { return w.Purge(&p) }
			}
		}
		if err := write(); err != nil {
			return nil, err
		}
	}
	return w.Bytes(), nil
}
