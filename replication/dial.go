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
	if err := s.find(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Connect makes a Store of the server at o.Addr, and of its whole cluster where it is a node of one. It connects to
// none: the first call does, and asks for the map. The other nodes are spoken to at the addresses that the map has, by
// the same options.
//
// o.Addr may be several addresses of one cluster, up to MaxAddresses, with commas between them: the first that answers
// tells the map, and what is away is passed over. Servers of no cluster are refused then, as Unsupported by the calls.
// They are asked again when no node of the map answers. A host may be several nodes', by its name or before a load
// balancer: it tells the map, and nodes are spoken to at their own addresses.
//
// Memory that Alloc lends is one server's, and so is o.SharedMemory: that of the first Unix socket in o.Addr, else of the
// first address. What comes from or goes to another node passes a socket. Client is for the rest of that.
//
// Errors: Invalid (the options).
func Connect(o wire.Options) (*Store, error) {
	if o.Dialer != nil {
		return nil, skep.Invalidf("dial cluster", "dialer", "set", "unset: it would reach one node for all")
	}
	addrs, err := addresses(o.Addr)
	if err != nil {
		return nil, err
	}
	o.Addr = addrs[0]
	c, err := wire.NewClient(o)
	if err != nil {
		return nil, err
	}
	s := made(o.Log, 0)
	s.seed, s.memory = c, c
	o.SharedMemory = 0
	s.seeds.addrs = addrs
	s.seeds.open = func(addr string) (*wire.Client, error) {
		o := o
		o.Addr, o.Conns = addr, 1
		return wire.NewClient(o)
	}
	s.open = func(n clustermap.Node) (skep.Store, error) {
		o := o
		o.Addr = n.Addr
		return wire.NewClient(o)
	}
	n := newNode(clustermap.Node{Addr: o.Addr}, 0, c)
	v := &view{of: &clustermap.Map{}, nodes: []*node{n}, bound: s.several()}
	v.owner = v.nodes
	s.now.Store(v)
	return s, nil
}

// Client is the client of the server whose memory Alloc lends (see Connect). What it finds and stores is not the
// cluster's. nil where the Store has none.
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
