package consensus

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/skepkv/skep/replication/clustermap"
)

const (
	steerInterval = 500 * time.Millisecond
	// caughtUp is how many entries a node may be behind when it becomes a voter. It knows who votes besides: one that does
	// not refuses its vote to a candidate that it does not know to be a voter.
	caughtUp = 64
)

// steer founds the cluster and has raft's configuration follow the map, where this node leads.
func (m *Member) steer() {
	tick := time.NewTicker(steerInterval)
	defer tick.Stop()
	for {
		news := m.news.next()
		if m.raft.State() == raft.Leader {
			m.lead()
		}
		select {
		case <-news:
		case <-tick.C:
		case <-m.closing:
			return
		case <-m.logs.failed:
			return
		}
	}
}

// endFailed ends raft where its state cannot be kept.
func (m *Member) endFailed() {
	select {
	case <-m.closing:
	case <-m.logs.failed:
		m.log.Error("the node takes no part in agreeing on the map any more", "error", m.logs.cause)
		_ = m.raft.Shutdown().Error()
		_ = m.peers.Close()
	}
}

// lead takes the steps that are to be taken, until none is or one does not succeed.
func (m *Member) lead() {
	if m.Map() == nil {
		if m.o.Found != nil {
			m.foundFirst()
		}
		return
	}
	m.endSilent()
	for {
		f := m.raft.GetConfiguration()
		if f.Error() != nil {
			return
		}
		what, do := m.step(f.Configuration(), f.Index())
		if do == nil {
			return
		}
		if err := m.settled(context.Background(), do()); err != nil {
			m.log.Debug("raft's configuration did not follow the map", "step", what, "error", err)
			return
		}
		m.log.Info("raft's configuration follows the map", "step", what)
	}
}

func (m *Member) foundFirst() {
	c := clustermap.Command{Do: clustermap.Found, Map: m.o.Found}
	b, err := c.Encode()
	if err == nil {
		err = m.settled(context.Background(), m.raft.Apply(b, proposeTimeout))
	}
	if err != nil {
		m.log.Warn("the cluster is not founded yet", "error", err)
	}
}

// voters is how many nodes vote: an odd number, so that the loss of one of them is never worse than having one less.
func voters(nodes int) int {
	switch {
	case nodes >= 5:
		return 5
	case nodes >= 3:
		return 3
	}
	return 1
}

// step is the next change of raft's configuration: what it is, and how it is made; nil where it is as the map says.
// Nodes are made members before others are taken out, and voters once they have the log. Every step leaves a
// configuration of which most voters answer.
func (m *Member) step(c raft.Configuration, index uint64) (string, func() raft.Future) {
	now := m.Map()
	servers := map[raft.ServerID]raft.Server{}
	for _, s := range c.Servers {
		servers[s.ID] = s
	}
	nodes := map[raft.ServerID]bool{}
	voting := 0
	var may []clustermap.Node // become voters
	for _, n := range byID(now.Nodes) {
		id, at := serverID(n.ID), address(n.ID, n.Peer)
		nodes[id] = true
		s, ok := servers[id]
		switch {
		case !ok || s.Suffrage != raft.Voter && s.Address != at:
			return "add " + n.Name, func() raft.Future { return m.raft.AddNonvoter(id, at, index, proposeTimeout) }
		case s.Address != at:
			return "move " + n.Name, func() raft.Future { return m.raft.AddVoter(id, at, index, proposeTimeout) }
		case s.Suffrage == raft.Voter:
			voting++
		default:
			may = append(may, n)
		}
	}
	want := voters(len(now.Nodes))
	if voting < want {
		if n := m.firstWithLog(may, index); n != nil {
			id, at := serverID(n.ID), address(n.ID, n.Peer)
			return "vote: " + n.Name, func() raft.Future { return m.raft.AddVoter(id, at, index, proposeTimeout) }
		}
	}
	self := serverID(m.o.ID)
	if drop, may := m.drop(c, nodes, voting-want); drop != "" {
		switch {
		case !may:
			return "", nil
		case nodes[drop]:
			return "vote no more: " + string(drop), func() raft.Future { return m.raft.DemoteVoter(drop, index, proposeTimeout) }
		}
		return "remove " + string(drop), func() raft.Future { return m.raft.RemoveServer(drop, index, proposeTimeout) }
	}
	for _, s := range c.Servers {
		if !nodes[s.ID] && s.ID != self {
			return "remove " + string(s.ID), func() raft.Future { return m.raft.RemoveServer(s.ID, index, proposeTimeout) }
		}
	}
	if !nodes[self] && voting > 0 { // who leads next takes this one out
		return "lead no more", func() raft.Future { return m.raft.LeadershipTransfer() }
	}
	return "", nil
}

// drop is the voter that is to vote no more next: one that is no node of the map, or where that many too many vote, one
// of them. Empty: none. May says whether most of the voters that are left answer: without them nothing is agreed on any
// more.
//
// Who does not answer goes first, because whoever is left has to agree to the next step.
func (m *Member) drop(c raft.Configuration, nodes map[raft.ServerID]bool, tooMany int) (next raft.ServerID, may bool) {
	self := serverID(m.o.ID)
	var all, out []raft.ServerID // who votes, and who of them is not to: this node sees to that of others only
	for _, s := range c.Servers {
		if s.Suffrage == raft.Voter {
			all = append(all, s.ID)
			if s.ID != self && (tooMany > 0 || !nodes[s.ID]) {
				out = append(out, s.ID)
			}
		}
	}
	if len(out) == 0 {
		return "", false
	}
	answers := m.whoAnswers(c)
	rank := func(id raft.ServerID) int { // the lowest goes first
		switch {
		case !answers[id] && !nodes[id]:
			return 0
		case !answers[id]:
			return 1
		case !nodes[id]:
			return 2
		}
		return 3
	}
	slices.SortFunc(out, func(a, b raft.ServerID) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), -cmp.Compare(len(a), len(b)), -cmp.Compare(a, b)) // the youngest
	})
	left := 0
	for _, id := range all {
		if answers[id] && id != out[0] {
			left++
		}
	}
	return out[0], 2*left > len(all)-1
}

// whoAnswers asks all voters, of which this node is one.
func (m *Member) whoAnswers(c raft.Configuration) map[raft.ServerID]bool {
	ctx, cancel := context.WithTimeout(context.Background(), ioTimeout)
	defer cancel()
	var mu sync.Mutex
	answers := map[raft.ServerID]bool{serverID(m.o.ID): true}
	var wait sync.WaitGroup
	for _, s := range c.Servers {
		id, peer, err := splitAddress(s.Address)
		if err != nil || s.Suffrage != raft.Voter || id == m.o.ID {
			continue
		}
		wait.Go(func() {
			if _, err := m.peers.call(ctx, id, peer, request{}); err == nil {
				mu.Lock()
				answers[s.ID] = true
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return answers
}

func byID(nodes []clustermap.Node) []clustermap.Node {
	out := slices.Clone(nodes)
	slices.SortFunc(out, func(a, b clustermap.Node) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return out
}

// firstWithLog is the first of these nodes that answers, and has nearly all that is agreed on, and the configuration at
// index; nil: none. It takes ioTimeout at most, as silent nodes are not down before it is known: of more than are asked
// at once those are drawn that are.
func (m *Member) firstWithLog(nodes []clustermap.Node, index uint64) *clustermap.Node {
	if len(nodes) > askedAtOnce {
		rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		nodes = nodes[:askedAtOnce]
	}
	ctx, cancel := context.WithTimeout(context.Background(), ioTimeout)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	has := make([]chan bool, len(nodes))
	for i, n := range nodes {
		has[i] = make(chan bool, 1)
		wait.Go(func() {
			r, err := m.peers.call(ctx, n.ID, n.Peer, request{})
			has[i] <- err == nil && r.Applied >= index && r.Applied+caughtUp >= m.raft.CommitIndex()
		})
	}
	for i := range nodes {
		if <-has[i] {
			return &nodes[i]
		}
	}
	return nil
}
