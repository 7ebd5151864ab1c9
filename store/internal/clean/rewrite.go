package clean

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Rewrite copies blocks of g to the open group of kept blocks, in the order they are
// given, which is the order they lie in: chains stay together.
func (c *Cleaner) Rewrite(ctx context.Context, g *space.Group, keep []*appender.Block) error {
	for len(keep) > 0 {
		n, bytes := 0, int64(0)
		for n < len(keep) && n < appender.MaxBlocks {
			more := int64(keep[n].Pages) * layout.PageSize
			if n > 0 && bytes+more > appender.MaxBytes {
				break
			}
			bytes += more
			n++
		}
		if err := c.rewriteBatch(ctx, g, keep[:n], bytes); err != nil {
			return err
		}
		keep = keep[n:]
	}
	return nil
}

func (c *Cleaner) rewriteBatch(ctx context.Context, g *space.Group, batch []*appender.Block, bytes int64) error {
	if int64(len(c.buf)) < bytes {
		c.buf = device.AlignedBuffer(int(max(bytes, min(appender.MaxBytes, int64(g.PayloadPages())*layout.PageSize))))
	}
	good := batch[:0:0]
	for i, r := range c.read(ctx, g, batch) {
		in := batch[i]
		if r.ns == nil {
			continue // purged meanwhile
		}
		if r.err != nil {
			k := skep.KindOf(r.err)
			if k != skep.Damaged && (k != skep.DeviceFailed || in.Durable() || g.Life.Claim().KeepAll) {
				return r.err // it stays where it is: the drive may come back
			}
			c.Rows.Lost(r.ns, &in.Block, k)
			continue
		}
		in.Size = in.Record.Bytes()
		in.Record.Flags |= segment.RecordMoved
		in.SetParts(r.got)
		good = append(good, in)
	}
	// An append is of one namespace, and small blocks share pages within one.
	slices.SortStableFunc(good, func(a, b *appender.Block) int {
		return cmp.Compare(a.Record.Instance, b.Record.Instance)
	})
	for len(good) > 0 {
		ns := c.Names.Of(good[0].Record.Instance)
		if ns == nil {
			good = good[1:]
			continue
		}
		n := 1
		for n < len(good) && good[n].Record.Instance == good[0].Record.Instance {
			n++
		}
		a, n, err := c.Place(ctx, ns, good[:n])
		if err != nil {
			return err
		}
		if _, err := c.Appends.Moved(ctx, a); err != nil {
			c.buf = nil
			return err
		}
		good = good[n:]
	}
	return nil
}

// kept is a block that is being kept: its payload, or why it cannot be read.
type kept struct {
	ns  *namespaces.Namespace // nil: purged meanwhile
	got []byte
	err error
}

// readers is how many blocks are read at a time. Read one after the other, the few that are kept of a group of small
// blocks take longer than all else that its cleaning does.
const readers = 8

// read reads a batch of blocks of g into c.buf.
func (c *Cleaner) read(ctx context.Context, g *space.Group, batch []*appender.Block) []kept {
	list, buf := make([]kept, len(batch)), c.buf
	var lent atomic.Bool
	var wg sync.WaitGroup
	slots := make(chan struct{}, readers)
	for i, in := range batch {
		n := int64(in.Pages) * layout.PageSize
		r, mem := &list[i], buf[:n:n]
		buf = buf[n:]
		if r.ns = c.Names.Of(in.Record.Instance); r.ns == nil {
			continue
		}
		slots <- struct{}{} // every read ends within its deadline
		wg.Go(func() {
			defer func() { <-slots }()
			r.got, r.err = c.Space.ReadVerified(ctx, g, r.ns.Info.Shape, &in.Record, mem)
			if segio.Lent(mem, r.got, r.err) {
				lent.Store(true)
			}
		})
	}
	wg.Wait()
	if lent.Load() {
		c.buf = nil
	}
	return list
}

// Place finds room for survivors, and begins to write them. Groups that were cleaned before may still wait for the
// marks in their headers, and nobody but the cleaner takes them back: so it looks for them
// while it waits. A spare that is being made has segments too, and is there soon. A catalog
// that refuses the row of a group is not waited for.
func (c *Cleaner) Place(ctx context.Context, ns *namespaces.Namespace, blocks []*appender.Block) (*appender.Append,
	int, error) {
	deadline := time.Now().Add(c.SpaceTimeout)
	for {
		a, n, err := c.Appends.Rewrite(ctx, ns, space.Kept, blocks, time.Now())
		if err != space.ErrFull || !c.Space.Emptying() && !c.Space.Sparing() || time.Now().After(deadline) {
			return a, n, err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return a, n, err
		}
		c.Space.Regain()
	}
}
