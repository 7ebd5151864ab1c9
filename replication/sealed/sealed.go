package sealed

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/wire/epoch"
)

// Registry is where the nodes agree on the map (package consensus).
type Registry interface {
	Map() *clustermap.Map
	Propose(ctx context.Context, c *clustermap.Command) (epoch uint32, err error)
	// Unheard is a node of the map that is not down and does not say that it has the map of an epoch; nil: there is none.
	Unheard(ctx context.Context, epoch uint32) *clustermap.Node
}

// Gate is a node's own Store. New makes one; Join follows before it serves, and Agree runs while it does.
type Gate struct {
	skep.Store
	log    *slog.Logger
	joined atomic.Pointer[joined]
	keys   atomic.Pointer[keys]
	facts  atomic.Pointer[facts]
	wake   chan struct{} // has an element where other keys are there

	mu   sync.Mutex
	told map[string]said // what was seen last of a tenant
}

type said struct {
	what  string
	times int
}

type joined struct {
	Registry
	known *clustermap.Map
}

// keys are the tenants that the Store has keys for; those of changing are about to have some.
type keys struct{ of, changing map[string]bool }

// facts are what a map says.
type facts struct {
	by *clustermap.Map
	is map[string]clustermap.Sealing
}

// New wraps a node's own Store, which has keys for these tenants, clustermap.EveryTenant for those that have none of
// their own.
func New(st skep.Store, tenants []string, log *slog.Logger) *Gate {
	g := &Gate{Store: st, log: log, wake: make(chan struct{}, 1), told: map[string]said{}}
	g.keys.Store(&keys{of: setOf(tenants)})
	g.facts.Store(&facts{})
	return g
}

func setOf(list []string) map[string]bool {
	out := make(map[string]bool, len(list))
	for _, s := range list {
		out[s] = true
	}
	return out
}

// Unwrap gives the Store.
func (g *Gate) Unwrap() skep.Store { return g.Store }

// Join says where the nodes agree, and which map this one knew last.
func (g *Gate) Join(reg Registry, known *clustermap.Map) { g.joined.Store(&joined{reg, known}) }

// Replace has the Store have keys for these tenants, by do. Of those that had none it takes no block meanwhile: what do
// has encrypted already the others may not have heard of.
func (g *Gate) Replace(tenants []string, do func() error) error {
	was := g.keys.Load()
	next := setOf(tenants)
	changing := maps.Clone(next)
	maps.DeleteFunc(changing, func(t string, _ bool) bool { return was.of[t] })
	g.keys.Store(&keys{was.of, changing})
	if err := do(); err != nil {
		g.keys.Store(was)
		return err
	}
	g.keys.Store(&keys{of: next})
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return nil
}

// Keys are the tenants that this node has keys for.
func (g *Gate) Keys() []string {
	return append([]string{}, slices.Sorted(maps.Keys(g.keys.Load().of))...)
}

// LacksKeys are the tenants of which it takes no blocks, because others encrypt them and it has no key.
func (g *Gate) LacksKeys() []string {
	return clustermap.LacksKeys(slices.Sorted(maps.Keys(g.now().is)), g.Keys())
}

// Settled says that blocks are taken of every tenant that this node has a key for.
func (g *Gate) Settled() bool { return len(g.waiting(g.now())) == 0 }

// waiting are the tenants with a key of which it is not agreed yet that they are encrypted.
func (g *Gate) waiting(f *facts) (out []string) {
	for t := range g.keys.Load().of {
		if f.is[t] != clustermap.Sealed {
			out = append(out, t)
		}
	}
	slices.Sort(out)
	return out
}

// now is what the newest map says that this node knows; by is nil: it knows of none.
func (g *Gate) now() *facts {
	j := g.joined.Load()
	if j == nil {
		return &facts{}
	}
	m := j.Map()
	if m == nil || j.known != nil && m.Epoch < j.known.Epoch { // it is begun anew, and hears the log again
		m = j.known
	}
	f := g.facts.Load()
	if m != nil && f.by != m {
		f = &facts{m, m.Sealings()}
		g.facts.Store(f)
	}
	return f
}

// state is what is agreed on of a tenant.
func (f *facts) state(tenant string) clustermap.Sealing {
	return max(f.is[tenant], f.is[clustermap.EveryTenant])
}

func has(of map[string]bool, tenant string) bool { return of[tenant] || of[clustermap.EveryTenant] }

// refuses is why nothing is written of a namespace now; nil: it is.
func (g *Gate) refuses(ctx context.Context, op string, id skep.NamespaceID) error {
	f, k := g.now(), g.keys.Load()
	if f.by != nil && len(f.is) == 0 && len(k.of) == 0 && len(k.changing) == 0 {
		return nil
	}
	info, err := g.Store.FindNamespace(ctx, id)
	switch skep.KindOf(err) {
	case skep.NotFound, skep.Closed:
		return nil // the Store says so itself
	}
	if err != nil {
		return err
	}
	return refusal(op, info.Tenant, f, k)
}

// writer is a block that was begun by a node without a key: it is not encrypted.
type writer struct {
	skep.BlockWriter
	g      *Gate
	tenant string
}

// Commit implements skep.BlockWriter. What is agreed on since it was begun counts.
func (w *writer) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	if no := refusal("commit", w.tenant, w.g.now(), &keys{}); no != nil {
		return skep.PutResult{Outcome: skep.Declined, Reason: skep.KindOf(no)}, w.Abort(ctx)
	}
	return w.BlockWriter.Commit(ctx, ack)
}

// Takes says whether blocks of a tenant are taken now.
func (g *Gate) Takes(tenant string) bool {
	return refusal("put", tenant, g.now(), g.keys.Load()) == nil
}

func refusal(op, tenant string, f *facts, k *keys) error {
	keyed := has(k.of, tenant)
	switch is := f.state(tenant); {
	case f.by == nil, has(k.changing, tenant) && !keyed, keyed && is != clustermap.Sealed:
		return &skep.Error{Op: op, Kind: skep.Unavailable, Field: "encryption of tenant " + tenant, Value: "about to begin",
			Limit: "known to every node that is not down: skep cluster status says which does not answer"}
	case !keyed && is != clustermap.Plain:
		return &skep.Error{Op: op, Kind: skep.Denied, Field: "encryption key of tenant " + tenant,
			Value: "not given to this node", Limit: "here, too, since other nodes of the cluster encrypt its blocks: name " +
				"the file with it (encryption_key_file) in this node's settings"}
	}
	return nil
}

// Put implements skep.Putter.
func (g *Gate) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	err := g.refuses(ctx, "put", r.Namespace)
	if err == nil {
		return g.Store.Put(ctx, r)
	}
	if bad := r.Validate(); bad != nil || epoch.By(ctx) == 0 {
		return nil, cmp.Or(bad, err)
	}
	out := make([]skep.PutResult, len(r.Blocks))
	for i := range out {
		out[i] = skep.PutResult{Outcome: skep.Declined, Reason: skep.KindOf(err)}
	}
	return out, nil
}

// Want implements skep.Putter.
func (g *Gate) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	out, err := g.Store.Want(ctx, r)
	if err != nil {
		return nil, err
	}
	if no := g.refuses(ctx, "want", r.Namespace); no != nil {
		for i := range out {
			if out[i].Wanted {
				out[i] = skep.Want{Outcome: skep.Declined, Reason: skep.KindOf(no)}
			}
		}
	}
	return out, nil
}

// Begin implements skep.Putter.
func (g *Gate) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	if err := g.refuses(ctx, "begin", r.Namespace); err != nil {
		return nil, cmp.Or(r.Validate(), err)
	}
	k := g.keys.Load() // from before the Store looks whether it has one
	w, err := g.Store.Begin(ctx, r)
	if err != nil {
		return nil, err
	}
	info, err := g.Store.FindNamespace(ctx, r.Namespace)
	switch {
	case err != nil:
		return nil, errors.Join(err, w.Abort(context.WithoutCancel(ctx)))
	case has(k.of, info.Tenant):
		return w, nil
	}
	return &writer{w, g, info.Tenant}, nil
}

// PutSidecar implements skep.Store.
func (g *Gate) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	if err := g.refuses(ctx, "put sidecar", sc.Namespace); err != nil {
		return cmp.Or(skep.ValidateSidecar(pieces), err)
	}
	return g.Store.PutSidecar(ctx, sc, key, pieces)
}
