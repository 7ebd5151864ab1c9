package consensus

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/skepkv/skep"
)

// members are the nodes of raft's configuration, as this node has it.
func (m *Member) members() (ids []uint64) {
	f := m.raft.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	for _, s := range f.Configuration().Servers {
		if id, _, err := splitAddress(s.Address); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// Sole says whether this node is the only one that has a part in agreeing, by all that it has agreed to: its log, which
// is more than a map that was kept beside it.
func (m *Member) Sole() bool {
	list := m.members()
	return len(list) == 1 && list[0] == m.o.ID
}

// Left waits until a node that the map lacks has no part in agreeing any more: till then it may be one of the voters
// that a change needs, and has to run.
//
// Errors: Deadline of ctx, Closed, Failed.
func (m *Member) Left(ctx context.Context, id uint64) error {
	const op = "take node out"
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if members := m.leadersMembers(ctx); len(members) > 0 && !slices.Contains(members, id) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &skep.Error{Op: op, Kind: skep.Deadline, Field: "node", Value: id,
				Limit: "one that does not vote", Err: ctx.Err()}
		case <-m.closing:
			return &skep.Error{Op: op, Kind: skep.Closed}
		case <-m.logs.failed:
			return m.logs.failure()
		}
	}
}

// leadersMembers is raft's configuration as the leader has it; nil where none is found. A node that was taken out hears
// from no leader, so all voters that it knows are asked.
func (m *Member) leadersMembers(ctx context.Context) []uint64 {
	if m.raft.State() == raft.Leader {
		return m.members()
	}
	f := m.raft.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	_, leader := m.raft.LeaderWithID()
	for _, s := range f.Configuration().Servers {
		id, peer, err := splitAddress(s.Address)
		if err != nil || id == m.o.ID || s.ID != leader && (leader != "" || s.Suffrage != raft.Voter) {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, ioTimeout)
		r, err := m.peers.call(asking, id, peer, request{})
		cancel()
		if err == nil && r.Leads {
			return r.Members
		}
	}
	return nil
}
