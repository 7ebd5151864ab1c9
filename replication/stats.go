package replication

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/checks"
	"github.com/skepkv/skep/replication/copies"
)

// Stats implements skep.Observer. What is stored, moved and restored is the sum of what the nodes say, each of them
// of all its callers; lookups, leases and misses are this Store's own, since a node counts one for each group.
// Devices and memory are listed by node, and two pointers are this Store's own. What does not add up (admission,
// prefetch, reuse) a node tells for itself.
func (s many) Stats(ctx context.Context) (skep.Stats, error) {
	const op = "stats"
	if err := s.begin(ctx, op); err != nil {
		return skep.Stats{}, err
	}
	of := make([]skep.Stats, len(s.nodes))
	errs := s.each(func(n *node) (err error) { of[n.i], err = n.st.Stats(ctx); return err })
	out := skep.Stats{Backend: "cluster", BackendReason: "the nodes have the devices", Opened: s.opened, Epoch: s.epoch, State: "ok",
		PutDeclined: map[string]int64{}, RestoreTiers: map[string]int64{}}
	for _, n := range s.of.Down() {
		out.State = "node " + n.Name + ": down"
	}
	for _, n := range s.live {
		err, st := errs[n.i], &of[n.i]
		switch {
		case err == nil:
			copies.AddStats(&out, st, n.Name)
			if st.State != "ok" && out.State == "ok" {
				out.State = "node " + n.Name + ": " + st.State
			}
		case ctx.Err() != nil:
			return skep.Stats{}, ended(ctx, op)
		case !s.away(err):
			return skep.Stats{}, err
		default:
			out.State = "node " + n.Name + ": " + checks.Reason(err).Error()
		}
	}
	s.count.AddTo(&out)
	out.Leases = s.leases.Len()
	out.TwoPointers = s.plans.Stats()
	s.hedges.Note(func(st *skep.HedgeStats) { out.Hedges = *st })
	return out, nil
}
