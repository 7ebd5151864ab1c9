package serve

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/wire"
)

// peer is another node's Store. Where the token that it is shown lacks a right, the error names the token: whoever
// made the call may well have that right, and knows nothing of the nodes' token.
type peer struct {
	*wire.Client
	at clustermap.Node
	of *others

	was  bool      // the map had it; as what follows, guarded by of
	left time.Time // when it was first seen that the map has it no more
}

// Close implements skep.Store. A client that is closed is none of the others any more: the Store closes those that it
// made for a map which it then did not take.
func (p *peer) Close() error {
	p.of.forget(p)
	return p.Client.Close()
}

// Unwrap gives the Store.
func (p *peer) Unwrap() skep.Store { return p.Client }

// Purge implements skep.Deleter.
func (p *peer) Purge(ctx context.Context, x skep.Purge) error {
	return p.admin("purge", p.Client.Purge(ctx, x))
}

// DeleteNamespace implements skep.Namespacer.
func (p *peer) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	return p.admin("delete namespace", p.Client.DeleteNamespace(ctx, id))
}

// admin is the error of a call that needs the right admin.
func (p *peer) admin(op string, err error) error {
	if skep.KindOf(err) != skep.Denied {
		return err
	}
	return &skep.Error{Op: op, Kind: skep.Denied, Field: "peers.token_file",
		Limit: "a token that has the right admin of tenant '*' at node " + p.at.Name, Err: err}
}

// others is what this node knows of the other nodes.
type others struct {
	self uint64

	mu    sync.Mutex
	whole *replication.Store // nil: not yet
	all   []*peer            // that are open, in the order in which they were made

	asks  sync.Mutex // held while the others are asked; comes before mu
	away  map[uint64]bool
	asked time.Time // when away was found out
}

// met makes a node's Store of its client.
func (o *others) met(n clustermap.Node, c *wire.Client) *peer {
	p := &peer{Client: c, at: n, of: o}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, p)
	return p
}

func (o *others) forget(p *peer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = slices.DeleteFunc(o.all, func(x *peer) bool { return x == p })
}

// follow has the others be those of a Store's map.
func (o *others) follow(whole *replication.Store) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.whole = whole
}

// peers is those of the map, by the node's number.
func (o *others) peers() map[uint64]*peer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.peersLocked()
}

func (o *others) peersLocked() map[uint64]*peer {
	out := map[uint64]*peer{}
	if o.whole == nil {
		return out
	}
	for _, n := range o.whole.Map().Nodes {
		for _, p := range o.all {
			if p.at.ID == n.ID && p.at.Addr == n.Addr {
				out[n.ID], p.was = p, true
			}
		}
	}
	return out
}

// partFor is how long the client of a node that the map has no more is kept for what was begun with it.
const partFor = time.Minute

// part closes the clients of nodes that the map has had and has no more.
func (o *others) part(now time.Time) {
	o.mu.Lock()
	of := o.peersLocked()
	var gone []*peer
	for _, p := range o.all {
		switch {
		case of[p.at.ID] == p || !p.was: // of the map, or of one that is not followed yet
		case p.left.IsZero():
			p.left = now
		case now.Sub(p.left) >= partFor:
			gone = append(gone, p)
		}
	}
	o.mu.Unlock()
	for _, p := range gone {
		_ = p.Close()
	}
}

// How long what is known of the nodes counts, and how long one may take to say that it is there.
const (
	knownFor = time.Second
	signOf   = 500 * time.Millisecond
)

// gone is which of the other nodes do not answer. What one caller finds out is told to others for a while: so it does
// not depend on how long that one waits.
func (o *others) gone(ctx context.Context) map[uint64]bool {
	o.asks.Lock()
	defer o.asks.Unlock()
	if time.Since(o.asked) < knownFor {
		return o.away
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), signOf)
	defer cancel()
	away := map[uint64]bool{}
	var mu sync.Mutex
	var wait sync.WaitGroup
	for id, p := range o.peers() {
		wait.Go(func() {
			if _, err := p.Node(ctx); err != nil {
				mu.Lock()
				away[id] = true
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	o.away, o.asked = away, time.Now()
	return away
}
