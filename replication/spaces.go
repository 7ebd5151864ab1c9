package replication

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/replication/lives"
	"github.com/skepkv/skep/replication/placement"
	"github.com/skepkv/skep/wire"
)

// spaces is the namespaces that this Store has heard of. All nodes know a namespace by its tenant and name, and each
// has a number of its own for it: so has this Store.
type spaces struct {
	s *Store

	mu     sync.RWMutex
	last   skep.NamespaceID
	byID   map[skep.NamespaceID]*space
	byName map[spaceName]*space
	byNode *lives.Book // this Store's number of a node's, of deleted ones too
	turn   int         // how many lists of all namespaces were begun
	most   int         // with more, one is made: what no node has any more is forgotten
}

// fewSpaces is how many namespaces are not too many, whether there are so many or not.
const fewSpaces = 1 << 10

type spaceName struct{ tenant, name string }

// space is one namespace.
type space struct {
	skep.NamespaceInfo
	place placement.Space
	group int           // blocks of a chain that stay together; 1 where keys stand alone
	part  int64         // bytes of a block's kv part; 0: any
	size  atomic.Int64  // bytes of a block, as the last restore found; 0: not known
	ids   lives.Numbers // what the nodes call it
	turn  int           // of spaces, when a node told of it last
}

// life is the one that a node is in, to be asked what its numbers are.
func (n *node) life(ctx context.Context) (lives.Life, error) {
	return lives.Of(ctx, n.st, n.trips.Load())
}

// each is how many bytes a block of the namespace is taken for.
func (sp *space) each() int64 { return cmp.Or(sp.size.Load(), sp.part, 1<<20) }

func (p *spaces) init(s *Store) {
	p.s, p.most = s, fewSpaces
	p.byID, p.byName, p.byNode = map[skep.NamespaceID]*space{}, map[spaceName]*space{}, lives.NewBook()
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

// heard notes what a node said of a namespace in a life of its, and gives it as this Store knows it.
func (p *spaces) heard(n *node, of lives.Life, info skep.NamespaceInfo) (*space, error) {
	return p.heardAs(p.s.now.Load(), n, of, info, 0)
}

// heardAs is heard, by a view, of a namespace whose number here is given; 0: the next.
func (p *spaces) heardAs(
	by *view, n *node, of lives.Life, info skep.NamespaceInfo, id skep.NamespaceID,
) (*space, error) {
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
		if p.byID[sp.ID], p.byName[name] = sp, sp; len(p.byID) > p.most {
			p.most = 2 * len(p.byID)
			p.s.start(func() {
				v := p.s.now.Load()
				_, _ = many{p.s, v}.Namespaces(v.mark(p.s.ctx))
			})
		}
	}
	v := lives.Number{ID: info.ID, Of: of}
	p.byNode.Put(n.i, sp.ids.Get(n.i), v, sp.ID)
	sp.ids.Set(n.i, v)
	sp.turn = p.turn
	return sp, nil
}

// begin is the turn of a list of all namespaces.
func (p *spaces) begin() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn++
	return p.turn
}

// only forgets what no node has told of since a turn began, in which all of them said what they have.
func (p *spaces) only(turn int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sp := range p.byID {
		if sp.turn < turn {
			p.forgetLocked(sp)
		}
	}
	p.most = max(2*len(p.byID), fewSpaces)
}

func (p *spaces) forgetLocked(sp *space) {
	if p.byID[sp.ID] != sp {
		return
	}
	delete(p.byID, sp.ID)
	delete(p.byName, spaceName{sp.Tenant, sp.Name})
	for _, n := range p.s.now.Load().nodes {
		p.byNode.Leave(n.i, sp.ids.Get(n.i))
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

// of is this Store's number of what a node called that namespace in a life of its; 0 where it cannot be had.
func (p *spaces) of(ctx context.Context, n *node, of lives.Life, id skep.NamespaceID) skep.NamespaceID {
	p.mu.RLock()
	mine := p.byNode.Get(n.i, lives.Number{ID: id, Of: of})
	p.mu.RUnlock()
	if mine != 0 || id == 0 {
		return mine
	}
	info, err := n.st.FindNamespace(of.Mark(ctx), id)
	if err != nil {
		return 0
	}
	sp, err := p.heard(n, of, info)
	if err != nil {
		return 0
	}
	return sp.ID
}

// unlearn forgets what a node called namespaces in other lives than this one.
func (p *spaces) unlearn(n *node, but lives.Life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byNode.Unlearn(n.i, but)
}

// on calls f with a node's number of the namespace, and a context whose calls reach the node in the life that it is
// of. A node that does not have it, for it was away when the namespace was made, is given it where made says so; else f
// is not called: there is nothing.
func (s many) on(ctx context.Context, op string, n *node, sp *space, made bool,
	f func(ctx context.Context, id skep.NamespaceID) error) error {
	v := sp.ids.Sure(n.i, n.trips.Load())
	for try := 0; ; try++ {
		if v == nil {
			var err error
			if v, err = s.numberOn(ctx, n, sp, made); err != nil || v == nil {
				return err
			}
		}
		err := f(v.Of.Mark(ctx), v.ID)
		if err != nil && s.away(err) {
			n.trips.Add(1)
		}
		restarted := errors.Is(err, wire.ErrRestarted)
		if !restarted && skep.KindOf(err) != skep.NotFound || try > 1 {
			return err
		}
		if !restarted {
			if err := s.elsewhere(ctx, op, n, sp); err != nil {
				return err
			}
		}
		v = nil // the node has lost it, or numbers it otherwise
	}
}

// numberOn asks a node for its number of a namespace; nil: it does not have it. Made has the node be given it then,
// where another node has it, or one that is down may: else somebody has deleted it.
func (s many) numberOn(ctx context.Context, n *node, sp *space, made bool) (*lives.Number, error) {
	of, err := n.life(ctx)
	if err != nil {
		return nil, err
	}
	list, err := n.st.NamespacesOf(of.Mark(ctx), sp.Tenant)
	if err != nil {
		return nil, err
	}
	var v *lives.Number
	for _, x := range list { // the others are asked for next
		_, bad := s.spaces.heard(n, of, x)
		if x.NamespaceSpec == sp.NamespaceSpec {
			v, err = &lives.Number{ID: x.ID, Of: of}, bad
		}
	}
	if v == nil && made && !s.missed() {
		err = s.elsewhere(ctx, "open namespace", n, sp)
	}
	if v != nil || !made || err != nil {
		return v, err
	}
	info, err := n.st.OpenNamespace(of.Mark(ctx), sp.NamespaceSpec)
	if err == nil {
		_, err = s.spaces.heard(n, of, info)
	}
	return &lives.Number{ID: info.ID, Of: of}, err
}

// has says whether a node has the namespace: by the number that it gave last, in the same life.
func (s many) has(ctx context.Context, n *node, sp *space) (bool, error) {
	if v := sp.ids.Get(n.i); v != nil {
		info, err := n.st.FindNamespace(v.Of.Mark(ctx), v.ID)
		if skep.KindOf(err) == skep.NotFound {
			return false, nil
		}
		if !errors.Is(err, wire.ErrRestarted) {
			return err == nil && info.NamespaceSpec == sp.NamespaceSpec, err
		}
	}
	v, err := s.numberOn(ctx, n, sp, false)
	return v != nil, err
}

// askedAtOnce is how many nodes are asked whether they have a namespace, beside one another.
const askedAtOnce = 8

// elsewhere is nil where another node has the namespace, else the error that none has it, or that one did not answer.
func (s many) elsewhere(ctx context.Context, op string, not *node, sp *space) (lost error) {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	var there atomic.Bool
	turns := make(chan struct{}, askedAtOnce)
	err := s.all(ctx, "find namespace", func(n *node) error {
		if n == not {
			return nil
		}
		turns <- struct{}{}
		defer func() { <-turns }()
		has, err := s.has(within, n, sp)
		if has {
			there.Store(true)
			cancel() // one is enough
		}
		return err
	})
	switch {
	case there.Load():
		return nil
	case err != nil:
		return err
	}
	return s.nowhere(op, sp)
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
	for _, n := range s.live {
		of, err := n.life(ctx)
		var info skep.NamespaceInfo
		if err == nil {
			info, err = n.st.OpenNamespace(of.Mark(ctx), spec)
		}
		if err == nil {
			if spec.Copies == 0 {
				spec.Copies = info.Copies // this node's servers said how many: the others have as many
			}
			sp, err = s.spaces.heard(n, of, info)
		} else {
			err = s.passOver(ctx, op, n, err, &lost)
		}
		if err != nil {
			return skep.NamespaceInfo{}, err
		}
	}
	if sp == nil {
		return skep.NamespaceInfo{}, lost
	}
	return sp.NamespaceInfo, nil
}

// list is the namespaces that some node has. All says that no node is down, or did not answer.
func (s many) list(
	ctx context.Context, op string, ask func(ctx context.Context, n *node) ([]skep.NamespaceInfo, error),
) (out []skep.NamespaceInfo, all bool, err error) {
	if err := s.begin(ctx, op); err != nil {
		return nil, false, err
	}
	lists := make([][]skep.NamespaceInfo, len(s.nodes))
	of := make([]lives.Life, len(s.nodes))
	answered := 0
	var lost error
	errs := s.each(func(n *node) (err error) {
		if of[n.i], err = n.life(ctx); err == nil {
			lists[n.i], err = ask(of[n.i].Mark(ctx), n)
		}
		return err
	})
	for _, n := range s.live {
		if err := errs[n.i]; err == nil {
			answered++
		} else if err := s.passOver(ctx, op, n, err, &lost); err != nil {
			return nil, false, err
		}
	}
	if answered == 0 {
		return nil, false, lost
	}
	seen := map[skep.NamespaceID]bool{}
	for i, list := range lists {
		for _, info := range list {
			sp, err := s.spaces.heard(s.nodes[i], of[i], info)
			if err != nil {
				return nil, false, err
			}
			if !seen[sp.ID] {
				seen[sp.ID] = true
				out = append(out, sp.NamespaceInfo)
			}
		}
	}
	slices.SortFunc(out, func(a, b skep.NamespaceInfo) int { return cmp.Compare(a.ID, b.ID) })
	return out, answered == len(s.owner), nil
}

// Namespaces implements skep.Namespacer: those of the nodes that answer. What none has, when all do, is forgotten.
func (s many) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	turn := s.spaces.begin()
	out, all, err := s.list(ctx, "namespaces", func(ctx context.Context, n *node) ([]skep.NamespaceInfo, error) {
		return n.st.Namespaces(ctx)
	})
	if err == nil && all {
		s.spaces.only(turn)
	}
	return out, err
}

// NamespacesOf implements skep.Namespacer: those of the nodes that answer.
func (s many) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	out, _, err := s.list(ctx, "namespaces of", func(ctx context.Context, n *node) ([]skep.NamespaceInfo, error) {
		return n.st.NamespacesOf(ctx, tenant)
	})
	return out, err
}

// FindNamespace implements skep.Namespacer. Somebody else may have deleted the namespace: the nearest node is asked,
// which is one in this process where there is one, then the others beside one another.
func (s many) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	const op = "find namespace"
	sp, err := s.enter(ctx, op, id)
	if err != nil {
		return skep.NamespaceInfo{}, err
	}
	not, there := s.near[0], false
	if there, err = s.has(ctx, not, sp); err != nil {
		not = nil // it is asked once more, with the others
	}
	if !there {
		err = s.elsewhere(ctx, op, not, sp)
	}
	if err != nil {
		return skep.NamespaceInfo{}, err
	}
	return sp.NamespaceInfo, nil
}

// nowhere is the error of a namespace that no node has that can be asked. It was deleted, unless it is durable and a
// node that is down may have it.
func (s many) nowhere(op string, sp *space) error {
	if down := s.of.Down(); len(down) > 0 && sp.Class == skep.Durable {
		return &skep.Error{Op: op, Kind: skep.Unavailable, Field: "node", Value: down[0].Name,
			Limit: "one that is not down: it may have the namespace"}
	}
	s.spaces.forget(sp)
	_, err := s.spaces.get(op, sp.ID)
	return err
}

// DeleteNamespace implements skep.Namespacer. It has to reach every node: where one did not answer, the namespace is
// there, and to be deleted again.
func (s many) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	const op = "delete namespace"
	sp, err := s.enter(ctx, op, id)
	if err != nil {
		return err
	}
	err = s.all(ctx, op, func(n *node) error {
		err := s.deleteOn(ctx, n, sp, sp.ids.Sure(n.i, n.trips.Load()))
		if errors.Is(err, wire.ErrRestarted) {
			err = s.deleteOn(ctx, n, sp, nil)
		}
		return err
	})
	if err == nil {
		s.spaces.forget(sp)
	}
	return err
}

// deleteOn deletes the namespace on one node, by its number, which is asked for where it is nil.
func (s many) deleteOn(ctx context.Context, n *node, sp *space, v *lives.Number) (err error) {
	if v == nil {
		if v, err = s.numberOn(ctx, n, sp, s.missed()); err != nil || v == nil {
			return err
		}
	}
	if err := n.st.DeleteNamespace(v.Of.Mark(ctx), v.ID); skep.KindOf(err) != skep.NotFound {
		return err
	}
	return nil // somebody else was first, or an earlier try
}
