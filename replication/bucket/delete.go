package bucket

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
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
	var n int
	var full, failed error
	for {
		sp.puts.Lock()
		var wait chan struct{}
		wait, full = sp.forget(keys, time.Now())
		if sp.other != nil { // nothing is sent to it
			_, err := sp.other.forget(keys, time.Now())
			full = errors.Join(full, err)
		}
		sp.puts.Unlock()
		s.bound(time.Now())
		var gone int
		gone, failed = s.Store.Delete(ctx, sc, keys) // the drives wait for nothing that is on its way
		n += gone
		if wait == nil {
			break
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return n, errors.Join(failed, &skep.Error{Op: "delete", Kind: skep.Deadline, Field: "object",
				Value: "on its way", Err: ctx.Err()})
		}
	}
	err = errors.Join(failed, full)
	if early := s.isLoaded(ctx); early != nil {
		return n, errors.Join(err, early)
	}
	if err = errors.Join(err, s.settle(ctx, sp, full != nil)); sp.other != nil {
		err = errors.Join(err, s.settle(ctx, sp.other, full != nil))
	}
	return n, err
}

// settle has the bucket say what is deleted of a space, other nodes' objects that this one has not seen yet among it.
// Where there was no room to note it all, full, a look that may find some is made alone, too.
func (s *Store) settle(ctx context.Context, sp *space, full bool) error {
	if s.o.Alone && !full && sp.isComplete() {
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

// pay says in the bucket what is deleted of a space's objects and is not said yet, and removes those of which nobody
// could say it.
func (s *Store) pay(ctx context.Context, sp *space) error {
	if err := enter(ctx, sp.paying); err != nil {
		return err
	}
	defer func() { <-sp.paying }()
	if ids := sp.toRemove(); len(ids) > 0 {
		var names []string
		for _, id := range ids {
			names = append(names, sp.name+blocksDir+id)
		}
		if err := s.remove(ctx, names); err != nil {
			return err
		}
		sp.removed(ids)
	}
	for _, dir := range []string{deletedDir, unsureDir} {
		if err := s.payIn(ctx, sp, dir); err != nil {
			return err
		}
	}
	return nil
}

// maxSaid is how many keys one object says are deleted.
const maxSaid = 2 * mergeKeys

// payIn pays what is deleted of objects that are there, or of those that may come yet.
func (s *Store) payIn(ctx context.Context, sp *space, dir string) error {
	for more := true; more; {
		var err error
		if more, err = s.payPiece(ctx, sp, dir); err != nil {
			return err
		}
	}
	return nil
}

// payPiece pays as much as one object says; more: that was not all.
func (s *Store) payPiece(ctx context.Context, sp *space, dir string) (more bool, err error) {
	d := deletion{Of: map[string][][]byte{}}
	sp.mu.RLock()
	said, left := map[string][]skep.Key{}, maxSaid
	for id, keys := range sp.owed {
		if (sp.doubts[id] != nil) != (dir == unsureDir) {
			continue
		}
		keys = keys[:min(len(keys), left)]
		for i := range keys {
			d.Of[id] = append(d.Of[id], keys[i][:])
		}
		said[id] = keys
		if left -= len(keys); left == 0 {
			break
		}
	}
	sp.mu.RUnlock()
	if len(d.Of) == 0 {
		return false, nil
	}
	of, err := s.say(ctx, sp, dir, time.Now(), &d)
	if err != nil {
		return false, err
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.heard[of] = hearing{&d, time.Now()}
	for id, was := range said {
		n := len(was)
		if now := sp.owed[id]; len(now) < n || !slices.Equal(now[:n], was) {
			continue // something else is owed now
		} else if len(now) > n {
			sp.owed[id] = now[n:]
		} else {
			delete(sp.owed, id)
		}
	}
	return left == 0, nil
}

// say puts an object that says what is deleted, and gives its name in the space.
func (s *Store) say(ctx context.Context, sp *space, dir string, at time.Time, d *deletion) (of string, err error) {
	of = dir + drawID(at)
	name := sp.name + of
	b, err := sealText(sp.key, name, d)
	if err != nil {
		return "", err
	}
	return of, s.asked(ctx, &s.why.writes, func(ctx context.Context) error {
		s.budget.owe(1, 0, 0)
		return s.o.Bucket.Put(ctx, name, b)
	})
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
	s.purging(some)
	err := s.meetOwn(ctx, some)
	early := s.isLoaded(ctx)
	if err == nil && early == nil {
		err = s.meetOthers(ctx)
	}
	list := slices.DeleteFunc(s.all(), func(sp *space) bool { return !some(&sp.spec) })
	var first error
	if before != nil && slices.ContainsFunc(list, func(sp *space) bool { return len(sp.passing) > 0 }) {
		first = before() // the drives do not wait for what is on its way, and are asked again once that has ended
	}
	for _, sp := range list {
		if err := sp.pass(ctx); err != nil {
			return errors.Join(first, err)
		}
		defer sp.passed()
		sp.puts.Lock()
		sp.forgetAll(time.Now(), s.o.Alone)
		sp.puts.Unlock()
	}
	if before != nil {
		err = errors.Join(err, before())
	}
	if err = errors.Join(err, early); early != nil { // the first look that is read removes what it finds
		return err
	}
	for _, sp := range list {
		err = errors.Join(err, s.removeAll(ctx, sp))
	}
	if err == nil && after != nil {
		err = after()
	}
	return err
}

// meetOwn makes the spaces of some namespaces known that this node has, and may be about to send of.
func (s *Store) meetOwn(ctx context.Context, some func(*skep.NamespaceSpec) bool) error {
	list, err := s.Namespaces(ctx)
	if err != nil {
		return err
	}
	for _, info := range list {
		if some(&info.NamespaceSpec) {
			_, _ = s.spaceOf(ctx, info.ID) // else it was deleted meanwhile
		}
	}
	return nil
}

// meetOthers makes the spaces known that others have sent of since this node has looked. Where one has objects, or
// announcements of them, and nobody can say whose they are, that is an error once all others are known: they may be of
// what is purged, for a space's name does not tell. Those of a key that this node does not have are not.
func (s *Store) meetOthers(ctx context.Context) error {
	if s.o.Alone {
		return nil
	}
	of, err := s.list(ctx, "")
	if err != nil {
		return err
	}
	var errs []error
	for name, l := range of {
		sp, err := s.known(ctx, name, l)
		e, is := errors.AsType[*skep.Error](err)
		kind := skep.KindOf(err)
		if kind == skep.Denied {
			err = &skep.Error{Op: op, Kind: kind, Field: "object", Value: name + specName, Err: err}
		}
		switch {
		case is && kind == skep.Version && e.Field == keyField:
		case err == nil && sp == nil, kind == skep.NotFound:
			err = damaged(name+specName, "namespace of objects", "gone", "one")
			fallthrough
		case kind == skep.Damaged, kind == skep.Version, kind == skep.Denied:
			if len(l.objects)+len(l.announced) > 0 {
				errs = append(errs, err)
			}
		case err != nil: // nor would it answer for the next one
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(errs...)
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
	s.purges = slices.DeleteFunc(s.purges, func(p purge) bool { return now.Sub(p.from) > pauseFor })
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

// removeAll removes all objects of a space, but for what was deleted of such as may come yet; the caller passes.
func (s *Store) removeAll(ctx context.Context, sp *space) error {
	sp.forgetAll(time.Now(), s.o.Alone)
	var names, said []string
	for n := 1; ; n++ {
		of, err := s.list(ctx, sp.name+"/")
		if err != nil {
			return err
		}
		l := of[sp.name]
		if l == nil {
			break
		}
		names, said = nil, slices.Collect(maps.Keys(l.announced))
		for id := range l.objects {
			names = append(names, sp.name+blocksDir+id)
		}
		for _, of := range l.deleted {
			if strings.HasPrefix(of, deletedDir) {
				names = append(names, sp.name+of)
			}
		}
		if err = s.announced(ctx, sp, l, nil); err == nil {
			break
		}
		if !errors.Is(err, errMoved) || n == mostListed {
			return err
		}
	}
	if err := s.remove(ctx, names); err != nil {
		return err
	}
	if err := s.pay(ctx, sp); err != nil {
		return err
	}
	s.withdraw(ctx, sp, said...) // what is deleted is all of it now
	sp.cleared()
	return nil
}
