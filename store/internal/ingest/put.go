package ingest

import (
	"bytes"
	"context"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Put stores blocks, each once, and returns when ack is reached, and what they replace cannot come back.
func (w *Writer) Put(ctx context.Context, ns *namespaces.Namespace, blocks []*Block, ack skep.Ack) error {
	put := w.committed
	if ack == skep.AckAccepted {
		put = w.accept
	}
	if err := put(ctx, ns, blocks); err != nil {
		return err
	}
	pending := false
	for _, in := range blocks {
		if in.DropPending && in.Durable() {
			pending = true
			if err := w.Puts.Flights.Wait(ctx, *in.Replaces); err != nil { // it takes its row back
				return err
			}
		}
	}
	if pending {
		return w.Rows.Settle(ctx)
	}
	return nil
}

// committed stores blocks and waits until each is committed or declined.
func (w *Writer) committed(ctx context.Context, ns *namespaces.Namespace, blocks []*Block) error {
	if w.Filter.Filters(ns) {
		return w.accept(ctx, ns, blocks)
	}
	todo, err := w.Winners(ctx, ns, blocks)
	if err != nil {
		return err
	}
	defer w.land(todo)
	return w.Appends.Write(ctx, ns, space.User, toWrite(todo))
}

// Winners leaves the blocks this call is the first to put. In chained namespaces
// the others become Exists; a put of the same key under way is waited for.
func (w *Writer) Winners(ctx context.Context, ns *namespaces.Namespace, blocks []*Block) (todo []*Block, err error) {
	if !ns.Info.Chained {
		return blocks, nil
	}
	defer func() {
		if err != nil {
			w.land(todo)
			todo = nil
		}
	}()
	ours := make(map[index.Fingerprint]*Block, len(blocks))
	// In one order for all, whatever order they come in: two puts that each waited for a key
	// of the other's would wait for ever.
	ordered := slices.Clone(blocks)
	slices.SortStableFunc(ordered, func(a, b *Block) int { return bytes.Compare(a.FP[:], b.FP[:]) })
	for _, in := range ordered {
		for {
			if e, ok := w.Index.Resolve(in.FP); ok && !w.GivesWay(ns, in.FP, e) && w.exists(ns, in, e) {
				break
			}
			mine, other := w.Puts.Flights.Join(in.FP)
			if mine != nil {
				// The index may have changed since it was asked.
				if e, ok := w.Index.Resolve(in.FP); ok && w.exists(ns, in, e) {
					w.Puts.Flights.Leave(in.FP, mine)
					break
				}
				in.flight = mine
				ours[in.FP] = in
				todo = append(todo, in)
				break
			}
			if first := ours[in.FP]; first != nil {
				*in.Result = skep.PutResult{Outcome: skep.Exists, Differs: !sameParts(first.Parts, in.Parts)}
				w.Count.PutExists.Add(1)
				break
			}
			select {
			case <-other.Done():
			case <-ctx.Done():
				return todo, &skep.Error{Op: "put", Kind: skep.Deadline, Err: ctx.Err()}
			case <-w.Closing:
				return todo, errClosed
			}
		}
	}
	todo = todo[:0]
	for _, in := range blocks { // in their own order again
		if in.flight != nil {
			todo = append(todo, in)
		}
	}
	return todo, nil
}

// land ends the flights of blocks, stored or not.
func (w *Writer) land(blocks []*Block) {
	for _, in := range blocks {
		if in.flight != nil {
			w.Puts.Flights.Leave(in.FP, in.flight)
			in.flight = nil
		}
	}
}

// exists answers a put that came second, and says whether its bytes differ: by
// comparing checksums, which were computed under the first put's version. Where the
// first one's record cannot be read nobody knows, and it says that they do not.
// False: the first one has gone meanwhile.
func (w *Writer) exists(ns *namespaces.Namespace, in *Block, e index.Entry) bool {
	first, err := w.Rows.RecordNow(w.Rows.Context, in.FP, e)
	if err == commit.ErrGone {
		return false
	}
	in.Result.Outcome = skep.Exists
	w.Count.PutExists.Add(1)
	w.Index.Touch(in.FP) // computing it again was a use of it
	w.Filter.Use(in.FP)
	if err == nil {
		err = w.Keys.ClearSums(ns.Info.Tenant, &first)
	}
	if err != nil {
		return true
	}
	in.Result.Differs = !w.sameBytes(ns, &first, in)
	if in.Result.Differs {
		w.Count.PutDiffers.Add(1)
	}
	return true
}

func sameParts(a, b []skep.Part) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if string(a[i].Bytes) != string(b[i].Bytes) {
			return false
		}
	}
	return true
}

func (w *Writer) sameBytes(ns *namespaces.Namespace, first *segment.Record, in *Block) bool {
	if len(first.Parts) != len(in.Record.Parts) || first.ValidTokens != in.Record.ValidTokens {
		return false
	}
	in.Record.Version = first.Version
	for i := range in.Record.Parts {
		p := &in.Record.Parts[i]
		if p.Name != first.Parts[i].Name || p.Size != first.Parts[i].Size {
			return false
		}
		in.Sum(ns, i)
		for j, sum := range p.Sums {
			if sum != first.Parts[i].Sums[j] {
				return false
			}
		}
	}
	return true
}
