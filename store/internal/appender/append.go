package appender

import (
	"context"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// Append is one append to a stripe group: blocks placed together, whose records
// share log pages and a catalog batch.
//
//	place    cells and log pages are taken; nothing is written yet
//	start    payload writes go out, checksums are computed meanwhile, then the log
//	finish   all writes are done (and flushed, for durable blocks), the catalog has
//	         the records, the index shows the blocks, the caller is told
type Append struct {
	space.Reservation
	ns      *namespaces.Namespace
	blocks  []*Block
	bytes   int64
	writes  *segio.Batch
	err     error            // what kept it from starting
	bufs    []*memory.Buffer // what sealed blocks, and those in memory others can write, are written from
	loans   []*Loan          // what the others are written from
	flushes uint64           // that had failed on its drives before it was written
	taken   int64            // bytes of I/O buffers that it takes
}

// rows is what the catalog and the index are to know of an append's blocks.
func (a *Append) rows() []*commit.Block {
	out := make([]*commit.Block, len(a.blocks))
	for i, in := range a.blocks {
		out[i] = &in.Block
	}
	return out
}

// start sends out an append's writes. Failures show in finish.
func (w *Appender) start(ctx context.Context, a *Append) {
	for _, in := range a.blocks {
		in.Record.Seq = a.Seq
		if !in.Moved && !in.Accepted {
			in.Record.Version = uint32(a.Seq)
		}
	}
	a.flushes = space.FailedFlushes(a.Group.Drives)
	ops, err := w.appendWrites(ctx, a, false)
	if err == memory.ErrScarce {
		err = w.Scarce.Wait(ctx, w.OpTimeout, func() (err error) {
			ops, err = w.appendWrites(ctx, a, true)
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
	a.writes = w.Space.BeginWrites(&a.Reservation, total, a.bytes, func() {
		memory.ReleaseAll(bufs)
		backAll(loans)
	})
	if a.err != nil {
		return
	}
	submitAll(a.writes, ops)
	for _, in := range a.blocks {
		if in.Moved || in.Record.Sealed != nil {
			continue // its record is complete
		}
		for i := range in.Record.Parts {
			if !in.Accepted { // those have their checksums
				in.Sum(a.ns, i)
			}
		}
		if in.At.Device == space.InlineDevice {
			in.Record.Parts = slices.Clone(in.Record.Parts) // others may be reading those of an accepted block
			in.Record.Parts[0].Inline = append([]byte{}, in.Parts[0].Bytes...)
		}
	}
	var lw segment.LogWriter
	if err := w.logBlocks(a, &lw); err != nil && a.err == nil {
		a.err = err
	}
	w.submitLog(a, &lw)
}

// appendWrites makes the payload writes of an append. memory.ErrScarce: there is no memory for
// copies now, and it is not to be waited for. On an error it holds none.
func (w *Appender) appendWrites(ctx context.Context, a *Append, patient bool) (ops []driveOp,
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
	a.taken = 0
	if err := w.own(ctx, a, patient); err != nil {
		return nil, err
	}
	if err := w.sealing(ctx, a, patient); err != nil {
		return nil, err
	}
	for _, in := range a.blocks {
		if in.At.Device == space.InlineDevice || in.packed() {
			continue
		}
		for _, l := range in.copies {
			if ops, err = w.writesOf(ctx, a, in, l, patient, ops); err != nil {
				return ops, err
			}
		}
	}
	if ops, err = w.packedWrites(ctx, a, patient, ops); err != nil {
		return ops, err
	}
	return merged(ops), nil
}

// finish waits for an append's writes and makes its blocks known: the order is
// payload, flush, catalog, index, caller.
func (w *Appender) finish(ctx context.Context, a *Append) error {
	defer w.Space.EndAppend(a.Group)
	err := a.err
	if err == nil {
		err = a.writes.WaitOr(ctx, w.OpTimeout, a.Group.Lost)
	}
	durable := a.ns.Info.Class == skep.Durable
	if err == nil && durable {
		err = w.Space.FlushWritten(ctx, a.Group.Drives, a.flushes)
	}
	if err != nil {
		w.Space.GiveUp(a.Group, a.writes)
	}
	if err != nil && device.BadMemory(err) {
		w.Space.Suspect(a.Group)
		return errUnusable
	}
	if err != nil {
		kind := skep.KindOf(err)
		if kind == skep.DeviceFailed || kind == skep.Deadline && ctx.Err() == nil {
			w.Log.Error("append failed", "group", a.Group.Num, "blocks", len(a.blocks), "error", err)
			w.Space.Seal(a.Group)
			w.Space.Suspect(a.Group)
			return w.putAgain(ctx, a)
		}
		w.Space.Suspect(a.Group)
		return err
	}
	return w.Rows.Publish(a.ns, a.Group, a.rows(), durable)
}
