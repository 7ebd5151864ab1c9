package appender

import (
	"context"
	"slices"
	"time"

	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
)

// Rewrite places and begins to write leading blocks of a namespace that were read from elsewhere, and says how many.
// It waits for room until then. Ended with Moved; on an error there is nothing to end. Those that were deleted
// meanwhile are left out, now that their group is open: a tombstone that is older than all groups is forgotten, and a
// copy in a newer one would have a rebuild bring the block back.
func (w *Appender) Rewrite(ctx context.Context, ns *namespaces.Namespace, st space.Stream, blocks []*Block,
	until time.Time) (a *Append, n int, err error) {
	if a, n, err = w.place(ctx, ns, st, blocks, until); err != nil {
		return nil, n, err
	}
	w.Rows.Await() // a deletion that has its number has reached the index
	a.blocks = slices.DeleteFunc(a.blocks, func(in *Block) bool { return !w.Rows.LiesAt(in.FP, in.From) })
	w.start(ctx, a)
	return a, n, nil
}

// Moved waits for an append of moved blocks and points the index at them. moved are those that it moved: see
// commit.Rows.Move.
func (w *Appender) Moved(ctx context.Context, a *Append) (moved []*commit.Block, err error) {
	defer w.Space.EndAppend(a.Group)
	defer func() {
		if err != nil { // what was written of it no row speaks for
			w.Space.GiveUp(a.Group, a.writes)
			w.Space.Suspect(a.Group)
		}
	}()
	if a.err != nil {
		return nil, a.err
	}
	if err := a.writes.WaitOr(ctx, w.OpTimeout, a.Group.Lost); err != nil {
		w.Space.Seal(a.Group)
		return nil, err
	}
	// Any synced commit makes this one's rows durable too, and with them the deletion
	// of the old ones: the new copies must be on the drives before.
	if slices.ContainsFunc(a.blocks, (*Block).Durable) {
		if err := w.Space.FlushWritten(ctx, a.Group.Drives, a.flushes); err != nil {
			w.Space.Seal(a.Group)
			return nil, err
		}
	}
	return w.Rows.Move(a.ns, a.Group, a.rows())
}
