package replication

import (
	"context"
	"maps"

	"github.com/skepkv/skep"
)

// Stats implements skep.Observer. What is stored, moved and restored is the sum of what the nodes say, each of them
// of all its callers; lookups, leases and misses are this Store's own, since a node counts one for each group.
// Devices and memory are listed by node. What does not add up (admission, prefetch, reuse, two pointers) a node tells
// for itself.
func (s many) Stats(ctx context.Context) (skep.Stats, error) {
	const op = "stats"
	if err := s.begin(ctx, op); err != nil {
		return skep.Stats{}, err
	}
	of := make([]skep.Stats, len(s.nodes))
	errs := s.each(func(n *node) (err error) { of[n.i], err = n.st.Stats(ctx); return err })
	out := skep.Stats{Backend: "cluster", BackendReason: "the nodes have the devices", Opened: s.opened, Epoch: s.epoch, State: "ok",
		PutDeclined: map[string]int64{}, RestoreTiers: map[string]int64{}}
	for _, n := range s.owner {
		err, st := errs[n.i], &of[n.i]
		switch {
		case err == nil:
			add(&out, st, n.Name)
			if st.State != "ok" && out.State == "ok" {
				out.State = "node " + n.Name + ": " + st.State
			}
		case ctx.Err() != nil:
			return skep.Stats{}, ended(ctx, op)
		case !s.away(err):
			return skep.Stats{}, err
		default:
			out.State = "node " + n.Name + ": " + reason(err).Error()
		}
	}
	out.Lookups, out.LookupKeys, out.LookupHits = s.count.lookups.Load(), s.count.keys.Load(), s.count.hits.Load()
	out.Leases = s.leases.Len()
	s.count.mu.Lock()
	out.RestoreMisses = maps.Clone(s.count.misses)
	s.count.mu.Unlock()
	return out, nil
}

// add adds what a node says.
func add(to, of *skep.Stats, name string) {
	to.Simulated = to.Simulated || of.Simulated
	to.FreeGroups += of.FreeGroups
	to.Groups += of.Groups
	for _, x := range []struct {
		to *int64
		of int64
	}{
		{&to.Blocks, of.Blocks}, {&to.BlockBytes, of.BlockBytes}, {&to.CapacityBytes, of.CapacityBytes}, {&to.DeviceBytes, of.DeviceBytes},
		{&to.PutBlocks, of.PutBlocks}, {&to.PutBytes, of.PutBytes}, {&to.PutExists, of.PutExists}, {&to.PutDiffers, of.PutDiffers},
		{&to.RestoredBlocks, of.RestoredBlocks}, {&to.RestoredBytes, of.RestoredBytes}, {&to.CopiedBytes, of.CopiedBytes},
		{&to.JoinedBytes, of.JoinedBytes}, {&to.KeptBytes, of.KeptBytes}, {&to.BrokenPromises, of.BrokenPromises},
		{&to.Overloaded, of.Overloaded}, {&to.Evicted, of.Evicted}, {&to.EvictedUnread, of.EvictedUnread},
		{&to.MovedBytes, of.MovedBytes}, {&to.Damaged, of.Damaged}, {&to.LeasedBytes, of.LeasedBytes},
	} {
		*x.to += x.of
	}
	for _, x := range []struct{ to, of map[string]int64 }{{to.PutDeclined, of.PutDeclined}, {to.RestoreTiers, of.RestoreTiers}} {
		for k, v := range x.of {
			x.to[k] += v
		}
	}
	for _, w := range of.Work {
		w.Name = name + ": " + w.Name
		to.Work = append(to.Work, w)
	}
	for _, d := range of.Devices {
		d.Index, d.Path = len(to.Devices), name+":"+d.Path
		to.Devices = append(to.Devices, d)
	}
	for _, m := range of.Memory {
		m.Name = name + ": " + m.Name
		to.Memory = append(to.Memory, m)
	}
}
