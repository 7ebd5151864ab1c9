package moving

import (
	"cmp"
	"context"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/clean"
	"github.com/skepkv/skep/store/internal/compact"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/report"
	"github.com/skepkv/skep/store/segment"
)

// moveGroup does a job on one group: its blocks are written elsewhere in the order of
// their chains, and, unless only copies are made again, the group is freed.
func (m *Mover) moveGroup(ctx context.Context, g *space.Group, j job, b *limits.Pace,
	p *report.Progress) (err error) {
	list, release, err := m.gather(ctx, g)
	if err != nil {
		return err
	}
	if j.task != taskHeal { // the group is given back, on the drives that stay at least
		m.Cleaner.Loan.Store(1)
		defer m.Cleaner.Loan.Store(0)
	}
	if j.task == taskHeal {
		g.Healed.Store(true) // not later: who loses another drive of it from here on has it looked at again
		defer func() {
			if err != nil {
				g.Healed.Store(false)
			}
		}()
		list = m.halved(g, list)
	}
	if len(list) > 0 {
		err = m.markMoving(ctx, g)
	}
	before := *p
	if err == nil {
		err = m.moveList(ctx, inChainOrder(list), j, b, p)
	}
	release()
	if err == errNoRoom && (j.task == taskHeal || j.task == taskDrain) {
		// The cleaner has room for a whole group. Where it has none either, what is there has to make some: cleaned,
		// the group keeps what is worth keeping, with all its copies. What a lost drive may bring back is dropped
		// for the sake of copies of Durable blocks, and what one that is to go does not give. Nothing is for other reasons.
		err := m.Cleaner.Clean(ctx, g, true)
		if err == nil {
			p.Blocks, p.Bytes = before.Blocks+int64(len(list)), before.Bytes+sizeOf(list)
		}
		drops := catalog.NoRoom(err) || skep.KindOf(err) == skep.DeviceFailed && (j.task == taskDrain ||
			slices.ContainsFunc(list, (*appender.Block).Durable))
		if ctx.Err() != nil || !drops {
			return err
		}
		return m.Cleaner.Clean(ctx, g, false)
	}
	if err == errNoRoom && j.task == taskRebalance {
		// The new drive is of no use to a full store until its old ones have room. The cleaner
		// has some for the whole group, and drops nothing of it.
		return m.Cleaner.Clean(ctx, g, true)
	}
	if err != nil {
		return err
	}
	if j.task == taskHeal {
		return nil
	}
	if left, err := m.left(ctx, g); err != nil || left > 0 {
		if err == nil {
			err = &skep.Error{Op: "move blocks", Kind: skep.DeviceFailed, Field: clean.Unread, Value: left}
		}
		return err
	}
	return m.Cleaner.Clean(ctx, g, true)
}

// gather takes a group for moving: its live blocks, in the order they lie. The group is
// pinned and no victim of the cleaner's until release is called.
func (m *Mover) gather(ctx context.Context, g *space.Group) (list []*appender.Block, release func(), err error) {
	if !m.Space.Claim(g, space.Claim{By: space.Mover}) {
		return nil, nil, space.ErrBusy
	}
	g.Readers.Add(1)
	release = func() {
		m.Space.Release(g)
		m.Space.Unpin(g)
	}
	err = m.Catalog.ScanGroup(ctx, g.Num, func(loc layout.Location, row []byte) error {
		var rec segment.Record
		if err := segment.DecodeRecord(row, &rec); err != nil {
			return nil // left ends with it, when the others are moved
		}
		fp, ok := m.stands(&rec, loc)
		if !ok {
			return nil
		}
		in := appender.Again(fp, &rec, loc)
		in.Group, in.Anew = g, true
		if rec.Parent != nil {
			in.HasParent, in.Parent = true, m.Names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), *rec.Parent)
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
func (m *Mover) stands(rec *segment.Record, at layout.Location) (fp index.Fingerprint, ok bool) {
	fp = m.Names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
	return fp, m.Rows.Stands(fp, at, rec)
}

// moveList moves blocks of pinned groups. DeviceFailed: copies are to be made again, and of some no drive gives one now.
func (m *Mover) moveList(ctx context.Context, list []*appender.Block, j job, b *limits.Pace, p *report.Progress) error {
	unread := 0
	c := copier{m: m, budget: b,
		moved: func(blocks int, bytes int64) {
			p.Blocks += int64(blocks)
			p.Bytes += bytes
			j.work.Add(bytes)
		},
		unreadable: func(in *appender.Block, ns *namespaces.Namespace, why error) {
			p.Unreadable++
			if skep.KindOf(why) != skep.Damaged {
				unread++
			}
			if j.task == taskDrain && (j.force || !in.Durable()) && skep.KindOf(why) != skep.Deadline {
				if in.Durable() {
					p.GivenUp++
				}
				m.Rows.Lost(ns, &in.Block, skep.KindOf(why))
			}
		}}
	// What no drive gives is known before there is room elsewhere: without any, no more is read than the first blocks.
	list = slices.DeleteFunc(list, func(in *appender.Block) bool {
		gives := in.Group.Gives(&in.Record)
		if ns := c.m.Names.Of(in.Record.Instance); !gives && ns != nil {
			c.unreadable(in, ns, segio.ErrNoDrive)
		}
		return !gives
	})
	err := c.move(ctx, list)
	if err == nil && j.task == taskHeal && unread > 0 {
		err = &skep.Error{Op: "move blocks", Kind: skep.DeviceFailed, Field: clean.Unread, Value: unread}
	}
	return err
}

// halved are the blocks of g of which a copy is lost and another can be read.
func (m *Mover) halved(g *space.Group, list []*appender.Block) (out []*appender.Block) {
	alive := func(i int) bool { return !g.Drives[i].Standing.Lost() && g.Drives[i].Absent == nil }
	for _, in := range list {
		if len(in.Record.Copies) < 2 {
			continue
		}
		readable, whole := segio.UnitsOf(in.Record.Copies, int64(in.Pages)*layout.PageSize, len(g.Drives)).Survive(alive)
		if readable && !whole {
			out = append(out, in)
		}
	}
	return out
}

// left is how many blocks still live in g. Damaged: that is not known, and one may.
func (m *Mover) left(ctx context.Context, g *space.Group) (n int, err error) {
	err = m.Catalog.ScanGroup(ctx, g.Num, func(l layout.Location, row []byte) error {
		var rec segment.Record
		if err := segment.DecodeRecord(row, &rec); err != nil {
			return catalog.DamagedRow(l, err)
		}
		if _, ok := m.stands(&rec, l); ok {
			n++
		}
		return nil
	})
	return n, err
}

// markMoving notes in the catalog that g's log will have records of blocks that are
// elsewhere.
func (m *Mover) markMoving(ctx context.Context, g *space.Group) error {
	m.Space.SetStale(g)
	state := m.Space.StaleRow(g)
	b := m.Catalog.NewBatch()
	b.PutGroup(&state)
	return m.Catalog.Commit(ctx, b, false)
}

// sizeOf is the payload of blocks.
func sizeOf(list []*appender.Block) (n int64) {
	for _, in := range list {
		n += in.Size
	}
	return n
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
