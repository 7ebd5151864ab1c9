package store

import (
	"context"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// appending is one append to a stripe group: blocks placed together, whose records
// share log pages and a catalog batch.
//
//	place    cells and log pages are taken; nothing is written yet
//	start    payload writes go out, checksums are computed meanwhile, then the log
//	finish   all writes are done (and flushed, for durable blocks), the catalog has
//	         the records, the index shows the blocks, the caller is told
type appending struct {
	space.Reservation
	blocks  []*incoming
	bytes   int64
	writes  *segio.Batch
	err     error            // what kept it from starting
	bufs    []*memory.Buffer // what sealed blocks, and those in memory others can write, are written from
	loans   []*loan          // what the others are written from
	flushes uint64           // that had failed on its drives before it was written
}

// rows is what the catalog and the index are to know of an append's blocks.
func (a *appending) rows() []*commit.Block {
	out := make([]*commit.Block, len(a.blocks))
	for i, in := range a.blocks {
		out[i] = &in.Block
	}
	return out
}

// place takes cells for as many leading blocks as go into one append. On an error
// it says of how many blocks it speaks.
func (s *Store) place(ctx context.Context, ns *namespaces.Namespace, st space.Stream, blocks []*incoming) (*appending,
	int, error) {
	return s.placeBy(ctx, ns, st, blocks, time.Now().Add(s.options.SpaceTimeout))
}

// placeBy is place for who does not wait for room longer than until deadline.
func (s *Store) placeBy(ctx context.Context, ns *namespaces.Namespace, st space.Stream, blocks []*incoming,
	deadline time.Time) (*appending, int, error) {
	n := needsOf(ns, blocks)
	for {
		g, err := s.space.Current(ctx, st, deadline)
		if err != nil {
			return nil, len(blocks), err
		}
		a, n, fresh := s.placeIn(g, n, blocks)
		if n > 0 {
			return a, n, nil
		}
		if fresh { // not even an empty group has room for the first block
			return nil, 1, space.ErrFull
		}
	}
}

// needsOf is what as many leading blocks need as go into one append.
func needsOf(ns *namespaces.Namespace, blocks []*incoming) *space.Needs {
	n := &space.Needs{Copies: max(1, ns.Info.Copies)}
	if ns.Info.Shape.Kind != skep.Opaque {
		n.LayerBytes = ns.Geometry.LayerBytes()
	}
	bytes := int64(0)
	for i, in := range blocks {
		if bytes += in.Size; i == appendBlocks || i > 0 && bytes > appendBytes {
			break
		}
		n.Blocks = append(n.Blocks, in.need(n.Copies))
	}
	return n
}

// anywhere stands for places that are not known yet, where only their number counts.
var anywhere [skep.MaxCopies]layout.Location

// need is what in needs of a group, with so many copies.
func (in *incoming) need(copies int) space.Need {
	b := space.Need{FP: in.FP, Parent: in.Parent, HasParent: in.HasParent, Depth: in.Record.Depth, Pages: in.Pages,
		Bytes:    in.Size,
		Replaces: in.Replaces != nil, Begin: -1, Copies: in.copies[:0]}
	if in.moved && !in.anew && in.From.Device != space.InlineDevice {
		b.Begin = int(in.From.Device)
	}
	if in.inlined() && !in.moved && in.Record.Parts[0].Inline == nil {
		b.Inline = int(in.Size)
	}
	was := in.Record.Copies
	if in.Record.Copies = nil; in.Pages > 0 {
		in.Record.Copies = anywhere[:copies]
	}
	b.Record = in.Record.Len() + in.sealLen()
	in.Record.Copies = was
	return b
}

// placeIn takes cells in g for leading blocks. fresh says that g was empty, so that no group will do.
func (s *Store) placeIn(g *space.Group, n *space.Needs, blocks []*incoming) (a *appending, placed int, fresh bool) {
	r, fresh := s.space.Place(g, n)
	if r.Blocks == 0 {
		return nil, 0, fresh
	}
	a = &appending{Reservation: r, blocks: slices.Clone(blocks[:r.Blocks])}
	for i, in := range a.blocks {
		in.copies = n.Blocks[i].Copies
		in.At = in.copies[0]
		if in.Record.Copies = nil; in.Pages > 0 {
			in.Record.Copies = slices.Clone(in.copies)
		}
		a.bytes += in.Size
	}
	return a, r.Blocks, false
}

// inlineSize is the largest block that lives in its record, in bytes.
const inlineSize = 512

// inlined says whether a block is small enough to live in its record.
func (in *incoming) inlined() bool {
	return in.Size <= inlineSize && len(in.Record.Parts) == 1
}

// start sends out an append's writes. Failures show in finish.
func (s *Store) start(ctx context.Context, ns *namespaces.Namespace, a *appending) {
	for _, in := range a.blocks {
		in.Record.Seq = a.Seq
		if !in.moved && !in.Accepted {
			in.Record.Version = uint32(a.Seq)
		}
	}
	a.flushes = space.FailedFlushes(a.Group.Drives)
	ops, err := s.appendWrites(ctx, ns, a, false)
	if err == memory.ErrScarce {
		err = s.scarce.Wait(ctx, s.options.OpTimeout, func() (err error) {
			ops, err = s.appendWrites(ctx, ns, a, true)
			return err
		})
	}
	a.err = err
	total := len(ops) + len(a.Logs)
	if a.err != nil {
		total = 0
	}
	if a.err == nil {
		a.takeLoans()
	}
	bufs, loans := a.bufs, a.loans
	a.writes = s.space.BeginWrites(&a.Reservation, total, a.bytes, func() {
		memory.ReleaseAll(bufs)
		backAll(loans)
	})
	if a.err != nil {
		return
	}
	submitAll(a.writes, ops)
	for _, in := range a.blocks {
		if in.moved || in.Record.Sealed != nil {
			continue // its record is complete
		}
		for i := range in.Record.Parts {
			if !in.Accepted { // those have their checksums
				s.sum(ns, in, i)
			}
		}
		if in.At.Device == space.InlineDevice {
			in.Record.Parts[0].Inline = append([]byte{}, in.parts[0].Bytes...)
		}
	}
	var w segment.LogWriter
	if err := s.logBlocks(ns, a, &w); err != nil && a.err == nil {
		a.err = err
	}
	s.submitLog(a, &w)
}

// appendWrites makes the payload writes of an append. memory.ErrScarce: there is no memory for
// copies now, and it is not to be waited for. On an error it holds none.
func (s *Store) appendWrites(ctx context.Context, ns *namespaces.Namespace, a *appending, patient bool) (ops []driveOp,
	err error) {
	defer func() {
		if err != nil {
			for i := range ops {
				ops[i].free()
			}
			memory.ReleaseAll(a.bufs)
			ops, a.bufs = nil, nil
		}
	}()
	if err := s.own(ctx, a, patient); err != nil {
		return nil, err
	}
	if err := s.sealing(ctx, ns, a, patient); err != nil {
		return nil, err
	}
	for _, in := range a.blocks {
		if in.At.Device == space.InlineDevice || in.packed() {
			continue
		}
		for _, l := range in.copies {
			if ops, err = s.writesOf(ctx, a.Group, in, l, patient, ops); err != nil {
				return ops, err
			}
		}
	}
	return s.packedWrites(ctx, a, patient, ops)
}

// finish waits for an append's writes and makes its blocks known: the order is
// payload, flush, catalog, index, caller.
func (s *Store) finish(ctx context.Context, ns *namespaces.Namespace, a *appending) error {
	defer s.space.EndAppend(a.Group)
	err := a.err
	if err == nil {
		err = a.writes.WaitOr(ctx, s.options.OpTimeout, a.Group.Lost)
	}
	durable := ns.Info.Class == skep.Durable
	if err == nil && durable {
		err = s.space.FlushWritten(ctx, a.Group.Drives, a.flushes)
	}
	if err != nil {
		s.space.GiveUp(a.Group, a.writes)
	}
	if err != nil && device.BadMemory(err) {
		s.space.Suspect(a.Group)
		return errUnusable
	}
	if err != nil {
		kind := skep.KindOf(err)
		if kind == skep.DeviceFailed || kind == skep.Deadline && ctx.Err() == nil {
			s.log.Error("append failed", "group", a.Group.Num, "blocks", len(a.blocks), "error", err)
			s.space.Seal(a.Group)
			s.space.Suspect(a.Group)
			return s.putAgain(ctx, ns, a)
		}
		s.space.Suspect(a.Group)
		return err
	}
	return s.rows.Publish(ns, a.Group, a.rows(), durable)
}
