package replication

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/replication/placement"
)

// spaces is the namespaces that this Store has heard of. All nodes know a namespace by its tenant and name, and each
// has a number of its own for it: so has this Store.
type spaces struct {
	s *Store

	mu     sync.RWMutex
	last   skep.NamespaceID
	byID   map[skep.NamespaceID]*space
	byName map[spaceName]*space
	byNode map[nodeSpace]skep.NamespaceID // this Store's number of a node's, of deleted ones too
	gone   []nodeSpace                    // of byNode, what is of a namespace that was deleted; the oldest first
}

// rememberGone is how many numbers of deleted namespaces are remembered, for the events that tell of it.
const rememberGone = 1 << 12

type spaceName struct{ tenant, name string }

type nodeSpace struct {
	node int
	id   skep.NamespaceID
}

// space is one namespace.
type space struct {
	skep.NamespaceInfo
	place placement.Space
	group int                             // blocks of a chain that stay together; 1 where keys stand alone
	part  int64                           // bytes of a block's kv part; 0: any
	ids   atomic.Pointer[[]atomic.Uint64] // the nodes' numbers, below how often each had been away when it was asked; 0: not known
}

// id is a node's number of the namespace, as it said last.
func (sp *space) id(n *node) skep.NamespaceID { return skep.NamespaceID(uint32(sp.known(n))) }

func (sp *space) known(n *node) uint64 {
	if ids := sp.ids.Load(); ids != nil && n.i < len(*ids) {
		return (*ids)[n.i].Load()
	}
	return 0
}

// know notes a node's number. spaces.mu is held.
func (sp *space) know(n *node, v uint64) {
	ids := sp.ids.Load()
	if ids == nil || n.i >= len(*ids) {
		more := make([]atomic.Uint64, n.i+1)
		for i := range more[:n.i] {
			if ids != nil && i < len(*ids) {
				more[i].Store((*ids)[i].Load())
			}
		}
		ids = &more
		defer sp.ids.Store(ids)
	}
	(*ids)[n.i].Store(v)
}

// sure is id, where the node has not been away since: it may have come back as another, with other numbers.
func (sp *space) sure(n *node) skep.NamespaceID {
	v := sp.known(n)
	if uint32(v>>32) != n.trips.Load() {
		return 0
	}
	return skep.NamespaceID(uint32(v))
}

func (p *spaces) init(s *Store) {
	p.s = s
	p.byID, p.byName, p.byNode = map[skep.NamespaceID]*space{}, map[spaceName]*space{}, map[nodeSpace]skep.NamespaceID{}
}

// get finds the namespace of this Store's number.
func (p *spaces) get(op string, id skep.NamespaceID) (*space, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if sp := p.byID[id]; sp != nil {
		return sp, nil
	}
	return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: id, Limit: "one that was opened"}
}

// heard notes what a node says of a namespace, asked when it had been away so often, and gives it as this Store knows
// it.
func (p *spaces) heard(n *node, trips uint32, info skep.NamespaceInfo) (*space, error) {
	return p.heardAs(p.s.now.Load(), n, trips, info, 0)
}

// heardAs is heard, by a view, of a namespace whose number here is given; 0: the next.
func (p *spaces) heardAs(by *view, n *node, trips uint32, info skep.NamespaceInfo, id skep.NamespaceID) (*space, error) {
	g, err := layout.Of(info.Shape)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	name := spaceName{info.Tenant, info.Name}
	sp := p.byName[name]
	if sp != nil && sp.NamespaceSpec != info.NamespaceSpec {
		p.forgetLocked(sp) // deleted and made anew, by somebody else
		sp = nil
	}
	if sp == nil {
		if id == 0 {
			id = p.last + 1
		}
		p.last = max(p.last, id)
		place := by.table.Space(info.Tenant, info.Name) // the same by every map, as the group is
		sp = &space{NamespaceInfo: info, place: place, group: 1, part: g.PartBytes()}
		sp.ID = id
		if sp.Chained {
			sp.group = by.of.Group
		}
		p.byID[sp.ID], p.byName[name] = sp, sp
	}
	sp.know(n, uint64(trips)<<32|uint64(info.ID))
	p.byNode[nodeSpace{n.i, info.ID}] = sp.ID
	return sp, nil
}

func (p *spaces) forgetLocked(sp *space) {
	if p.byID[sp.ID] != sp {
		return
	}
	delete(p.byID, sp.ID)
	delete(p.byName, spaceName{sp.Tenant, sp.Name})
	for _, n := range p.s.now.Load().nodes {
		if id := sp.id(n); id != 0 {
			p.gone = append(p.gone, nodeSpace{n.i, id})
		}
	}
	for len(p.gone) > rememberGone {
		delete(p.byNode, p.gone[0])
		p.gone = p.gone[1:]
	}
}

// forget takes out a namespace that was deleted, and those that hold its clustered contexts.
func (p *spaces) forget(sp *space) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.byID {
		if o == sp || sp.Clusters(o.NamespaceSpec) {
			p.forgetLocked(o)
		}
	}
}

// of is this Store's number of a node's namespace; 0 where it cannot be had.
func (p *spaces) of(ctx context.Context, n *node, id skep.NamespaceID) skep.NamespaceID {
	p.mu.RLock()
	mine := p.byNode[nodeSpace{n.i, id}]
	p.mu.RUnlock()
	if mine != 0 || id == 0 {
		return mine
	}
	trips := n.trips.Load()
	info, err := n.st.FindNamespace(ctx, id)
	if err != nil {
		return 0
	}
	sp, err := p.heard(n, trips, info)
	if err != nil {
		return 0
	}
	return sp.ID
}

// on calls f with a node's number of the namespace. A node that does not have it, for it was away when the namespace
// was made, is given it where made says so; else f is not called: there is nothing.
func (s many) on(ctx context.Context, op string, n *node, sp *space, made bool, f func(id skep.NamespaceID) error) error {
	id := sp.sure(n)
	for try := 0; ; try++ {
		if id == 0 {
			var err error
			if id, err = s.numberOn(ctx, n, sp, made); err != nil || id == 0 {
				return err
			}
		}
		err := f(id)
		if err != nil && s.away(err) {
			n.trips.Add(1)
		}
		if skep.KindOf(err) != skep.NotFound || try > 0 {
			return err
		}
		if !s.elsewhere(ctx, n, sp) {
			s.spaces.forget(sp)
			return &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: sp.ID, Limit: "one that was opened"}
		}
		id = 0 // the node has lost it
	}
}

// numberOn asks a node for its number of a namespace.
func (s many) numberOn(ctx context.Context, n *node, sp *space, made bool) (skep.NamespaceID, error) {
	trips := n.trips.Load()
	if made {
		info, err := n.st.OpenNamespace(ctx, sp.NamespaceSpec)
		if err == nil {
			_, err = s.spaces.heard(n, trips, info)
		}
		return info.ID, err
	}
	list, err := n.st.NamespacesOf(ctx, sp.Tenant)
	if err != nil {
		return 0, err
	}
	for _, info := range list {
		if info.NamespaceSpec == sp.NamespaceSpec {
			_, err := s.spaces.heard(n, trips, info)
			return info.ID, err
		}
	}
	return 0, nil
}

// elsewhere says whether another node still has the namespace.
func (s many) elsewhere(ctx context.Context, not *node, sp *space) bool {
	for _, n := range s.nodes {
		if id := sp.id(n); n != not && id != 0 {
			if _, err := n.st.FindNamespace(ctx, id); err == nil {
				return true
			}
		}
	}
	return false
}

// OpenNamespace implements skep.Namespacer. The nodes are asked in the map's order, so that of two callers who want
// different things of a name the first node decides; those that do not answer get the namespace with their first block.
func (s many) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	const op = "open namespace"
	if err := spec.Validate(); err != nil {
		return skep.NamespaceInfo{}, err
	}
	if err := s.begin(ctx, op); err != nil {
		return skep.NamespaceInfo{}, err
	}
	var sp *space
	var lost error
	for _, n := range s.nodes {
		trips := n.trips.Load()
		info, err := n.st.OpenNamespace(ctx, spec)
		switch {
		case err == nil:
			if sp, err = s.spaces.heard(n, trips, info); err != nil {
				return skep.NamespaceInfo{}, err
			}
		case ctx.Err() != nil:
			return skep.NamespaceInfo{}, ended(ctx, op)
		case !s.away(err):
			return skep.NamespaceInfo{}, err
		case lost == nil:
			lost = n.missing(op, err)
		}
	}
	if sp == nil {
		return skep.NamespaceInfo{}, lost
	}
	return sp.NamespaceInfo, nil
}

// list is the namespaces that some node has.
func (s many) list(ctx context.Context, op string, ask func(n *node) ([]skep.NamespaceInfo, error)) ([]skep.NamespaceInfo, error) {
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	lists := make([][]skep.NamespaceInfo, len(s.nodes))
	trips := make([]uint32, len(s.nodes))
	answered := 0
	var lost error
	for i, err := range s.each(func(n *node) (err error) {
		trips[n.i] = n.trips.Load()
		lists[n.i], err = ask(n)
		return err
	}) {
		switch {
		case err == nil:
			answered++
		case ctx.Err() != nil:
			return nil, ended(ctx, op)
		case !s.away(err):
			return nil, err
		case lost == nil:
			lost = s.nodes[i].missing(op, err)
		}
	}
	if answered == 0 {
		return nil, lost
	}
	var out []skep.NamespaceInfo
	seen := map[skep.NamespaceID]bool{}
	for i, list := range lists {
		for _, info := range list {
			sp, err := s.spaces.heard(s.nodes[i], trips[i], info)
			if err != nil {
				return nil, err
			}
			if !seen[sp.ID] {
				seen[sp.ID] = true
				out = append(out, sp.NamespaceInfo)
			}
		}
	}
	slices.SortFunc(out, func(a, b skep.NamespaceInfo) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Namespaces implements skep.Namespacer: those of the nodes that answer.
func (s many) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	return s.list(ctx, "namespaces", func(n *node) ([]skep.NamespaceInfo, error) { return n.st.Namespaces(ctx) })
}

// NamespacesOf implements skep.Namespacer: those of the nodes that answer.
func (s many) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	return s.list(ctx, "namespaces of", func(n *node) ([]skep.NamespaceInfo, error) { return n.st.NamespacesOf(ctx, tenant) })
}

// FindNamespace implements skep.Namespacer. Somebody else may have deleted the namespace: a node that has it is
// asked, one that is in this process before others.
func (s many) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	const op = "find namespace"
	if err := s.begin(ctx, op); err != nil {
		return skep.NamespaceInfo{}, err
	}
	sp, err := s.spaces.get(op, id)
	if err != nil {
		return skep.NamespaceInfo{}, err
	}
	var lost error
	for _, n := range s.near {
		id := sp.id(n)
		if id == 0 {
			continue
		}
		_, err := n.st.FindNamespace(ctx, id)
		switch {
		case err == nil:
			return sp.NamespaceInfo, nil
		case ctx.Err() != nil:
			return skep.NamespaceInfo{}, ended(ctx, op)
		case skep.KindOf(err) == skep.NotFound:
		case !s.away(err):
			return skep.NamespaceInfo{}, err
		case lost == nil:
			lost = n.missing(op, err)
		}
	}
	if lost == nil {
		s.spaces.forget(sp)
		_, lost = s.spaces.get(op, id)
	}
	return skep.NamespaceInfo{}, lost
}

// DeleteNamespace implements skep.Namespacer. It has to reach every node: where one did not answer, the namespace is
// there, and to be deleted again.
func (s many) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	const op = "delete namespace"
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	sp, err := s.spaces.get(op, id)
	if err != nil {
		return err
	}
	err = s.all(ctx, op, func(n *node) error {
		id := sp.sure(n)
		if id == 0 {
			var err error
			if id, err = s.numberOn(ctx, n, sp, false); err != nil || id == 0 {
				return err
			}
		}
		if err := n.st.DeleteNamespace(ctx, id); skep.KindOf(err) != skep.NotFound {
			return err
		}
		return nil // somebody else was first, or an earlier try
	})
	if err == nil {
		s.spaces.forget(sp)
	}
	return err
}
