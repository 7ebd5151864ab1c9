package moving

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

var errNoRoom = &skep.Error{Op: "move blocks", Kind: skep.Full, Field: "free groups", Value: "none",
	Limit: "one beside those puts and the cleaner need"}

// copier writes stored blocks again elsewhere: what compaction, draining, rebalancing and
// making copies again have in common. Reading the next blocks, checking them and writing
// the ones before overlap. Blocks keep their order, so what is given as a chain lies as
// one. It is the cleaner's commit that makes a move known: a delete is not undone by one.
type copier struct {
	m      *Mover
	budget *limits.Pace
	// unreadable is told of blocks that cannot be read, which stay where they are.
	unreadable func(in *appender.Block, ns *namespaces.Namespace, why error)
	moved      func(blocks int, bytes int64) // progress
}

// moveReaders is how many blocks of a batch are read at a time.
const moveReaders = 8

type moveBatch struct {
	ns     *namespaces.Namespace
	blocks []*appender.Block
	buf    []byte
	began  time.Time
}

// move writes blocks again, in this order. Full: there is no group left to write to; what
// was moved until then stays moved.
func (c *copier) move(ctx context.Context, list []*appender.Block) error {
	ctx, cancel := context.WithCancel(ctx)
	batches := make(chan *moveBatch, 1)
	var reading error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(batches)
		reading = c.readAll(ctx, list, batches)
	})
	err := c.writeAll(ctx, batches)
	cancel()
	for range batches { // so that the reader ends
	}
	wg.Wait()
	if err == nil {
		err = reading
	}
	return err
}

func (c *copier) readAll(ctx context.Context, list []*appender.Block, out chan<- *moveBatch) error {
	for len(list) > 0 {
		limit := c.budget.Piece()
		n, bytes := 0, int64(0)
		for n < len(list) && n < appender.MaxBlocks && list[n].Record.Instance == list[0].Record.Instance {
			more := int64(list[n].Pages) * layout.PageSize
			if n > 0 && bytes+more > limit {
				break
			}
			bytes += more
			n++
		}
		batch := &moveBatch{ns: c.m.Names.Of(list[0].Record.Instance), blocks: list[:n]}
		list = list[n:]
		if batch.ns == nil {
			continue // purged meanwhile
		}
		if err := c.budget.Take(ctx, bytes); err != nil {
			return err
		}
		batch.began = time.Now()
		if err := c.read(ctx, batch, bytes); err != nil {
			return err
		}
		if len(batch.blocks) == 0 {
			continue
		}
		select {
		case out <- batch:
		case <-ctx.Done():
			return segio.Ended(ctx, "move blocks")
		}
	}
	return nil
}

// read fills a batch's buffer with its blocks, and leaves those out that cannot be read.
func (c *copier) read(ctx context.Context, b *moveBatch, bytes int64) error {
	if bytes > 0 {
		b.buf = device.AlignedBuffer(int(bytes))
	}
	errs := make([]error, len(b.blocks))
	slots := make(chan struct{}, moveReaders)
	var wg sync.WaitGroup
	rest := b.buf
	for i, in := range b.blocks {
		n := int64(in.Pages) * layout.PageSize
		mem := rest[:n:n]
		rest = rest[n:]
		slots <- struct{}{} // every read ends within its deadline
		wg.Go(func() {
			defer func() { <-slots }()
			var got []byte // b.buf is nobody else's: what a drive keeps of it stays with it
			if got, errs[i] = c.m.Space.ReadVerified(ctx, in.Group, b.ns.Info.Shape, &in.Record, mem); errs[i] == nil {
				// Its group may stay: when the copy goes, a tombstone must follow.
				in.Record.Flags |= segment.RecordMoved | segment.RecordSuccessor
				in.SetParts(got)
			}
		})
	}
	wg.Wait()
	good := b.blocks[:0:0]
	for i, in := range b.blocks {
		switch k := skep.KindOf(errs[i]); {
		case errs[i] == nil:
			good = append(good, in)
		case ctx.Err() != nil:
			return segio.Ended(ctx, "move blocks")
		case k == skep.DeviceFailed, k == skep.Damaged, k == skep.Deadline:
			c.unreadable(in, b.ns, errs[i])
		default:
			return errs[i]
		}
	}
	b.blocks = good
	return nil
}

// moveAppends is how many appends of moved blocks are under way at a time.
const moveAppends = 2

func (c *copier) writeAll(ctx context.Context, in <-chan *moveBatch) error {
	type underway struct {
		a *appender.Append
		b *moveBatch
	}
	var list []underway
	finish := func() error {
		u := list[0]
		list = list[1:]
		moved, err := c.m.Appends.Moved(ctx, u.a)
		if err != nil {
			return err
		}
		var bytes int64
		for _, in := range moved {
			bytes += in.Size
		}
		c.moved(len(moved), bytes)
		return c.budget.Rest(ctx, time.Since(u.b.began))
	}
	var err error
	for b := range in {
		for blocks := b.blocks; len(blocks) > 0 && err == nil; {
			var a *appender.Append
			var n int
			// Not waiting for the cleaner, which would drop blocks to make room for what is there already.
			a, n, err = c.m.Appends.Rewrite(ctx, b.ns, space.Moved, blocks, time.Now())
			if err == space.ErrFull {
				err = errNoRoom
			}
			if err != nil {
				break
			}
			list = append(list, underway{a, b})
			blocks = blocks[n:]
			for len(list) > moveAppends && err == nil {
				err = finish()
			}
		}
		if err != nil {
			break
		}
	}
	for len(list) > 0 {
		if e := finish(); err == nil {
			err = e
		}
	}
	return err
}
