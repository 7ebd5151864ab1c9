package ingest

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// accept copies blocks into the DRAM tier, where they are readable at once, and
// commits them behind the caller's back. What does not fit there is committed in
// front of it.
func (w *Writer) accept(ctx context.Context, ns *namespaces.Namespace, blocks []*Block) error {
	todo, err := w.Winners(ctx, ns, blocks)
	if err != nil {
		return err
	}
	var behind, front []*Block
	filtered := w.Filter.Filters(ns)
	for _, in := range todo {
		// What replaces another takes its place when it is committed: were it accepted before
		// that, a put of the other in between would be undone by it.
		if ns.Info.Chained && in.Replaces == nil && w.holdOrMakeRoom(ns, in, filtered) {
			behind = append(behind, in)
		} else {
			front = append(front, in)
		}
	}
	if filtered {
		w.Filter.Add(ns, behind)
		behind = nil
		rest := front
		defer w.land(rest)
		var declined []*Block
		front, declined = w.Filter.Judge(front)
		w.Appends.Decline(toWrite(declined), skep.Admission)
	}
	if len(behind) > 0 {
		end := w.Puts.Accepted.Begin()
		l := appender.Lend(func() { // the tier's copies go when no drive writes from them any more
			for _, in := range behind {
				in.unshare()
			}
		})
		for _, in := range behind {
			in.Loan = l
		}
		w.Background.Go(func() {
			defer end()
			defer l.Back()
			defer w.land(behind)
			if err := w.Appends.Write(w.Context, ns, space.User, toWrite(behind)); err != nil {
				w.Log.Error("accepted blocks not committed", "blocks", len(behind), "error", err)
			}
			promised := w.withdrawAll(ns, behind)
			for _, in := range behind {
				in.Parts = nil
			}
			w.keepPromised(ns, promised)
		})
	}
	defer w.land(front)
	return w.Appends.Write(ctx, ns, space.User, toWrite(front))
}

// holdOrMakeRoom is hold; where there is no room and blocks wait to be decided on, some
// of them are.
func (w *Writer) holdOrMakeRoom(ns *namespaces.Namespace, in *Block, filtered bool) bool {
	var most int64
	if filtered {
		var waits bool
		if most, waits = w.Filter.Keeps(); !waits {
			return false
		}
	}
	if w.Hold(ns, in) {
		return true
	}
	if !filtered || w.Cache == nil || in.Size > most {
		return false
	}
	w.Filter.MakeRoom(2 * in.Size)
	return w.Hold(ns, in)
}

// Hold puts a copy of a block into the DRAM tier and shows it. False: there is no
// room.
func (w *Writer) Hold(ns *namespaces.Namespace, in *Block) bool {
	if w.Cache == nil || w.Puts.Records.Len() >= admission.MaxWaiting(w.CacheBytes) {
		return false
	}
	whole := in.Parts
	parts := make([]skep.Part, len(in.Parts))
	for i, p := range in.Parts {
		name := in.Record.Parts[i].Name
		b, v := w.hoard(memory.IDOf(in.FP, name), p.Bytes)
		if b == nil {
			in.unshare()
			w.discard(in)
			return false
		}
		parts[i] = skep.Part{Name: name, Bytes: b.Bytes()}
		in.held = append(in.held, memory.Held{ID: memory.IDOf(in.FP, name), Version: v})
		in.shared = append(in.shared, b)
	}
	if w.hoarded != nil {
		w.hoarded()
	}
	given, loan := in.Given, in.Loan
	in.Parts, in.Given, in.Loan, in.Accepted = parts, nil, nil, true
	e := in.Entry(ns)
	e.Location = 0
	in.Record.Version = uint32(w.Root.Next())
	for i := range in.Record.Parts {
		in.Sum(ns, i)
	}
	known := in.Record // what is still to be filled in is nobody else's business
	in.Known, in.Settled = &known, func() { w.settled(in) }
	w.Puts.Records.Add(in.FP, &known)
	// Whoever removed an earlier block of the key may forget this one's copy until the index has it.
	err := error(commit.ErrGone)
	w.Cache.While(in.held, func() { _, _, err = w.Index.Insert(e) })
	if err != nil {
		in.unshare()
		w.discard(in) // the way through the drives says why
		in.Accepted, in.Parts, in.Given, in.Loan = false, whole, given, loan
		return false
	}
	if w.Filter.Filters(ns) { // else it is written from there, deleted or not
		in.unshare()
	}
	ns.Stored.Add(in.Size)
	// The caller's result is its own; what follows reports elsewhere.
	*in.Result = skep.PutResult{Outcome: skep.Accepted}
	in.Result = &skep.PutResult{}
	w.Rows.TellOf(ns, &in.Record, skep.EventAccepted)
	return true
}

// hoard copies a part into the DRAM tier as dirty: it stays until the drives have it.
// It gives the copy with a reference, since the tier may be made to forget it at any time; nil: there is none.
func (w *Writer) hoard(id memory.ID, src []byte) (b *memory.Buffer, v memory.Version) {
	if len(src) == 0 || len(src) > w.Arena.MaxBlock() {
		return nil, 0
	}
	b, err := w.Arena.TryAlloc(len(src), memory.BudgetCache)
	if err != nil || b.Retain() != nil {
		return nil, 0
	}
	copy(b.Bytes(), src)
	v, err = w.Cache.Put(memory.Item{ID: id, Bufs: []*memory.Buffer{b}, Length: int64(len(src)), Dirty: true,
		Replace: true})
	if err != nil {
		b.Release()
		b.Release()
		return nil, 0
	}
	return b, v
}

// settled is called when an accepted block is committed: its copy may be evicted now.
func (w *Writer) settled(in *Block) {
	w.Puts.Records.Remove(in.FP, in.Known)
	for _, h := range in.held {
		w.Cache.MarkClean(h.ID, h.Version)
	}
}

func (w *Writer) discard(in *Block) {
	w.Puts.Records.Remove(in.FP, in.Known)
	for _, h := range in.held {
		w.Cache.Discard(h.ID, h.Version)
	}
	in.held = nil
}
