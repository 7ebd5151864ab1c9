package appender

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
)

// putTries is how often blocks are put elsewhere because a drive failed.
const putTries = 3

// putAgain puts blocks into another group after a drive of theirs failed: their bytes are
// still at hand, and by now the drive may be fenced. What cannot be put anywhere is
// declined. Their old cells are not used again before every write to them has ended.
//
// Only when a drive is fenced is there reason to believe that another try goes better: a
// drive that merely takes long would keep the cells of every try.
func (w *Appender) putAgain(ctx context.Context, a *Append) error {
	blocks := a.blocks
	for len(blocks) > 0 && blocks[0].tries < putTries && w.Space.AnyFenced(a.Group) {
		for _, in := range blocks {
			in.tries++
		}
		again, n, err := w.place(ctx, a.ns, space.User, blocks, time.Now().Add(w.SpaceTimeout))
		switch skep.KindOf(err) {
		case skep.DeviceFailed:
			if err != space.ErrDown {
				continue // the group could not be opened: that drive is fenced now
			}
		case skep.Full, skep.ReadOnly:
		default:
			if err != nil {
				return err
			}
		}
		if err != nil {
			w.Decline(blocks[:n], skep.KindOf(err))
			blocks = blocks[n:]
			continue
		}
		w.start(ctx, again)
		if err := w.finish(ctx, again); err != nil {
			return err
		}
		blocks = blocks[n:]
	}
	w.Decline(blocks, skep.DeviceFailed)
	return nil
}
