// Package whose says which node of which cluster a client's calls are for: the address that a map has for a node may
// be another server's by now.
package whose

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

// ErrAnother is in the error of a call for another node than the one that answers at the address. The call was not sent.
var ErrAnother = errors.New("the address is another node's")

// Node is a node of a cluster.
type Node struct {
	Cluster string // the seed of its map
	ID      uint64 // in the map
	Name    string // for people
}

func (n Node) String() string {
	return fmt.Sprintf("node %s (%d) of cluster %s", n.Name, n.ID, n.Cluster)
}

// Meant is the node that a client's calls are for. The zero value is of a client that takes whoever answers.
type Meant struct {
	to      atomic.Pointer[meant]
	another atomic.Bool  // answered last
	dialled atomic.Int64 // when Redial said so last
}

type meant struct {
	Node
	refused func()
}

// Set has calls be for a node from now on. refused is called by each that is not sent for that.
func (m *Meant) Set(n Node, refused func()) {
	m.to.Store(&meant{n, refused})
	m.another.Store(false)
}

// Met notes who answers now.
func (m *Meant) Met(hi *frames.Welcome) {
	to := m.to.Load()
	m.another.Store(to != nil && !to.is(hi))
}

// Another says whether who answered last, or was to have a call, is another node.
func (m *Meant) Another() bool { return m.another.Load() }

// is believes a server that does not say which node it is.
func (n Node) is(hi *frames.Welcome) bool {
	return hi.Features&frames.FeatureCluster == 0 || hi.Cluster == n.Cluster && hi.NodeID == n.ID
}

// Check refuses a call to another node, but for what any node may be asked: whether it is there, and the map. What was
// begun with a node is also ended there, whatever it is now: its drives may write to the caller's memory until then.
//
// Errors: link.Unsent, Unavailable, with ErrAnother in it.
func (m *Meant) Check(t frames.Type, hi *frames.Welcome) error {
	to := m.to.Load()
	if to == nil || to.is(hi) {
		if m.another.Load() {
			m.another.Store(false)
		}
		return nil
	}
	switch t {
	case frames.TypeClusterMap, frames.TypePing, frames.TypeCancel, frames.TypeGoodbye, frames.TypeEnd, frames.TypeStop,
		frames.TypeCredit, frames.TypeRelease, frames.TypeAbort, frames.TypeDetachMemory:
		return nil
	}
	m.another.Store(true)
	to.refused()
	return &link.Unsent{Err: &skep.Error{Op: t.String(), Kind: skep.Unavailable, Field: "server",
		Value: Node{hi.Cluster, hi.NodeID, hi.Node}.String(), Limit: to.String(), Err: ErrAnother}}
}

// Redial says, once a second at most, that who is refused is to be dialled anew: the address may lead elsewhere by now.
func (m *Meant) Redial() bool {
	now, was := skep.Steady().UnixNano(), m.dialled.Load()
	return now-was >= int64(time.Second) && m.dialled.CompareAndSwap(was, now)
}
