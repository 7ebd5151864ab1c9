package replication

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/wire"
)

// Dial makes a Store of the cluster that the server at o.Addr is a node of: it asks that node for the map, and the
// Store has a client of each node, by the same options. A node that is not there is no error: it is away.
//
// Errors: those of wire.Dial; Unsupported (the server is no node of a cluster); Invalid (the options, or the map).
func Dial(ctx context.Context, o wire.Options) (*Store, error) {
	s, err := Connect(o)
	if err != nil {
		return nil, err
	}
	text, err := s.seed.ClusterMap(ctx)
	if err == nil {
		var m *clustermap.Map
		if m, err = clustermap.Parse(text); err == nil {
			err = s.adopt(ctx, s.now.Load(), m)
		}
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Connect makes a Store of the server at o.Addr, and of its whole cluster where it is a node of one. It connects to
// none: the first call does, and asks for the map. The other nodes are spoken to at the addresses that the map has, by
// the same options.
//
// The host may be a name of several nodes: one that answers tells the map, and is spoken to at its own address then.
//
// Memory that Alloc lends is the one server's, and so is o.SharedMemory: what comes from or goes to another node passes
// a socket. Client is for the rest of that.
//
// Errors: Invalid (the options).
func Connect(o wire.Options) (*Store, error) {
	if o.Dialer != nil {
		return nil, skep.Invalidf("dial cluster", "dialer", "set", "unset: it would reach one node for all")
	}
	c, err := wire.NewClient(o)
	if err != nil {
		return nil, err
	}
	s := made(o.Log, 0)
	s.seed, s.memory = c, c
	o.SharedMemory = 0
	s.open = func(n clustermap.Node) (skep.Store, error) {
		o := o
		o.Addr = n.Addr
		return wire.NewClient(o)
	}
	n := newNode(clustermap.Node{Addr: o.Addr}, 0, c)
	v := &view{of: &clustermap.Map{}, nodes: []*node{n}}
	v.owner = v.nodes
	s.now.Store(v)
	return s, nil
}

// Client is the client of the server that Connect or Dial was given the address of: for memory, which is that
// server's. What it finds and stores is not the cluster's. nil where the Store has none.
func (s *Store) Client() *wire.Client { return s.seed }

// Open makes a Store of the nodes of a map, with a client of each by the same options, whose Addr counts for nothing.
// It connects to none of them: the first call does.
func Open(m *clustermap.Map, o wire.Options) (*Store, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	var stores []skep.Store
	closeAll := func() {
		for _, st := range stores {
			_ = st.Close()
		}
	}
	dial := func(n clustermap.Node) (skep.Store, error) {
		o := o
		o.Addr = n.Addr
		return wire.NewClient(o)
	}
	for _, n := range m.Nodes {
		c, err := dial(n)
		if err != nil {
			closeAll()
			return nil, err
		}
		stores = append(stores, c)
	}
	s, err := New(Options{Map: m, Stores: stores, Log: o.Log, Dial: dial})
	if err != nil {
		closeAll()
	}
	return s, err
}
