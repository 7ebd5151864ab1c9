// Package fence is what a node's own Store is behind where the nodes agree on the map: the node serves nothing before
// it knows what it missed and has lost that, and what is deleted here is remembered for the nodes that are down.
//
// A node is down (clustermap.Down) because an operator says so, or by itself where the nodes agree on a silence after
// which one is (clustermap.Silence). Where they do, each keeps to a lease: it serves while it was heard in the last
// half of the silence, by most voters, so that nobody who reaches it alone is served what was deleted meanwhile. Where
// they do not, it is not to be said of one that runs and cannot be reached: clients that reach it go on with it.
// A machine that its hypervisor pauses, without its clock telling, serves after that until it hears of the map.
//
// What is remembered are namespaces, in the map (clustermap.Missed), and so by most voters, on their drives. A
// deletion of keys is one command for a namespace while a node is down, whatever is deleted in it after that. A node
// that was down begins without those namespaces: repair sends it what others have of them. So it is done for what may
// be lost (skep.Cache), and for namespaces of any class that are deleted or purged whole.
//
//	keys or a salt of a cache namespace     done; the node loses its part of the namespace
//	a namespace, all of it, of a tenant     done, of any class
//	keys or a salt of a durable one         refused, and nothing is deleted: more than that would be lost
//	a model                                 refused
//
// A node is remembered clustermap.MaxMissed namespaces, MaxMissedOfTenant of one tenant. When something is deleted in
// one more, it loses all of class Cache of that tenant, or of all; a durable one more is refused. It loses cache
// namespaces whose keys stand alone anyway: these may have been written over.
package fence

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/calls"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/wire/epoch"
)

// Registry is where the nodes agree on the map (package consensus).
type Registry interface {
	Map() *clustermap.Map
	Propose(ctx context.Context, c *clustermap.Command) (epoch uint32, err error)
	// Renew has the node be heard by most voters. Behind: they agree that it is down.
	Renew(ctx context.Context) error
	// LeftBehind is why the node is of no cluster any more: that was recovered without it. Nil: it is.
	LeftBehind() error
}

// Fence is a node's own Store. Until Return has succeeded its blocks and namespaces are refused as Behind, which has
// clients go on as if the node were away.
type Fence struct {
	skep.Store
	own   skep.Store // without what recalls copies
	gated calls.Calls
	name  string
	id    uint64

	// Clock is how long the machine has run, its sleep included; to be set before the node returns, if at all.
	Clock func() time.Duration

	mu    sync.Mutex
	reg   Registry // nil: not yet
	open  bool
	lease lease
}

// New wraps the Store of the node of that name and number, and closes it. What the node lost is deleted from own,
// which is in it: copies of it that were sent to other nodes are not recalled, where they may have been put again
// since.
func New(st, own skep.Store, name string, id uint64) *Fence {
	f := &Fence{Store: st, own: own, name: name, id: id, Clock: awake}
	f.gated = calls.New(func(ctx context.Context, call func(ctx context.Context, st skep.Store) error) error {
		if _, err := f.serves(); err != nil {
			return err
		}
		return call(ctx, f.Store)
	})
	return f
}

// isOpen is Open; mu is held.
func (f *Fence) isOpen() bool {
	return f.open && !f.lease.over(f.Clock()) && f.reg.LeftBehind() == nil
}

// serves refuses what comes before the node serves, and gives where the nodes agree.
func (f *Fence) serves() (Registry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isOpen() {
		return nil, &skep.Error{Op: "call", Kind: skep.Behind, Field: "node", Value: f.name,
			Limit: "one that has heard from most voters what it missed"}
	}
	return f.reg, nil
}

// Unwrap gives the Store.
func (f *Fence) Unwrap() skep.Store { return f.Store }

// Open says whether the node serves.
func (f *Fence) Open() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.isOpen()
}

// Heard is told each map that is agreed on. It says whether the node is to Return, because it is down by it, or keeps
// to another lease.
func (f *Fence) Heard(m *clustermap.Map) (returns bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.downIn(m) {
		f.open = false
		return true
	}
	return f.in(m) != nil && m.Silence.Epoch != f.lease.since
}

// in is the node in a map; nil: that has it not, though another one may have its name.
func (f *Fence) in(m *clustermap.Map) *clustermap.Node {
	if n, err := m.Node(f.name); err == nil && n.ID == f.id {
		return n
	}
	return nil
}

func (f *Fence) downIn(m *clustermap.Map) bool {
	n := f.in(m)
	return n != nil && n.State == clustermap.Down
}

// Return has the node serve, when most voters have said that it is not down; where it is, when it has lost what it
// missed, and they have agreed that it is not.
//
// Errors: those of the Registry, NotFound where the map lacks the node, those of the own Store.
func (f *Fence) Return(ctx context.Context, reg Registry) error {
	f.mu.Lock()
	f.reg = reg
	f.mu.Unlock()
	lost := uint32(0)
	for {
		by := clustermap.Silence{}
		if m := reg.Map(); m != nil {
			by = m.Silence
		}
		f.promise(by.After)
		from := f.Clock()
		c := clustermap.Command{Do: clustermap.Return, Name: f.name, ID: f.id, Lost: lost, Since: by.Epoch}
		epoch, err := reg.Propose(ctx, &c)
		if err == nil && f.opened(by, from) {
			return nil
		}
		if err != nil && !errors.Is(err, skep.Conflict) {
			return err
		}
		m, err := reached(ctx, reg, epoch)
		if err == nil {
			err = f.lose(ctx, m)
		}
		if err != nil {
			return err
		}
		lost = m.Epoch
	}
}

// Alone has the only node of a cluster serve: nothing was deleted without it. m is the map that it knows.
func (f *Fence) Alone(reg Registry, m *clustermap.Map) {
	f.promise(m.Silence.After)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reg, f.open = reg, true
}

// opened opens, unless the node is down once more. It keeps to the lease that most voters have noted now.
func (f *Fence) opened(by clustermap.Silence, from time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lease = lease{by.After, by.Epoch, max(f.lease.heard, from)}
	f.open = !f.downIn(f.reg.Map())
	return f.open
}

// reached is the map of an epoch, or a newer one.
func reached(ctx context.Context, reg Registry, epoch uint32) (*clustermap.Map, error) {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for {
		if m := reg.Map(); m != nil && m.Epoch >= epoch {
			return m, nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, &skep.Error{Op: "return", Kind: skep.Deadline, Field: "epoch", Value: epoch, Err: ctx.Err()}
		}
	}
}

// bucketed is a Store with object storage behind it, where others have said what they deleted (package bucket).
type bucketed interface {
	Relearn()
	LoseNamespace(ctx context.Context, id skep.NamespaceID) error
}

// lose deletes the namespaces that the node is to lose by a map.
func (f *Fence) lose(ctx context.Context, m *clustermap.Map) error {
	n := f.in(m)
	if n == nil || n.Missed == nil {
		return nil
	}
	del := f.own.DeleteNamespace
	if b, ok := skep.As[bucketed](f.own); ok {
		b.Relearn()
		del = b.LoseNamespace
	}
	list, err := f.own.Namespaces(ctx)
	if err != nil {
		return err
	}
	for _, info := range list {
		if !n.Missed.Loses(&info.NamespaceSpec) {
			continue
		}
		if err := del(ctx, info.ID); err != nil && skep.KindOf(err) != skep.NotFound {
			return err
		}
	}
	return nil
}

// now is the map that a deletion is compared with; nil: there is none yet. A deletion by a map in which a node was
// down that has returned since has passed it by, and the node did not lose what nobody had told it: it is StaleMap.
func (f *Fence) now(ctx context.Context) (Registry, *clustermap.Map, error) {
	reg, err := f.serves()
	if err != nil {
		return nil, nil, err
	}
	m := reg.Map()
	if by := epoch.By(ctx); m != nil && by != 0 && by < m.Returned {
		return nil, nil, &skep.Error{Op: "delete", Kind: skep.StaleMap, Field: "epoch", Value: by, Limit: m.Returned}
	}
	return reg, m, nil
}

// Missed says whether the node of a number is down and loses such a namespace before it serves again.
func (f *Fence) Missed(node uint64, spec *skep.NamespaceSpec) bool {
	f.mu.Lock()
	reg := f.reg
	f.mu.Unlock()
	if reg == nil || reg.Map() == nil {
		return false
	}
	return slices.ContainsFunc(reg.Map().Down(), func(n *clustermap.Node) bool {
		return n.ID == node && n.Missed.Loses(spec)
	})
}

// missed has the nodes that are down remember a namespace, or all of a tenant, before something is deleted here. One
// that comes back meanwhile is an error, StaleMap: it is to be deleted from there, too.
func (f *Fence) missed(ctx context.Context, c clustermap.Command) error {
	reg, m, err := f.now(ctx)
	if err != nil || m == nil || m.Remembers(&c) {
		return err
	}
	if _, err := m.Apply(&c); err != nil { // what is refused is not written down by most voters first
		return err
	}
	if _, err := reg.Propose(ctx, &c); err != nil {
		return err
	}
	now := reg.Map()
	for _, n := range m.Down() { // the caller passes it by, and it is up, perhaps without having been told
		if then, err := now.Node(n.Name); err == nil && then.State != clustermap.Down {
			return &skep.Error{Op: "delete", Kind: skep.StaleMap, Field: "epoch", Value: m.Epoch, Limit: now.Epoch}
		}
	}
	return nil
}

// missedIn is missed of a namespace here. A durable one is remembered where all of it goes.
func (f *Fence) missedIn(ctx context.Context, id skep.NamespaceID, all bool) error {
	info, err := f.gated.FindNamespace(ctx, id)
	if err != nil {
		return err
	}
	if info.Class != skep.Cache && !all {
		_, _, err := f.now(ctx)
		return err
	}
	return f.missed(ctx, clustermap.Command{Do: clustermap.Miss, Tenant: info.Tenant, Name: info.Name,
		Spares: info.Class == skep.Cache})
}

// Delete implements skep.Deleter. Keys of a durable namespace are remembered for nobody: who deletes them has to reach
// all nodes.
func (f *Fence) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	if err := f.missedIn(ctx, sc.Namespace, false); err != nil {
		return 0, err
	}
	return f.gated.Delete(ctx, sc, keys)
}

// Purge implements skep.Deleter. Of a model it is remembered for nobody.
func (f *Fence) Purge(ctx context.Context, p skep.Purge) error {
	var err error
	switch {
	case p.Salt != nil:
		err = f.missedIn(ctx, p.Salt.Namespace, false)
	case p.Tenant != "":
		err = f.missed(ctx, clustermap.Command{Do: clustermap.Miss, Tenant: p.Tenant})
	case p.Namespace != 0:
		err = f.missedIn(ctx, p.Namespace, true)
	default:
		_, _, err = f.now(ctx)
	}
	if err != nil {
		return err
	}
	return f.gated.Purge(ctx, p)
}

// DeleteNamespace implements skep.Namespacer.
func (f *Fence) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	if err := f.missedIn(ctx, id, true); err != nil {
		return err
	}
	return f.gated.DeleteNamespace(ctx, id)
}
