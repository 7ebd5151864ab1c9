package replication

import (
	"context"
	"slices"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/placement"
)

// copies is how many nodes have each block of a namespace. Keys that stand alone are written over and have no versions
// yet, by which two nodes could agree on the last: they have one.
func (s many) copies(sp *space) int {
	if !sp.Chained {
		return 1
	}
	return s.table.Copies()
}

// acks is how many nodes have to have a block that is acknowledged.
func (s many) acks(sp *space) int {
	switch {
	case !sp.Chained:
		return 1
	case s.of.Acks > 0:
		return s.of.Acks
	case sp.Class == skep.Durable:
		return max(1, s.of.Replicas)
	}
	return 1
}

// nodeOf is the node of a group.
func (s many) nodeOf(sp *space, salt skep.Salt, anchor skep.Key) *node {
	return s.owner[s.table.Node(s.table.Slot(sp.place, placement.Stored(salt, anchor)))]
}

// holders is the places in the map of the nodes that have a group, the first one first.
func (s many) holders(sp *space, salt skep.Salt, anchor skep.Key) []uint16 {
	at := s.table.Nodes(s.table.Slot(sp.place, placement.Stored(salt, anchor)))
	return at[:min(len(at), s.copies(sp))]
}

// other is the nth of a group's nodes but for one that was asked; nil where there are no more.
func (s many) other(sp *space, salt skep.Salt, anchor skep.Key, not *node, n int) *node {
	for _, at := range s.holders(sp, salt, anchor) {
		x := s.owner[at]
		if x == not {
			continue
		}
		if n == 0 {
			return x
		}
		n--
	}
	return nil
}

// least is which of the nodes at these places in the map is asked for a group: the one that is asked for the fewest
// so far, the first one of such.
func least(at []uint16, asked func(at uint16) int) uint16 {
	best := at[0]
	for _, x := range at[1:] {
		if asked(x) < asked(best) {
			best = x
		}
	}
	return best
}

// merged is what became of a block of which each of its nodes, the first one first, says this; acks of them have to
// have it. Of two writers the first node that has it says who was first.
func merged(of []skep.PutResult, acks int) skep.PutResult {
	var out skep.PutResult
	stored, committed, declined := 0, 0, skep.Unavailable
	for _, r := range slices.Backward(of) {
		switch r.Outcome {
		case skep.Declined:
			declined = r.Reason
			continue
		case skep.Committed, skep.Exists:
			committed++
		}
		stored++
		out.Outcome = r.Outcome
		if r.Differs {
			out.Differs = true
		}
	}
	switch {
	case stored < acks:
		return skep.PutResult{Outcome: skep.Declined, Reason: declined}
	case out.Differs:
		out.Outcome = skep.Exists // a copy with other bytes is nothing that was stored
	case out.Outcome == skep.Committed && committed < acks:
		out.Outcome = skep.Accepted
	}
	return out
}

// wanted is whether a block is, of which each of its nodes says this, the first one first. exists is what one of all
// nodes that have it says, of whom there are have; with acks of them it is stored.
func wanted(of []skep.Want, exists skep.Want, have, acks int) skep.Want {
	if have >= acks {
		return exists
	}
	for _, w := range of {
		if w.Wanted {
			return w
		}
	}
	if have > 0 {
		return exists
	}
	return of[0]
}

// elsewhere says whether another node may have what one does not give for this reason.
func elsewhere(err error) bool {
	switch skep.KindOf(err) {
	case skep.Stopped, skep.Deadline, skep.Claimed, skep.NotReleased, skep.Invalid, skep.Denied, skep.Unsupported, skep.NoMemory:
		return false
	}
	return true
}

// present counts the keys of a chained namespace that some node has, since a node says how many it deleted and not
// which; false where a node cannot be asked.
func (s many) present(ctx context.Context, op string, sp *space, sc skep.Scope, keys []skep.Key) (n int, ok bool) {
	lists, err := s.whoHas(ctx, op, sp, sc.Salt, keys)
	if err != nil {
		return 0, false
	}
	seen := make(map[skep.Key]struct{}, len(keys))
	for i, k := range keys {
		if _, twice := seen[k]; twice {
			continue
		}
		seen[k] = struct{}{}
		for _, list := range lists {
			if list != nil && list[i].Outcome == skep.Exists && !list[i].Wanted {
				n++
				break
			}
		}
	}
	return n, true
}

// whoHas asks every node what a put of keys would be there, by node; nil of those that are away.
func (s many) whoHas(ctx context.Context, op string, sp *space, salt skep.Salt, keys []skep.Key) ([][]skep.Want, error) {
	lists := make([][]skep.Want, len(s.nodes))
	for _, err := range s.each(func(n *node) error {
		return s.on(ctx, op, n, sp, false, func(ctx context.Context, id skep.NamespaceID) (err error) {
			lists[n.i], err = n.st.Want(ctx, &skep.WantRequest{Scope: skep.Scope{Namespace: id, Salt: salt}, Keys: keys})
			return err
		})
	}) {
		if err != nil && !s.away(err) {
			return nil, err
		}
	}
	return lists, nil
}

// copyWriter is the writers of one block on each of its nodes. A node that is away in the middle is given up.
type copyWriter struct {
	s    many
	acks int
	mu   sync.Mutex
	of   []skep.BlockWriter // nil: the node is away
	why  []skep.Kind
	lost error // what the last of them said
}

// each calls f for each of the writers that there are, at once. It fails where a node says anything else than that it is
// away, or none is left.
func (w *copyWriter) each(f func(i int, of skep.BlockWriter) error) error {
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
		switch {
		case err == nil:
		case !w.s.away(err):
			return err
		default:
			w.of[i], w.why[i], w.lost = nil, reason(err), err
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

// Write implements skep.BlockWriter.
func (w *copyWriter) Write(ctx context.Context, part string, offset int64, p []byte) error {
	return w.each(func(_ int, of skep.BlockWriter) error { return of.Write(ctx, part, offset, p) })
}

// Commit implements skep.BlockWriter.
func (w *copyWriter) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
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
	return merged(out, w.acks), nil
}

// Abort implements skep.BlockWriter. Where a node is away, it aborts by itself when the writer's time is over.
func (w *copyWriter) Abort(ctx context.Context) error {
	err := w.each(func(_ int, of skep.BlockWriter) error { return of.Abort(ctx) })
	if err != nil && w.s.away(err) {
		return nil
	}
	return err
}
