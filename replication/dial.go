package replication

import (
	"context"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/seeds"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
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
	if err := s.seeds.Find(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Connect makes a Store of the server at o.Addr, and of its whole cluster where it is a node of one. It connects to
// none: the first call does, and asks for the map. The other nodes are spoken to at the addresses that the map has, by
// the same options.
//
// o.Addr may be several addresses of one cluster, up to 64, with commas between them: the first that answers
// tells the map, and what is away is passed over. Servers of no cluster are refused then, as Unsupported by the calls.
// They are asked again when no node of the map answers. A host may be several nodes', by its name or before a load
// balancer: it tells the map, and nodes are spoken to at their own addresses.
//
// Memory that Alloc lends is one server's, and so is o.SharedMemory: that of the first Unix socket in o.Addr, else of
// the first address. What comes from or goes to another node passes a socket. Client is for the rest of that.
//
// Errors: Invalid (the options).
func Connect(o wire.Options) (*Store, error) {
	if o.Dialer != nil {
		return nil, skep.Invalidf("dial cluster", "dialer", "set", "unset: it would reach one node for all")
	}
	addrs, err := seeds.Parse(o.Addr)
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
	s.open = dials(o)
	n := newNode(clustermap.Node{Addr: o.Addr}, 0, c)
	v := &view{of: &clustermap.Map{}, nodes: []*node{n}, bound: len(addrs) > 1}
	v.owner = v.nodes
	s.now.Store(v)
	s.seeds = seeds.New(seeds.Options{Addrs: addrs, First: c, Log: s.log, Ctx: s.ctx, Start: s.start,
		Away: s.away, Seat: s.seat,
		Open: func(addr string) (*wire.Client, error) {
			o := o
			o.Addr, o.Conns = addr, 1
			return wire.NewClient(o)
		},
		Turn:  func(ctx context.Context) (func(), error) { return func() { <-s.learns }, s.turn(ctx) },
		Map:   func() (*clustermap.Map, bool) { v := s.now.Load(); return s.Map(), v.mapped() && v.lost() },
		Adopt: func(ctx context.Context, m *clustermap.Map) error { return s.adopt(ctx, s.now.Load(), m) }})
	return s, nil
}

// Client is the client of the server whose memory Alloc lends (see Connect). What it finds and stores is not the
// cluster's. nil where the Store has none.
func (s *Store) Client() *wire.Client { return s.seed }

// Identity is whose blocks the credentials of Connect reach, and with which rights: see wire.Client. It connects where
// nobody has yet.
//
// Errors: those of Dial; Unsupported (the Store is not of Connect).
func (s *Store) Identity(ctx context.Context) (tenant string, rights auth.Rights, err error) {
	if s.seeds == nil {
		return "", 0, &skep.Error{Op: "identity", Kind: skep.Unsupported, Field: "store", Limit: "one of Connect"}
	}
	return s.seeds.Identity(ctx)
}

// lost says whether none of the map's nodes was there at the last look.
func (v *view) lost() bool {
	return !slices.ContainsFunc(v.live, func(n *node) bool {
		c, ok := skep.As[interface{ Away() bool }](n.st)
		return !ok || !c.Away()
	})
}

// seat has calls for a node go to the seed, which came when there was a map. It says whether they do.
func (s *Store) seat(name string) bool {
	v := s.now.Load()
	i := slices.IndexFunc(v.owner, func(n *node) bool { return n.Name == name })
	if i < 0 || v.only() != nil || v.seedNode(s) != nil {
		return v.seedNode(s) != nil
	}
	was := v.owner[i]
	n := newNode(was.Node, len(v.nodes), s.seed)
	next := &view{of: v.of, table: v.table, nodes: append(slices.Clip(v.nodes), n), owner: slices.Clone(v.owner)}
	next.owner[i] = n
	if s.goOn(next) {
		was.gone.Store(true)
		s.merge.KeepUp()
	}
	return true
}

// dials gives what makes clients of nodes by the same options.
func dials(o wire.Options) func(n clustermap.Node) (skep.Store, error) {
	return func(n clustermap.Node) (skep.Store, error) {
		o := o
		o.Addr = n.Addr
		return wire.NewClient(o)
	}
}

// Open makes a Store of the nodes of a map, with a client of each by the same options, whose Addr counts for nothing.
// It connects to none of them: the first call does.
func Open(m *clustermap.Map, o wire.Options) (*Store, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	var stores []skep.Store
	dial := dials(o)
	for _, n := range m.Nodes {
		c, err := dial(n)
		if err != nil {
			for _, st := range stores {
				_ = st.Close()
			}
			return nil, err
		}
		stores = append(stores, c)
	}
	return New(Options{Map: m, Stores: stores, Log: o.Log, Dial: dial})
}
