package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/scrub"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// mender is the store as who mends it sees it: scrub.Host.
type mender struct{ s *Store }

func (m mender) LogEntries(ctx context.Context, entries []byte) error {
	return m.s.appends.Entries(ctx, space.User, m.s.options.SpaceTimeout, entries)
}

func (m mender) Damaged(ns *namespaces.Namespace, rec *segment.Record, gone bool) {
	ev := m.s.rows.Event(ns, rec, skep.EventDamaged)
	if ev.Reason = skep.Damaged; gone {
		ev.Tier = skep.TierNone
	}
	m.s.rows.Tell(ev, rec.Instance, namespaces.Tag(rec.SaltTag))
}

func (m mender) Forget(g *space.Group, b *scrub.Block) bool {
	return m.s.rows.Forget(g, b.FP, b.At, &b.Record)
}

func (m mender) Rewrite(ctx context.Context, ns *namespaces.Namespace, b *scrub.Block, stored []byte) error {
	s, fp, from, rec := m.s, b.FP, b.At, &b.Record
	in := appender.Again(fp, rec, from)
	// Its old record stays where it is: when this one goes, a tombstone must follow.
	in.Record.Flags |= segment.RecordMoved | segment.RecordSuccessor
	in.SetParts(stored)
	list := []*appender.Block{in}
	a, _, err := s.appends.Rewrite(ctx, ns, space.User, list, time.Now().Add(s.options.SpaceTimeout))
	if skep.KindOf(err) == skep.Full && s.space.KeptToSpare() {
		a, _, err = s.appends.Rewrite(ctx, ns, space.Kept, list, time.Now().Add(s.options.SpaceTimeout))
	}
	if err != nil {
		return err
	}
	moved, err := s.appends.Moved(ctx, a)
	if err != nil {
		return err
	}
	if len(moved) == 0 {
		return scrub.ErrMoved
	}
	s.log.Info("damaged block written again", "key", rec.Key.Short(), "from", from.String(), "to", in.At.String())
	return nil
}
