package replication

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/placement"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/epoch"
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

// teller is a node's Store that tells its map: wire's client.
type teller interface {
	ClusterMap(ctx context.Context) ([]byte, error)
}

// told is who may be asked for a map, and the name or address that it goes by.
type told struct {
	name string
	teller
}

// tells is how long a node that knows of a newer map may take to tell it.
const tells = 2 * time.Second

// learn asks the nodes for a map that is newer than that of an epoch, of which one has said that it has it, and goes on
// by it. It says whether there is one now.
func (s *Store) learn(ctx context.Context, than uint32) bool {
	if err := s.turn(ctx); err != nil {
		return false
	}
	defer func() { <-s.learns }()
	v := s.now.Load()
	if v.of.Epoch > than {
		return true // somebody else asked
	}
	ask := v.tellers()
	if v.bound {
		if ask, _ = s.tellers(); ask == nil {
			return false
		}
	}
	m, _, _ := s.newest(ctx, v, ask)
	for end := time.NewTimer(tells); m == nil; m, _, _ = s.newest(ctx, v, ask) {
		select { // the node that said so may be about to tell its map
		case <-time.After(tells / 64):
		case <-end.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	if err := s.adopt(ctx, v, m); err != nil {
		s.log.Error("a newer map of the cluster is not followed", "epoch", m.Epoch, "error", err)
		return false
	}
	s.log.Info("a newer map of the cluster", "epoch", m.Epoch, "nodes", len(m.Nodes))
	return true
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

// tellers are the clients of the nodes.
func (v *view) tellers() (out []told) {
	for _, n := range v.owner {
		if t, ok := skep.As[teller](n.st); ok {
			out = append(out, told{n.Name, t})
		}
	}
	return out
}

// newest is the first newer map that one of those who are asked answers with; nil: none does, and why.
func (s *Store) newest(ctx context.Context, v *view, ask []told) (*clustermap.Map, told, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		m  *clustermap.Map
		by told
	}
	maps, errs := make(chan answer, len(ask)), make([]error, len(ask))
	var wait sync.WaitGroup
	for i, t := range ask {
		wait.Go(func() {
			text, err := t.ClusterMap(ctx)
			if err != nil {
				errs[i] = s.alone(t.name, err)
				return
			}
			m, err := clustermap.Parse(text)
			if err == nil && v.mapped() {
				if m.Epoch <= v.of.Epoch {
					return
				}
				err = m.Succeeds(v.of)
			}
			if err != nil {
				s.log.Warn("a node's map of the cluster is not followed", "node", t.name, "error", err)
				errs[i] = err
				return
			}
			maps <- answer{m, t}
			cancel()
		})
	}
	wait.Wait()
	select {
	case x := <-maps:
		return x.m, x.by, nil
	default:
		return nil, told{}, s.worst(errs)
	}
}

// adopt goes on by a newer map. Nodes keep their places, and those that it does not have any more stay for what has
// been begun with them.
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
		if !s.several() || local(at) {
			name, err = s.seed.Node(ctx)
		}
		if err != nil && !s.several() { // else another one told the map
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
			(mn.Addr == at || len(m.Nodes) == 1 || local(at) || s.numbered.Load()) {
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
	s.mu.Lock()
	if s.closed.Load() {
		s.mu.Unlock()
		return drop(&skep.Error{Op: op, Kind: skep.Closed})
	}
	next.ready()
	for i, n := range v.owner { // one that was down meanwhile, and ran on, may number its namespaces anew
		if v.mapped() && (v.of.Nodes[i].State == clustermap.Down || m.Epoch-v.of.Epoch > 1) {
			n.trips.Add(1)
		}
	}
	s.now.Store(next)
	s.mu.Unlock()
	for _, n := range v.owner {
		n.gone.Store(!has(next.owner, n))
	}
	s.merge.KeepUp()
	return nil
}

// seedNode is the node whose Store is the seed; nil: none.
func (v *view) seedNode(s *Store) *node {
	for _, n := range v.owner {
		if c, ok := n.st.(*wire.Client); ok && c == s.seed {
			return n
		}
	}
	return nil
}

// ready sets what follows from the nodes, and has the clients of several say that one is away: what is to be done
// then is the Store's to say.
func (v *view) ready() {
	v.live = v.owner
	if v.mapped() && len(v.of.Down()) > 0 {
		v.live = nil
		for i, n := range v.owner {
			if v.of.Nodes[i].State != clustermap.Down {
				v.live = append(v.live, n)
			}
		}
	}
	v.near = slices.Clone(v.live)
	slices.SortStableFunc(v.near, func(a, b *node) int {
		_, far := skep.As[*wire.Client](a.st)
		_, further := skep.As[*wire.Client](b.st)
		switch {
		case far == further:
			return 0
		case far:
			return 1
		}
		return -1
	})
	if v.only() != nil {
		return
	}
	for _, n := range v.owner {
		if c, ok := skep.As[interface{ SetStrict() }](n.st); ok {
			c.SetStrict()
		}
	}
}

func has(list []*node, n *node) bool {
	for _, x := range list {
		if x == n {
			return true
		}
	}
	return false
}

// outgrow keeps the numbers of namespaces that callers have of a cluster's only node, when another one comes.
func (s *Store) outgrow(ctx context.Context, v *view, n *node) error {
	of, err := n.life(ctx)
	if err != nil {
		return err
	}
	list, err := n.st.Namespaces(of.mark(ctx))
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
	err := s.seek(ctx, s.now.Load())
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
