package copies

import (
	"context"
	"slices"
	"sync"

	"github.com/skepkv/skep"
)

// Writer is the writers of one block on each of its nodes. A node that is away in the middle is given up.
type Writer struct {
	acks int
	away func(error) (why skep.Kind, away bool)
	mu   sync.Mutex
	of   []skep.BlockWriter // nil: the node is away
	why  []skep.Kind
	lost error // what the last of them said
}

// NewWriter makes a writer without nodes yet. acks of them have to have the block; away says whether an error is that a
// node is away, and by which kind it is declined then.
func NewWriter(acks int, away func(error) (why skep.Kind, away bool)) *Writer {
	return &Writer{acks: acks, away: away}
}

// Add adds a node's writer, the first node first; nil: the node is away, for this reason.
func (w *Writer) Add(of skep.BlockWriter, why skep.Kind) {
	w.of, w.why = append(w.of, of), append(w.why, why)
}

// each calls f for each of the writers that there are, at once. It fails where a node says anything else than that it is
// away, or none is left.
func (w *Writer) each(f func(i int, of skep.BlockWriter) error) error {
	w.mu.Lock()
	of := slices.Clone(w.of)
	w.mu.Unlock()
	errs := make([]error, len(of))
	var wait sync.WaitGroup
	for i, x := range of {
		if x != nil {
			wait.Go(func() { errs[i] = f(i, x) })
		}
	}
	wait.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	left := 0
	for i, err := range errs {
		if err != nil {
			why, away := w.away(err)
			if !away {
				return err
			}
			w.of[i], w.why[i], w.lost = nil, why, err
		}
		if w.of[i] != nil {
			left++
		}
	}
	if left == 0 {
		return w.lost
	}
	return nil
}

// Leave gives up the ith of the nodes, as if it were away for this reason.
func (w *Writer) Leave(ctx context.Context, i int, why skep.Kind) {
	w.mu.Lock()
	of := w.of[i]
	w.of[i], w.why[i] = nil, why
	w.mu.Unlock()
	if of != nil {
		_ = of.Abort(ctx) // else its time is over some time
	}
}

// Write implements skep.BlockWriter.
func (w *Writer) Write(ctx context.Context, part string, offset int64, p []byte) error {
	return w.each(func(_ int, of skep.BlockWriter) error { return of.Write(ctx, part, offset, p) })
}

// Commit implements skep.BlockWriter.
func (w *Writer) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	out := make([]skep.PutResult, len(w.of))
	err := w.each(func(i int, of skep.BlockWriter) (err error) {
		out[i], err = of.Commit(ctx, ack)
		return err
	})
	if err != nil {
		return skep.PutResult{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, of := range w.of {
		if of == nil {
			out[i] = skep.PutResult{Outcome: skep.Declined, Reason: w.why[i]}
		}
	}
	return Merged(out, w.acks), nil
}

// Abort implements skep.BlockWriter. Where a node is away, it aborts by itself when the writer's time is over.
func (w *Writer) Abort(ctx context.Context) error {
	err := w.each(func(_ int, of skep.BlockWriter) error { return of.Abort(ctx) })
	if err == nil {
		return nil
	}
	if _, away := w.away(err); away {
		return nil
	}
	return err
}
