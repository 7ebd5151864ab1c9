package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/skepkv/skep"
)

// makeRoomLocked evicts, coldest first, until grow more bytes fit, for b which takes
// the place of old (nil: of nothing). It reports whether they do. Blocks without
// stored children go first, whatever their age: a chain loses its tail before its
// head, because without its head it is worth nothing.
func (s *Store) makeRoomLocked(grow int64, b, old *block) bool {
	limit := s.opt.CapacityBytes
	if limit == 0 || s.used+grow <= limit {
		return true
	}
	now := s.opt.Clock()
	keep := ancestors(b)
	keep[old] = true
	for _, leavesOnly := range []bool{true, false} {
		for s.used+grow > limit {
			v := s.victimLocked(now, keep, leavesOnly)
			if v == nil {
				break
			}
			s.stats.Evicted++
			s.removeLocked(v, skep.EventEvicted, skep.Full)
		}
	}
	return s.used+grow <= limit
}

// ancestors are the stored blocks b descends from: evicting one to store b would
// hide b.
func ancestors(b *block) map[*block]bool {
	up := map[*block]bool{}
	for p := b.parent; p != nil; {
		x := b.room.blocks[*p]
		if x == nil || up[x] {
			break
		}
		up[x] = true
		p = x.parent
	}
	return up
}

func (s *Store) victimLocked(now time.Time, keep map[*block]bool, leavesOnly bool) *block {
	for e := s.lru.Back(); e != nil; e = e.Prev() {
		v := e.Value.(*block)
		leaf := len(v.room.children[v.key]) == 0
		if v.leases == 0 && v.holds == 0 && !v.pinned.After(now) && !keep[v] && (leaf || !leavesOnly) {
			return v
		}
	}
	return nil
}

// touchLocked marks a found chain as used now, so that its head is the hottest.
func (s *Store) touchLocked(found []*block) {
	for i := len(found) - 1; i >= 0; i-- {
		if !found[i].gone {
			s.lru.MoveToFront(found[i].elem)
		}
	}
}

// Hint implements skep.Hinter. Pin and Drop decide who is evicted; the rest is checked
// and otherwise ignored.
func (s *Store) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	const op = "hint"
	if err := checkKeys(op, len(keys), sc); err != nil {
		return 0, err
	}
	if err := h.Validate(); err != nil {
		return 0, err
	}
	n, err := s.enter(ctx, op, sc.Namespace)
	if err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	found := s.namedLocked(sc, keys)
	now := s.opt.Clock()
	if h.Pin > 0 && s.opt.TenantPinBytes > 0 {
		sum, seen := int64(0), map[*block]bool{}
		for _, b := range found {
			seen[b] = true
			sum += b.bytes
		}
		for b := range s.pins {
			if b.room.space.tenant == n.tenant && !seen[b] && b.pinned.After(now) {
				sum += b.bytes
			}
		}
		if sum > s.opt.TenantPinBytes {
			return 0, &skep.Error{Op: op, Kind: skep.Quota, Field: "pinned bytes", Value: sum, Limit: fmt.Sprintf("at most %d", s.opt.TenantPinBytes)}
		}
	}
	for _, b := range found {
		if until := now.Add(h.Pin); h.Pin > 0 && until.After(b.pinned) {
			b.pinned = until
			s.pins[b] = struct{}{}
		}
		if h.Drop {
			b.pinned = time.Time{}
			delete(s.pins, b)
			s.lru.MoveToBack(b.elem)
		}
	}
	return len(found), nil
}

// namedLocked is the stored blocks of keys, hidden ones too, each once.
func (s *Store) namedLocked(sc skep.Scope, keys []skep.Key) []*block {
	r := s.rooms[roomOf(sc)]
	if r == nil {
		return nil
	}
	var found []*block
	seen := map[*block]bool{}
	for _, k := range keys {
		if b := r.blocks[stored(sc.Salt, k)]; b != nil && !seen[b] {
			seen[b] = true
			found = append(found, b)
		}
	}
	return found
}

// expireLocked lets go of everything that has run out by now.
func (s *Store) expireLocked(now time.Time) {
	if len(s.leases) > 0 && !now.Before(s.soonest) {
		s.soonest = now.Add(skep.MaxLease)
		for id, l := range s.leases {
			if !now.Before(l.until) {
				s.endLeaseLocked(id)
			} else if l.until.Before(s.soonest) {
				s.soonest = l.until
			}
		}
	}
	for b := range s.pins {
		if !b.pinned.After(now) {
			delete(s.pins, b)
		}
	}
	for w := range s.writers {
		if !now.Before(w.deadline) {
			s.forgetLocked(w)
		}
	}
}

// Delete implements skep.Deleter.
func (s *Store) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	const op = "delete"
	if err := checkKeys(op, len(keys), sc); err != nil {
		return 0, err
	}
	if _, err := s.enter(ctx, op, sc.Namespace); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	found := s.namedLocked(sc, keys)
	for _, b := range found {
		s.removeLocked(b, skep.EventDeleted, 0)
	}
	return len(found), nil
}

// Purge implements skep.Deleter. The namespaces stay, empty.
func (s *Store) Purge(ctx context.Context, p skep.Purge) error {
	const op = "purge"
	if err := p.Validate(); err != nil {
		return err
	}
	if p.Salt != nil && p.Salt.Salt == "" {
		return skep.Invalidf(op, "salt", "empty", "a salt; purge the namespace for the rest")
	}
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, id := range []skep.NamespaceID{p.Namespace, saltSpace(p)} {
		if id == 0 {
			continue
		}
		if _, err := s.spaceLocked(op, id); err != nil {
			return err
		}
	}
	if p.Salt != nil && p.Salt.Namespace == 0 {
		_, err := s.spaceLocked(op, 0)
		return err
	}
	for w := range s.writers {
		w.purged = w.purged || purges(p, s.spaces, w.space, roomOf(w.req.Scope))
	}
	var hit []*room
	spaces := map[skep.NamespaceID]bool{}
	for id, r := range s.rooms {
		if purges(p, s.spaces, r.space, id) {
			hit = append(hit, r)
			spaces[id.space] = true
		}
	}
	for _, r := range hit {
		for _, b := range r.blocks {
			s.removeLocked(b, 0, 0)
		}
	}
	if len(hit) > 0 {
		var which skep.NamespaceID
		for id := range spaces {
			which = id
		}
		if len(spaces) > 1 {
			which = max(p.Namespace, saltSpace(p)) // 0 for several
		}
		s.events.append(skep.Event{Kind: skep.EventPurged, Time: s.opt.Clock(), Namespace: which, Salted: p.Salt != nil})
	}
	return nil
}

// DeleteNamespace implements skep.Deleter.
func (s *Store) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	const op = "delete namespace"
	n, err := s.enter(ctx, op, id)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	gone := map[*namespace]bool{}
	for _, o := range s.spaces {
		if o == n || o != nil && n.Clusters(o.NamespaceSpec) {
			gone[o] = true
		}
	}
	for _, r := range s.rooms {
		if !gone[r.space] {
			continue
		}
		for _, b := range r.blocks {
			s.removeLocked(b, 0, 0)
		}
	}
	for w := range s.writers {
		if gone[w.space] {
			s.forgetLocked(w)
		}
	}
	for o := range gone {
		s.spaces[o.ID-1] = nil
		delete(s.names, spaceName{o.Tenant, o.Name})
		o.tenant.spaces--
		s.events.append(skep.Event{Kind: skep.EventPurged, Time: s.opt.Clock(), Namespace: o.ID})
	}
	return nil
}

func saltSpace(p skep.Purge) skep.NamespaceID {
	if p.Salt == nil {
		return 0
	}
	return p.Salt.Namespace
}

// purges reports whether p takes the blocks of a room in namespace n; of a namespace it
// takes those of its clustered contexts too.
func purges(p skep.Purge, all []*namespace, n *namespace, id roomID) bool {
	of := func(named skep.NamespaceID) bool {
		return n.ID == named || all[named-1].Clusters(n.NamespaceSpec)
	}
	switch {
	case p.Tenant != "":
		return n.Tenant == p.Tenant
	case p.Model != "":
		return n.Model == p.Model
	case p.Namespace != 0:
		return of(p.Namespace)
	}
	return id.tag == roomOf(*p.Salt).tag && of(p.Salt.Namespace)
}
