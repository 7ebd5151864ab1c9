package bucket

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/skepkv/skep"
)

// Delete implements skep.Store.
func (s *Store) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	if sc.Salt != "" || len(keys) == 0 || len(keys) > skep.MaxChainKeys {
		return s.Store.Delete(ctx, sc, keys)
	}
	sp, err := s.spaceOf(ctx, sc.Namespace)
	if err != nil {
		return 0, err
	}
	if sp == nil {
		return s.Store.Delete(ctx, sc, keys)
	}
	if err := s.isLoaded(ctx); err != nil {
		return 0, err
	}
	for {
		sp.puts.Lock()
		wait := sp.forget(keys, time.Now())
		sp.puts.Unlock()
		if wait == nil {
			break
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return 0, &skep.Error{Op: "delete", Kind: skep.Deadline, Field: "object", Value: "on its way", Err: ctx.Err()}
		}
	}
	n, err := s.Store.Delete(ctx, sc, keys)
	return n, errors.Join(err, s.settle(ctx, sp))
}

// settle has the bucket say what is deleted of a space, other nodes' objects that this one has not seen yet among it.
func (s *Store) settle(ctx context.Context, sp *space) error {
	if s.o.Alone && !sp.owesAll() {
		return s.pay(ctx, sp)
	}
	begun := time.Now()
	of, err := s.list(ctx, sp.name+"/")
	if err != nil {
		return err
	}
	l := of[sp.name]
	if l == nil {
		l = newListed(begun)
	}
	return s.refreshSpace(ctx, sp.name, l)
}

// pay says in the bucket what is deleted of a space's objects and is not said yet.
func (s *Store) pay(ctx context.Context, sp *space) error {
	sp.paying.Lock()
	defer sp.paying.Unlock()
	d := deletion{Of: map[string][][]byte{}}
	sp.mu.RLock()
	counts := map[string]int{}
	for id, keys := range sp.owed {
		for i := range keys {
			d.Of[id] = append(d.Of[id], keys[i][:])
		}
		counts[id] = len(keys)
	}
	sp.mu.RUnlock()
	if len(d.Of) == 0 {
		return nil
	}
	id := drawID(time.Now())
	name := sp.name + deletedDir + id
	b, err := sealText(s.o.Key, name, &d)
	if err != nil {
		return err
	}
	s.budget.owe(1, 0, 0)
	if err := s.asked(ctx, func(ctx context.Context) error { return s.o.Bucket.Put(ctx, name, b) }); err != nil {
		return err
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.heard[id] = hearing{&d, time.Now()}
	for id, n := range counts {
		if left := sp.owed[id]; len(left) > n {
			sp.owed[id] = left[n:]
		} else {
			delete(sp.owed, id)
		}
	}
	return nil
}

// Purge implements skep.Store.
func (s *Store) Purge(ctx context.Context, p skep.Purge) error {
	if p.Salt != nil || p.Validate() != nil {
		return s.Store.Purge(ctx, p)
	}
	var of skep.NamespaceSpec
	if p.Namespace != 0 {
		info, err := s.FindNamespace(ctx, p.Namespace)
		if err != nil {
			return err
		}
		of = info.NamespaceSpec
	}
	return s.without(ctx, func(n *skep.NamespaceSpec) bool {
		switch {
		case p.Tenant != "":
			return n.Tenant == p.Tenant
		case p.Model != "":
			return n.Model == p.Model
		}
		return concerns(&of, n)
	}, func() error { return s.Store.Purge(ctx, p) }, nil)
}

// DeleteNamespace implements skep.Store. The namespace is there until the bucket has nothing of it: what is to be made
// again can be.
func (s *Store) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	info, err := s.FindNamespace(ctx, id)
	if err != nil {
		return err
	}
	return s.without(ctx, func(n *skep.NamespaceSpec) bool { return concerns(&info.NamespaceSpec, n) }, nil, func() error {
		err := s.Store.DeleteNamespace(ctx, id)
		if err == nil {
			s.ids.Delete(id)
		}
		return err
	})
}

// concerns says whether what all of a namespace is removed for concerns another, too.
func concerns(of, n *skep.NamespaceSpec) bool {
	return of.Tenant == n.Tenant && of.Name == n.Name || of.Clusters(*n)
}

// without removes all objects of some namespaces. The node's Store does the same there before, whatever becomes of the
// bucket, or after, once the bucket has nothing of them. Nothing is sent of them meanwhile.
func (s *Store) without(ctx context.Context, some func(*skep.NamespaceSpec) bool, before, after func() error) error {
	if err := s.isLoaded(ctx); err != nil {
		return err
	}
	s.purging(some)
	err := s.meet(ctx, some)
	var list []*space
	for _, sp := range s.all() {
		if !some(&sp.spec) {
			continue
		}
		if err := sp.pass(ctx); err != nil {
			return err
		}
		defer sp.passed()
		list = append(list, sp)
		sp.puts.Lock()
		sp.forgetAll(time.Now())
		sp.puts.Unlock()
	}
	if before != nil {
		err = errors.Join(err, before())
	}
	for _, sp := range list {
		err = errors.Join(err, s.removeAll(ctx, sp))
	}
	if err == nil && after != nil {
		err = after()
	}
	return err
}

// meet makes the spaces of some namespaces known: those that this node has, and may be about to send of, and those that
// others have sent of since it has looked.
func (s *Store) meet(ctx context.Context, some func(*skep.NamespaceSpec) bool) error {
	list, err := s.Namespaces(ctx)
	if err != nil {
		return err
	}
	for _, info := range list {
		if some(&info.NamespaceSpec) {
			_, _ = s.spaceOf(ctx, info.ID) // else it was deleted meanwhile
		}
	}
	if s.o.Alone {
		return nil
	}
	of, err := s.list(ctx, "")
	if err != nil {
		return err
	}
	for name, l := range of {
		if _, err := s.known(ctx, name, l); err != nil {
			return err
		}
	}
	return nil
}

// purge is one that other nodes may have yet to hear of.
type purge struct {
	some func(*skep.NamespaceSpec) bool
	from time.Time
}

// maxPurges is how many are remembered.
const maxPurges = 1024

// purging has nothing be taken, for a while, of what other nodes made of these namespaces and this one has not heard
// of.
func (s *Store) purging(some func(*skep.NamespaceSpec) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.purges = slices.DeleteFunc(s.purges, func(p purge) bool { return now.Sub(p.from) > forgetFor })
	if len(s.purges) >= maxPurges { // of all namespaces nothing is taken then
		s.purges, some = nil, func(*skep.NamespaceSpec) bool { return true }
	}
	s.purges = append(s.purges, purge{some, now})
}

// clear is removeAll while nothing is sent.
func (s *Store) clear(ctx context.Context, sp *space) error {
	if err := sp.pass(ctx); err != nil {
		return err
	}
	defer sp.passed()
	return s.removeAll(ctx, sp)
}

// removeAll removes all objects of a space; the caller passes.
func (s *Store) removeAll(ctx context.Context, sp *space) error {
	sp.forgetAll(time.Now())
	var names []string
	err := s.walk(ctx, sp.name+"/", func(o Object) {
		if _, dir, _, ok := split(o.Name); ok && dir != specName {
			names = append(names, o.Name)
		}
	})
	if err != nil {
		return err
	}
	if err := s.remove(ctx, names); err != nil {
		return err
	}
	sp.cleared()
	return nil
}
