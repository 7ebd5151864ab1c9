package replication

import (
	"context"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/placement"
	"github.com/skepkv/skep/replication/seeds"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/epoch"
	"github.com/skepkv/skep/wire/whose"
)

// mark has the calls of ctx say which map they are by.
func (v *view) mark(ctx context.Context) context.Context {
	switch {
	case v.bound:
		return epoch.Bound(wire.WithEpoch(ctx, 0))
	case !v.mapped():
		return wire.WithEpoch(ctx, 0)
	}
	return wire.WithEpoch(ctx, max(v.of.Epoch, 1))
}

// mapped says whether there is a map: what Connect makes has none at first.
func (v *view) mapped() bool { return v.table != nil }

// only is the Store of a cluster that never had but one node.
func (v *view) only() skep.Store {
	if len(v.nodes) == 1 && (!v.mapped() || !v.of.Grouped) {
		return v.nodes[0].st
	}
	return nil
}

// learn asks the nodes for a map that is newer than that of an epoch, of which one has said that it has it, and goes on
// by it. It says whether there is one now.
func (s *Store) learn(ctx context.Context, than uint32) bool {
	if s.now.Load().bound {
		return s.seeds.Find(ctx) == nil
	}
	if err := s.turn(ctx); err != nil {
		return false
	}
	defer func() { <-s.learns }()
	v := s.now.Load()
	if v.of.Epoch > than {
		return true // somebody else asked
	}
	return s.follow(ctx, v, seeds.Await(ctx, func() *clustermap.Map { return s.newest(ctx, v) }))
}

// follow adopts what newest found; nil: nothing. REQUIRES: the turn.
func (s *Store) follow(ctx context.Context, v *view, m *clustermap.Map) bool {
	if m == nil {
		return false
	}
	if err := s.adopt(ctx, v, m); err != nil {
		s.log.Error("a newer map of the cluster is not followed", "epoch", m.Epoch, "error", err)
		return false
	}
	s.log.Info("a newer map of the cluster", "epoch", m.Epoch, "nodes", len(m.Nodes))
	return true
}

// mistaken has the nodes, and who answers in their place, asked for a newer map, beside a call that was another's.
func (s *Store) mistaken() {
	s.again.Ask(s.start, func() {
		if s.turn(s.ctx) == nil {
			v := s.now.Load()
			s.follow(s.ctx, v, s.newest(s.ctx, v))
			<-s.learns
		}
	})
}

// turn waits until nobody else changes the map.
func (s *Store) turn(ctx context.Context) error {
	select {
	case s.learns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ended(ctx, "newer map")
	}
}

// Map is the map of the cluster that calls are made by; nil: none is known yet.
func (s *Store) Map() *clustermap.Map {
	if v := s.now.Load(); v.mapped() {
		return v.of
	}
	return nil
}

// Follow goes on by a newer map that the caller has been told. One that is not newer changes nothing.
//
// Errors: Invalid (it cannot follow on the one there is), Deadline, those of Options.Dial.
func (s *Store) Follow(ctx context.Context, m *clustermap.Map) error {
	if err := s.turn(ctx); err != nil {
		return err
	}
	defer func() { <-s.learns }()
	v := s.now.Load()
	if v.mapped() {
		if m.Epoch <= v.of.Epoch {
			return nil
		}
		if err := m.Succeeds(v.of); err != nil {
			return err
		}
	}
	return s.adopt(ctx, v, m)
}

// Hear is Follow beside the caller, who does not wait. What goes wrong is logged.
func (s *Store) Hear(m *clustermap.Map) {
	s.start(func() {
		if err := s.Follow(s.ctx, m); err != nil && !s.closed.Load() {
			s.log.Error("a newer map of the cluster is not followed", "epoch", m.Epoch, "error", err)
		}
	})
}

// newest is the first newer map that a node answers with; nil: none does.
func (s *Store) newest(ctx context.Context, v *view) *clustermap.Map {
	var ask []seeds.Teller
	for _, n := range v.owner {
		ask = seeds.Append(ask, n.Name, n.st)
	}
	m, _, _ := seeds.Newest(ctx, s.Map(), ask, s.log)
	return m
}

// adopt goes on by a newer map. Nodes keep their places; those that it has no more stay for what was begun with them.
func (s *Store) adopt(ctx context.Context, v *view, m *clustermap.Map) error {
	const op = "newer map"
	next := &view{of: m, nodes: v.nodes[:len(v.nodes):len(v.nodes)]}
	first := !v.mapped() // what there is is the seed, of whose place nothing is known
	name := ""
	if first {
		next.table = placement.New(m)
	} else {
		next.table = v.table.Next(v.of, m)
	}
	at := v.owner[0].Addr
	if first {
		var err error
		if !s.seeds.Several() || seeds.Local(at) {
			name, err = s.seed.Node(ctx)
		}
		if err != nil && !s.seeds.Several() { // else another one told the map
			return err
		}
		next.nodes = nil
	}
	var made []skep.Store
	drop := func(err error) error {
		for _, st := range made {
			_ = st.Close()
		}
		return err
	}
	for _, mn := range m.Nodes {
		var n *node
		for _, old := range v.owner {
			if !first && old.ID == mn.ID && old.Addr == mn.Addr {
				n = old
			}
		}
		if first && (mn.Name == name || name == "" && mn.Addr == at) &&
			(mn.Addr == at || len(m.Nodes) == 1 || seeds.Local(at) || s.numbered.Load()) {
			n = newNode(mn, len(next.nodes), s.seed)
			next.nodes = append(next.nodes, n)
		}
		if n == nil {
			if s.open == nil {
				return drop(&skep.Error{Op: op, Kind: skep.Unsupported, Field: "node", Value: mn.Name, Limit: "one that can be dialled"})
			}
			st, err := s.open(mn)
			if err != nil {
				return drop(err)
			}
			made = append(made, st)
			n = newNode(mn, len(next.nodes), st)
			next.nodes = append(next.nodes, n)
		}
		next.owner = append(next.owner, n)
	}
	if v.only() != nil && next.only() == nil && (!first || s.numbered.Load()) {
		n := v.nodes[0]
		if first {
			n = next.seedNode(s)
		}
		if n == nil {
			return drop(&skep.Error{Op: op, Kind: skep.Unsupported, Field: "node", Value: name,
				Limit: "one of the map: it was a server of its own before, with namespaces; open the Store anew"})
		}
		if err := s.outgrow(ctx, next, n); err != nil {
			return drop(err)
		}
	}
	for i, n := range v.owner { // one that was down meanwhile, and ran on, may number its namespaces anew
		if v.mapped() && (v.of.Nodes[i].State == clustermap.Down || m.Epoch-v.of.Epoch > 1) {
			n.trips.Add(1)
		}
	}
	if !s.goOn(next) {
		return drop(&skep.Error{Op: op, Kind: skep.Closed})
	}
	for _, n := range v.owner {
		n.gone.Store(!slices.Contains(next.owner, n))
	}
	s.merge.KeepUp()
	return nil
}

// goOn has calls go by a view from now on; false where the Store is closed.
func (s *Store) goOn(v *view) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return false
	}
	v.ready(s)
	s.now.Store(v)
	return true
}

// seedNode is the node whose Store is the seed; nil: none.
func (v *view) seedNode(s *Store) *node {
	if i := slices.IndexFunc(v.owner, func(n *node) bool { return n.st == skep.Store(s.seed) }); i >= 0 {
		return v.owner[i]
	}
	return nil
}

// ready sets what follows from the nodes: the clients are told which ones they speak to, and those of several say that
// one is away: what is to be done then is the Store's to say.
func (v *view) ready(s *Store) {
	for i, n := range v.owner {
		if c, ok := skep.As[interface {
			SetNode(of whose.Node, refused func())
		}](n.st); ok {
			c.SetNode(whose.Node{Cluster: v.of.Seed.String(), ID: n.ID, Name: n.Name}, s.mistaken)
		}
		if v.of.Nodes[i].State != clustermap.Down {
			v.live = append(v.live, n)
		}
	}
	for _, n := range v.nodes {
		v.debts, v.asks = append(v.debts, &n.owed), append(v.asks, &n.asked)
	}
	v.near = slices.Clone(v.live)
	remote := func(n *node) int {
		if _, far := skep.As[*wire.Client](n.st); far {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(v.near, func(a, b *node) int { return remote(a) - remote(b) })
	if v.only() != nil {
		return
	}
	for _, n := range v.owner {
		if c, ok := skep.As[interface{ SetStrict() }](n.st); ok {
			c.SetStrict()
		}
	}
}

// outgrow keeps the numbers of namespaces that callers have of a cluster's only node, when another one comes.
func (s *Store) outgrow(ctx context.Context, v *view, n *node) error {
	of, err := n.life(ctx)
	if err != nil {
		return err
	}
	list, err := n.st.Namespaces(of.Mark(ctx))
	if err != nil {
		return err
	}
	for _, info := range list {
		if _, err := s.spaces.heardAs(v, n, of, info, info.ID); err != nil {
			return err
		}
	}
	return nil
}

// mapsOfACall is by how many maps a call is made at most: maps may follow each other within milliseconds.
const mapsOfACall = 5

// by carries a call out by the map there is. Where a node says that its map is newer, it is asked for that, and the
// call is made again.
func by[T any](ctx context.Context, s *Store, f func(ctx context.Context, st skep.Store) (T, error)) (T, error) {
	var out T
	err := s.seeds.Seek(ctx)
	if err != nil {
		return out, err
	}
	v := s.now.Load()
	if out, err = f(v.mark(ctx), s.to(v)); err == nil {
		return out, nil
	}
	for n := 1; n < mapsOfACall && skep.KindOf(err) == skep.StaleMap && s.learn(ctx, v.of.Epoch); n++ {
		v = s.now.Load()
		out, err = f(v.mark(ctx), s.to(v))
	}
	switch skep.KindOf(err) {
	case skep.StaleMap, skep.Behind:
		if ctx.Err() != nil {
			return out, ended(ctx, "newer map")
		}
		err = &skep.Error{Op: "cluster", Kind: skep.Unavailable, Field: "map of epoch", Value: v.of.Epoch, Limit: "the node's", Err: err}
	}
	return out, err
}

// act is by of a call that gives nothing but an error.
func act(ctx context.Context, s *Store, f func(ctx context.Context, st skep.Store) error) error {
	_, err := by(ctx, s, func(ctx context.Context, st skep.Store) (struct{}, error) { return struct{}{}, f(ctx, st) })
	return err
}
