package store

import (
	"context"
	"github.com/skepkv/skep/store/internal/locks"
	"maps"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/admin"
	"github.com/skepkv/skep/store/segment"
)

// FindNamespace implements skep.Store.
func (s *Store) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	if err := s.enter(ctx); err != nil {
		return skep.NamespaceInfo{}, err
	}
	defer s.leave()
	ns, _, err := s.names.resolve("find namespace", skep.Scope{Namespace: id})
	if err != nil {
		return skep.NamespaceInfo{}, err
	}
	return ns.info, nil
}

// NamespacesOf implements skep.Store. It looks at no other tenant's.
func (s *Store) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	list := s.names.ofTenant(tenant)
	out := make([]skep.NamespaceInfo, len(list))
	for i, ns := range list {
		out[i] = ns.info
	}
	return out, nil
}

// DeleteNamespace implements skep.Deleter. Like a purge it goes by the number that every block
// carries, the namespace's instance: no namespace has it afterwards, and no other ever gets it.
// So rows and log entries of its blocks mean nothing from the catalog's commit on, whenever they
// are met. For a rebuild, which has no catalog, the devices' logs say both that the instance is
// purged and that the namespace is deleted.
//
// What the logs say of the deletion may go when every group is gone that was opened before it
// was said: so it is said with a number that is taken when nobody writes the namespace's own
// entry again any more. See endedNow.
func (s *Store) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	const op = "delete namespace"
	if err := s.enterWrite(ctx, op); err != nil {
		return err
	}
	defer s.leave()
	gone, todo, err := s.endNamespace(ctx, op, id)
	if err != nil {
		return err
	}
	if s.entering.wait(ctx) == nil {
		s.carryOut(ctx, todo...)
	} else {
		s.intents.begin()
		s.background.Go(func() {
			defer s.intents.tried()
			if s.entering.wait(s.ctx) == nil {
				s.intents.add(todo...)
			}
		})
	}
	for _, ns := range gone {
		s.events.Emit(skep.Event{Kind: skep.EventPurged, Namespace: ns.info.ID})
	}
	s.background.Go(s.sweep)
	return nil
}

// endNamespace takes a namespace, and those of its clustered contexts, out of the catalog and out of
// memory. What the devices are to know of it is for the caller to carry out, once those have ended who were entering.
func (s *Store) endNamespace(ctx context.Context, op string, id skep.NamespaceID) (gone []*namespace, todo []catalog.Intent, err error) {
	if err := s.take(ctx, s.naming, op, "namespace being made"); err != nil {
		return nil, nil, err
	}
	defer s.naming.give()
	n := s.names
	ns := n.byID.get(id)
	if ns == nil {
		return nil, nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: id}
	}
	b := s.catalog.NewBatch()
	seq := s.root.Next()
	gone = n.withClusters(ns)
	for _, ns := range gone {
		b.DeleteNamespace(ns.info.ID)
		b.DeletePurgesOf(ns.instance) // of its salts: what has no namespace needs none
		b.DeleteSidesOf(ns.instance, nil)
		end := ns.entry(seq)
		end.Deleted = true
		var w segment.LogWriter
		if err := w.Purge(&segment.Purge{Seq: seq, Covers: seq, Instance: ns.instance}); err != nil {
			return nil, nil, err
		}
		if err := w.Namespace(end); err != nil {
			return nil, nil, err
		}
		todo = append(todo, s.intend(b, &w))
	}
	if err := s.saveNames(b, s.root.Numbers()); err != nil {
		return nil, nil, err
	}
	for _, ns := range gone {
		s.index.SetDead(ns.instance)
		n.remove(ns)
	}
	return gone, todo, nil
}

// endedNow gives entries as they are to be written now. A namespace that is no more is not said to be one. That it is
// deleted is said with a number of now, and so is the purge of its instance: what cleaning drops goes by it, and the
// namespace's own entry may have been written again, to a group opened since the deletion began. All else stays as it
// is: the number of a salt's purge is the salt's epoch. REQUIRES: the caller is one of s.entering.
func (s *Store) endedNow(entries []byte) ([]byte, error) {
	ended := map[uint32]bool{}
	for e := range segment.Entries(entries) {
		if e.Kind == segment.KindNamespace {
			if v, err := segment.DecodeNamespace(e.Body); err == nil && v.Deleted {
				ended[v.Instance] = true
			}
		}
	}
	var seq uint64
	if len(ended) > 0 {
		seq = s.root.Next()
	}
	var w segment.LogWriter
	for e := range segment.Entries(entries) {
		write := func() error { return w.Entry(e) }
		switch e.Kind {
		case segment.KindNamespace:
			v, err := segment.DecodeNamespace(e.Body)
			switch {
			case err != nil:
			case v.Deleted:
				v.Seq = seq
				write = func() error { return w.Namespace(&v) }
			case s.names.of(v.Instance) == nil:
				continue
			}
		case segment.KindPurge:
			p, err := segment.DecodePurge(e.Body)
			if err == nil && !p.Salted && ended[p.Instance] {
				p.Seq, p.Covers = seq, seq
				write = func() error { return w.Purge(&p) }
			}
		}
		if err := write(); err != nil {
			return nil, err
		}
	}
	return w.Bytes(), nil
}

// alone says that no two tenants have namespaces.
func (n *names) alone() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.mu.of) < 2
}

// sections are stretches of work that go by what they find in a table. Who takes something out of the table waits for
// those that were open then and may have found it. One that begins meanwhile does not find it, and waits for nobody.
type sections struct {
	mu   locks.Mutex[locks.Sections]
	open map[chan struct{}]struct{}
}

// begin opens a section; end closes it.
func (x *sections) begin() (end func()) {
	ended := make(chan struct{})
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil {
		x.open = map[chan struct{}]struct{}{}
	}
	x.open[ended] = struct{}{}
	return func() {
		x.mu.Lock()
		delete(x.open, ended)
		x.mu.Unlock()
		close(ended)
	}
}

// wait waits until all sections have ended that are open now.
func (x *sections) wait(ctx context.Context) error {
	x.mu.Lock()
	open := slices.Collect(maps.Keys(x.open))
	x.mu.Unlock()
	for _, ended := range open {
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// ofTenant are a tenant's namespaces, by number.
func (n *names) ofTenant(tenant string) []*namespace {
	n.mu.RLock()
	ids := slices.Clone(n.mu.of[tenant])
	n.mu.RUnlock()
	out := make([]*namespace, 0, len(ids))
	for _, id := range ids {
		if ns := n.byID.get(id); ns != nil { // not deleted since
			out = append(out, ns)
		}
	}
	return out
}

// withClusters is a namespace and those that hold its clustered contexts.
func (n *names) withClusters(ns *namespace) []*namespace {
	all := []*namespace{ns}
	for _, o := range n.ofTenant(ns.info.Tenant) {
		if ns.info.Clusters(o.info.NamespaceSpec) {
			all = append(all, o)
		}
	}
	return all
}

// has is how many namespaces a tenant has.
func (n *names) has(tenant string) int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.mu.of[tenant])
}

// enterLocked notes whose a namespace is. REQUIRES: n.mu.
func (n *names) enterLocked(ns *namespace) {
	list := n.mu.of[ns.info.Tenant]
	if i, there := slices.BinarySearch(list, ns.info.ID); !there {
		n.mu.of[ns.info.Tenant] = slices.Insert(list, i, ns.info.ID)
	}
}

// remove takes a namespace out. Its number first: who finds its instance finds what it was.
func (n *names) remove(ns *namespace) {
	n.byID.delete(ns.info.ID)
	n.byName.delete([2]string{ns.info.Tenant, ns.info.Name})
	n.byInstance.delete(ns.instance)
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.mu.of[ns.info.Tenant]
	if i, there := slices.BinarySearch(list, ns.info.ID); there {
		list = slices.Delete(list, i, i+1)
	}
	if n.mu.of[ns.info.Tenant] = list; len(list) == 0 {
		delete(n.mu.of, ns.info.Tenant)
	}
}

// forgetSalts drops what is known of purged salts of instances that no namespace has.
func (n *names) forgetSalts() {
	for k := range n.deadTags.all() {
		if n.byInstance.get(k.instance) == nil {
			n.deadTags.delete(k)
			n.saltEpoch.delete(k)
		}
	}
}

// NamespaceRequest asks for a namespace to be deleted, by tenant and name.
type NamespaceRequest struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// NamespaceDeletion is what came of it.
type NamespaceDeletion struct {
	ID     skep.NamespaceID `json:"id"`
	Tenant string           `json:"tenant"`
	Name   string           `json:"name"`
	Blocks int64            `json:"blocks"` // it had
	Bytes  int64            `json:"bytes"`  // of their payload
	DryRun bool             `json:"dry_run"`
}

// DeleteNamed deletes the namespace that has a tenant's name, or with DryRun says what that would
// take along.
func (s *Store) DeleteNamed(ctx context.Context, r NamespaceRequest) (out NamespaceDeletion, err error) {
	ns := s.names.byName.get([2]string{r.Tenant, r.Name})
	if ns == nil {
		return out, &skep.Error{Op: "delete namespace", Kind: skep.NotFound, Field: "namespace", Value: r.Name, Limit: "one of tenant " + r.Tenant}
	}
	out = NamespaceDeletion{ID: ns.info.ID, Tenant: r.Tenant, Name: r.Name, Bytes: ns.stored.Load(), DryRun: r.DryRun}
	if out.Blocks, err = s.CountBlocks(ctx, ns.info.ID); err != nil || r.DryRun {
		return out, err
	}
	return out, s.DeleteNamespace(ctx, ns.info.ID)
}

// AskDeleteNamed has the store that is open in dir, in another process or this one, carry out DeleteNamed.
func AskDeleteNamed(ctx context.Context, dir string, r NamespaceRequest) (NamespaceDeletion, error) {
	return admin.Do[NamespaceDeletion](ctx, dir, "namespace", r)
}
