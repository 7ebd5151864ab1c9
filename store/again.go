package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/namespaces"
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
func (s *Store) putAgain(ctx context.Context, ns *namespaces.Namespace, a *appending) error {
	blocks := a.blocks
	for len(blocks) > 0 && blocks[0].tries < putTries && s.space.AnyFenced(a.Group) {
		for _, in := range blocks {
			in.tries++
		}
		again, n, err := s.place(ctx, ns, space.User, blocks)
		switch skep.KindOf(err) {
		case skep.DeviceFailed:
			if err != space.ErrDown {
				continue // the group could not be opened: that drive is fenced now
			}
		case skep.Full:
		default:
			if err != nil {
				return err
			}
		}
		if err != nil {
			s.decline(blocks[:n], skep.KindOf(err))
			blocks = blocks[n:]
			continue
		}
		s.start(ctx, ns, again)
		if err := s.finish(ctx, ns, again); err != nil {
			return err
		}
		blocks = blocks[n:]
	}
	s.decline(blocks, skep.DeviceFailed)
	return nil
}
