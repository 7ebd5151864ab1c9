package appender

import (
	"context"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
)

// place takes cells for as many leading blocks as go into one append. It waits for room until the deadline. On an error
// it says of how many blocks it speaks.
func (w *Appender) place(ctx context.Context, ns *namespaces.Namespace, st space.Stream, blocks []*Block,
	deadline time.Time) (*Append, int, error) {
	n := needsOf(ns, blocks)
	for {
		g, err := w.Space.Current(ctx, st, deadline)
		if err != nil {
			return nil, len(blocks), err
		}
		a, placed, fresh := w.placeIn(ns, g, n, blocks)
		if placed > 0 {
			return a, placed, nil
		}
		if fresh { // not even an empty group has room for the first block
			return nil, 1, space.ErrFull
		}
	}
}

// needsOf is what as many leading blocks need as go into one append.
func needsOf(ns *namespaces.Namespace, blocks []*Block) *space.Needs {
	n := &space.Needs{Copies: max(1, ns.Info.Copies)}
	if ns.Info.Shape.Kind != skep.Opaque {
		n.LayerBytes = ns.Geometry.LayerBytes()
	}
	bytes := int64(0)
	for i, in := range blocks {
		if bytes += in.Size; i == MaxBlocks || i > 0 && bytes > MaxBytes {
			break
		}
		if in.Replaces != nil {
			n.Logs = namespaces.LeastDrives // its tombstone is a deletion, which outlives a drive
		}
		n.Blocks = append(n.Blocks, in.need(n.Copies))
	}
	return n
}

// anywhere stands for places that are not known yet, where only their number counts.
var anywhere [skep.MaxCopies]layout.Location

// need is what in needs of a group, with so many copies.
func (in *Block) need(copies int) space.Need {
	b := space.Need{FP: in.FP, Parent: in.Parent, HasParent: in.HasParent, Depth: in.Record.Depth, Pages: in.Pages,
		Bytes:    in.Size,
		Replaces: in.Replaces != nil, Begin: -1, Copies: in.copies[:0]}
	if in.Moved && !in.Anew && in.From.Device != space.InlineDevice {
		b.Begin = int(in.From.Device)
	}
	if in.Inlined() && !in.Moved && in.Record.Parts[0].Inline == nil {
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
func (w *Appender) placeIn(ns *namespaces.Namespace, g *space.Group, n *space.Needs,
	blocks []*Block) (a *Append, placed int, fresh bool) {
	r, fresh := w.Space.Place(g, n)
	if r.Blocks == 0 {
		return nil, 0, fresh
	}
	a = &Append{ns: ns, Reservation: r, blocks: slices.Clone(blocks[:r.Blocks])}
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

// MaxInline is the largest block that lives in its record, in bytes.
const MaxInline = 512

// inlined says whether a block is small enough to live in its record.
func (in *Block) Inlined() bool {
	return in.Size <= MaxInline && len(in.Record.Parts) == 1
}
