package monitor

import (
	"context"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
)

// probe asks a drive that is not well for a sign of life: a page of its own, and where
// its writes were at fault, or its bytes, a page written, flushed and read again as well. One
// probe at a time: its memory is the drive's until it answers.
func (m *Monitor) probe(w *watched, write bool) {
	w.probing.Store(true)
	if w.buf == nil {
		w.buf = device.AlignedBuffer(layout.PageSize)
	}
	ctx := m.c.Context
	m.c.Background.Go(func() {
		began := device.Now()
		err := w.signOfLife(ctx, write)
		if ctx.Err() != nil {
			return
		}
		w.took.Store(device.Now() - began)
		outcome := health.GoodProbe
		if err != nil {
			outcome = health.BadProbe
		}
		w.outcome.Store(int32(outcome))
		w.probing.Store(false)
	})
}

// signOfLife is one probe. It returns when the drive has answered, or ctx ends: then its memory may
// still be the drive's.
func (w *watched) signOfLife(ctx context.Context, write bool) error {
	if err := device.ReadAt(ctx, w.Dev, w.buf, 0); err != nil || !write {
		return err
	}
	w.pattern++
	fillWith(w.buf, w.pattern)
	if err := device.WriteAt(ctx, w.Dev, w.buf, probePage*layout.PageSize); err != nil {
		return err
	}
	r := w.Flush.Start()
	select {
	case <-r.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := r.Err(); err != nil {
		return err
	}
	fillWith(w.buf, ^w.pattern) // so that a read which brings nothing is seen
	if err := device.ReadAt(ctx, w.Dev, w.buf, probePage*layout.PageSize); err != nil {
		return err
	}
	if slices.ContainsFunc(w.buf, func(b byte) bool { return b != w.pattern }) {
		return errWrongProbe
	}
	return nil
}

var errWrongProbe = &skep.Error{Op: "probe drive", Kind: skep.Damaged, Field: "what was written to it"}

func fillWith(p []byte, b byte) {
	for i := range p {
		p[i] = b
	}
}

// probePage is the last of the pages kept for superblocks, which holds nothing: what
// probes write to.
const probePage = layout.SuperblockPages - 1
