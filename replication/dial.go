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
	const op = "dial cluster"
	switch {
	case o.Dialer != nil:
		return nil, skep.Invalidf(op, "dialer", "set", "unset: it would reach one node for all")
	case o.SharedMemory != 0:
		return nil, skep.Invalidf(op, "shared memory", o.SharedMemory, "0: it is one server's")
	}
	first, err := wire.Dial(ctx, o)
	if err != nil {
		return nil, err
	}
	text, err := first.ClusterMap(ctx)
	_ = first.Close()
	if err != nil {
		return nil, err
	}
	m, err := clustermap.Parse(text)
	if err != nil {
		return nil, err
	}
	return Open(m, o)
}

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
	if len(m.Nodes) > 1 {
		o.Strict = true // that a node is away is this Store's to forgive
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
