package consensus

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// A cluster may have been recovered without a node that comes back (Recover): the node, and others like it, may even be
// most voters of what the cluster was. So a node asks others when it starts, before it proposes anything, and again
// after that, whoever leads. Who is of the recovered cluster says so.
const (
	wordFirst   = 32 // nodes that are asked at the start,
	wordLater   = 8  // and after that, every wordEvery; drawn where there are more
	wordEvery   = 5 * time.Second
	wordTimeout = time.Second
)

// word is what a node is told of its cluster by one that may be of another; question is what it asks.
type (
	question struct {
		Node uint64 `json:"node"` // number of who asks
	}
	word struct {
		Recovered bool   `json:"recovered,omitempty"` // the cluster that the asking node is of was recovered
		Has       bool   `json:"has,omitempty"`       // the recovered map has the node
		Addr      string `json:"addr,omitempty"`      // where clients reach who answers
	}
)

// tellWord answers a node of the cluster of.
func (m *Member) tellWord(c net.Conn, of identity) {
	_ = c.SetDeadline(time.Now().Add(ioTimeout))
	b, err := readMessage(c)
	var q question
	if err != nil || json.Unmarshal(b, &q) != nil {
		return
	}
	w := word{}
	if now := m.Map(); now != nil && m.Cluster() != of.String() && now.From(of.String()) != nil {
		w.Recovered = true
		for i := range now.Nodes {
			w.Has = w.Has || now.Nodes[i].ID == q.Node
			if now.Nodes[i].ID == m.o.ID {
				w.Addr = now.Nodes[i].Addr
			}
		}
	}
	if b, err = json.Marshal(w); err == nil {
		_ = writeMessage(c, b)
	}
}

// askWord asks a node.
func (m *Member) askWord(ctx context.Context, id uint64, peer string) (w word, err error) {
	c, err := m.peers.reach(ctx, forWord, id, peer)
	if err != nil {
		return w, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	b, err := json.Marshal(question{Node: m.o.ID})
	if err == nil {
		err = writeMessage(c, b)
	}
	if err == nil {
		b, err = readMessage(c)
	}
	if err == nil {
		err = json.Unmarshal(b, &w)
	}
	return w, err
}

// listen asks others, until one says that the cluster was recovered.
func (m *Member) listen() {
	tick := time.NewTicker(wordEvery)
	defer tick.Stop()
	m.askOthers(wordFirst)
	close(m.heard)
	for m.LeftBehind() == nil {
		select {
		case <-tick.C:
		case <-m.closing:
			return
		case <-m.logs.failed:
			return
		}
		m.askOthers(wordLater)
	}
}

// askOthers asks that many nodes of the map, or of raft's configuration where there is no map.
func (m *Member) askOthers(most int) {
	ctx, cancel := context.WithTimeout(context.Background(), wordTimeout)
	defer cancel()
	others := m.others()
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	var wait sync.WaitGroup
	for _, n := range others[:min(most, len(others))] {
		wait.Go(func() {
			if w, err := m.askWord(ctx, n.ID, n.Peer); err == nil && w.Recovered {
				m.isLeftBehind(n, w)
			}
		})
	}
	wait.Wait()
}

// others are the nodes that this one knows, besides itself.
func (m *Member) others() (list []clustermap.Node) {
	now := m.Map()
	if now == nil {
		now = m.o.Known
	}
	if now != nil {
		for _, n := range now.Nodes {
			if n.ID != m.o.ID && n.Peer != "" {
				list = append(list, n)
			}
		}
		return list
	}
	f := m.raft.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	for _, s := range f.Configuration().Servers {
		if id, peer, err := splitAddress(s.Address); err == nil && s.ID != serverID(m.o.ID) {
			list = append(list, clustermap.Node{ID: id, Name: fmt.Sprintf("number %d", id), Peer: peer})
		}
	}
	return list
}

// isLeftBehind has the node propose nothing any more.
func (m *Member) isLeftBehind(by clustermap.Node, w word) {
	next := "remove its directory, wipe its drives, and add it again (skep cluster add)"
	if w.Has {
		next = fmt.Sprintf("run skep cluster recover --dir D --from %s, D being its directory, and start it again", w.Addr)
	}
	err := &skep.Error{Op: "cluster", Kind: skep.Behind, Field: "cluster", Value: "what it was before it was recovered",
		Limit: "the one that node " + by.Name + " is of: stop this node's server, " + next}
	if m.behind.CompareAndSwap(nil, err) {
		m.log.Error("most nodes of the cluster were lost, and it was recovered without this one", "error", err)
		m.news.tell()
	}
}

// LeftBehind is why the node proposes nothing any more: its cluster was recovered without it (Behind). Nil: it does.
func (m *Member) LeftBehind() error {
	if err := m.behind.Load(); err != nil {
		return err
	}
	return nil
}
