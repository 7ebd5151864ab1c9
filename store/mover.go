package store

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/compact"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// mover writes stored blocks again elsewhere: what compaction, draining, rebalancing and
// making copies again have in common. Reading the next blocks, checking them and writing
// the ones before overlap. Blocks keep their order, so what is given as a chain lies as
// one. It is the cleaner's commit that makes a move known: a delete is not undone by one.
type mover struct {
	s      *Store
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

// gather takes a group for moving: its live blocks, in the order they lie. The group is
// pinned and no victim of the cleaner's until release is called.
func (s *Store) gatherGroup(ctx context.Context, g *space.Group) (list []*appender.Block, release func(), err error) {
	if !s.space.Claim(g, space.Claim{By: space.Mover}) {
		return nil, nil, space.ErrBusy
	}
	g.Readers.Add(1)
	release = func() {
		s.space.Release(g)
		s.space.Unpin(g)
	}
	err = s.catalog.ScanGroup(ctx, g.Num, func(loc layout.Location, row []byte) error {
		var rec segment.Record
		if err := segment.DecodeRecord(row, &rec); err != nil {
			return nil // the cleaner reports it
		}
		fp, ok := s.stands(&rec, loc)
		if !ok {
			return nil
		}
		in := appender.Again(fp, &rec, loc)
		in.Group, in.Anew = g, true
		if rec.Parent != nil {
			in.HasParent, in.Parent = true, s.names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), *rec.Parent)
		}
		list = append(list, in)
		return nil
	})
	if err != nil {
		release()
		return nil, nil, err
	}
	return list, release, nil
}

// stands says of a row's block that it is to be found, and there: rows of others the cleaner drops.
func (s *Store) stands(rec *segment.Record, at layout.Location) (fp index.Fingerprint, ok bool) {
	fp = s.names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
	e, ok := s.index.Resolve(fp)
	return fp, ok && e.Location == at.Pack() && !s.names.Dead(rec.Instance, namespaces.Tag(rec.SaltTag))
}

var errNoRoom = &skep.Error{Op: "move blocks", Kind: skep.Full, Field: "free groups", Value: "none",
	Limit: "one beside those puts and the cleaner need"}

// move writes blocks again, in this order. Full: there is no group left to write to; what
// was moved until then stays moved.
func (m *mover) move(ctx context.Context, list []*appender.Block) error {
	ctx, cancel := context.WithCancel(ctx)
	batches := make(chan *moveBatch, 1)
	var reading error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(batches)
		reading = m.readAll(ctx, list, batches)
	})
	err := m.writeAll(ctx, batches)
	cancel()
	for range batches { // so that the reader ends
	}
	wg.Wait()
	if err == nil {
		err = reading
	}
	return err
}

func (m *mover) readAll(ctx context.Context, list []*appender.Block, out chan<- *moveBatch) error {
	for len(list) > 0 {
		limit := m.budget.Piece()
		n, bytes := 0, int64(0)
		for n < len(list) && n < appender.MaxBlocks && list[n].Record.Instance == list[0].Record.Instance {
			more := int64(list[n].Pages) * layout.PageSize
			if n > 0 && bytes+more > limit {
				break
			}
			bytes += more
			n++
		}
		batch := &moveBatch{ns: m.s.names.Of(list[0].Record.Instance), blocks: list[:n]}
		list = list[n:]
		if batch.ns == nil {
			continue // purged meanwhile
		}
		if err := m.budget.Take(ctx, bytes); err != nil {
			return err
		}
		batch.began = time.Now()
		if err := m.read(ctx, batch, bytes); err != nil {
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
func (m *mover) read(ctx context.Context, b *moveBatch, bytes int64) error {
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
			if got, errs[i] = m.s.space.ReadVerified(ctx, in.Group, b.ns.Info.Shape, &in.Record, mem); errs[i] == nil {
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
			m.unreadable(in, b.ns, errs[i])
		default:
			return errs[i]
		}
	}
	b.blocks = good
	return nil
}

// moveAppends is how many appends of moved blocks are under way at a time.
const moveAppends = 2

func (m *mover) writeAll(ctx context.Context, in <-chan *moveBatch) error {
	type underway struct {
		a *appender.Append
		b *moveBatch
	}
	var list []underway
	finish := func() error {
		u := list[0]
		list = list[1:]
		moved, err := m.s.appends.Moved(ctx, u.a)
		if err != nil {
			return err
		}
		var bytes int64
		for _, in := range moved {
			bytes += in.Size
		}
		m.moved(len(moved), bytes)
		return m.budget.Rest(ctx, time.Since(u.b.began))
	}
	var err error
	for b := range in {
		for blocks := b.blocks; len(blocks) > 0 && err == nil; {
			var a *appender.Append
			var n int
			// Not waiting for the cleaner, which would drop blocks to make room for what is there already.
			a, n, err = m.s.appends.Rewrite(ctx, b.ns, space.Moved, blocks, time.Now())
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

// inChainOrder puts blocks of one or more groups in the order compact.Order says, namespaces
// apart.
func inChainOrder(list []*appender.Block) []*appender.Block {
	items := make([]compact.Item, len(list))
	for i, in := range list {
		items[i] = compact.Item{FP: in.FP, Parent: in.Parent, HasParent: in.HasParent}
	}
	out := make([]*appender.Block, len(list))
	for i, k := range compact.Order(items) {
		out[i] = list[k]
	}
	slices.SortStableFunc(out, func(a, b *appender.Block) int { return cmp.Compare(a.Record.Instance, b.Record.Instance) })
	return out
}
