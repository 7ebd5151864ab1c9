package memstore

import (
	"bytes"
	"context"
	"fmt"

	"github.com/skepkv/skep"
)

// Want implements skep.Putter.
func (s *Store) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	const op = "want"
	if err := checkKeys(op, len(r.Keys), r.Scope); err != nil {
		return nil, err
	}
	if r.Bytes < 0 {
		return nil, skep.Invalidf(op, "bytes", r.Bytes, "at least 0")
	}
	n, err := s.enter(ctx, op, r.Namespace)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	reason := s.refusalLocked(n, r.Bytes, r.Bytes)
	out := make([]skep.Want, len(r.Keys))
	room := s.rooms[roomOf(r.Scope)]
	for i, k := range r.Keys {
		switch {
		case n.Chained && room != nil && room.blocks[stored(r.Salt, k)] != nil:
			out[i].Outcome = skep.Exists
		case reason != 0:
			out[i].Outcome, out[i].Reason = skep.Declined, reason
		default:
			out[i].Wanted = true
		}
	}
	return out, nil
}

// refusalLocked is why size bytes, which add grow bytes to what is stored, would not
// be taken whatever is evicted; 0 when they may be.
func (s *Store) refusalLocked(n *namespace, size, grow int64) skep.Kind {
	switch limit := s.opt.CapacityBytes; {
	case s.opt.TenantBytes > 0 && n.tenant.used+grow > s.opt.TenantBytes:
		return skep.Quota
	case limit > 0 && (size > limit || s.opt.DeclineWhenFull && s.used+grow > limit):
		return skep.Full
	}
	return 0
}

// checkKeys checks what all calls that name keys have in common.
func checkKeys(op string, keys int, sc skep.Scope) error {
	if keys > skep.MaxChainKeys {
		return skep.Invalidf(op, "keys", keys, fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	return checkSalt(op, sc)
}

func checkSalt(op string, sc skep.Scope) error {
	if len(sc.Salt) > skep.MaxSaltSize {
		return skep.Invalidf(op, "salt length in bytes", len(sc.Salt), fmt.Sprintf("at most %d", skep.MaxSaltSize))
	}
	return nil
}

func checkAck(op string, a skep.Ack) error {
	if a != skep.AckCommitted && a != skep.AckAccepted {
		return skep.Invalidf(op, "ack", a, "committed or accepted")
	}
	return nil
}

// checkSizes checks a manifest's kv part against the shape. A partial tail has a
// whole block's size: its tokens are in the middle of the layout, not at its front.
func checkSizes(op string, n *namespace, m skep.Manifest) error {
	for _, p := range m {
		if p.Name == skep.PartKV && n.part != 0 && p.Size != n.part {
			return skep.Invalidf(op, "size of part "+p.Name, p.Size, fmt.Sprintf("%d, the size of the namespace's shape", n.part))
		}
	}
	return nil
}

func partName(name string) string {
	if name == "" {
		return skep.PartKV
	}
	return name
}

// Put implements skep.Putter. Every block is checked before the first is stored.
func (s *Store) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	const op = "put"
	if err := r.Validate(); err != nil {
		return nil, err
	}
	n, err := s.space(ctx, op, r.Namespace)
	if err != nil {
		return nil, err
	}
	fresh := make([]*block, len(r.Blocks))
	for i := range r.Blocks {
		b := &r.Blocks[i]
		parent, depth := r.Behind(&n.NamespaceSpec, i)
		m := make(skep.Manifest, len(b.Parts))
		for j, p := range b.Parts {
			m[j] = skep.PartSpec{Name: partName(p.Name), Size: int64(len(p.Bytes))}
		}
		if err := skep.ValidateBlock(op, &n.NamespaceSpec, depth, b.ValidTokens, b.Key, parent, b.Name, m); err != nil {
			return nil, err
		}
		if err := checkSizes(op, n, m); err != nil {
			return nil, err
		}
		parts := make(map[string][]byte, len(b.Parts))
		for j, p := range b.Parts {
			parts[m[j].Name] = p.Bytes
		}
		fresh[i] = newBlock(n, r.Salt, b.Key, parent, depth, b.ValidTokens, b.Name, parts)
	}
	// Copied only now: a bad block costs no copies.
	for _, b := range fresh {
		for name, p := range b.parts {
			b.parts[name] = bytes.Clone(p)
		}
	}
	if _, err := s.enter(ctx, op, r.Namespace); err != nil { // deleted, while the blocks were copied
		return nil, err
	}
	defer s.mu.Unlock()
	out := make([]skep.PutResult, len(fresh))
	id := roomOf(r.Scope)
	for i, b := range fresh {
		// A block whose parent was declined a moment ago would be hidden, and would
		// evict blocks that are not.
		if n.Chained && !r.Each && i > 0 && out[i-1].Outcome == skep.Declined && !s.storedLocked(id, b.key) {
			out[i] = s.declineLocked(out[i-1].Reason)
			continue
		}
		out[i] = s.storeLocked(n, id, b, storedPtr(r.Salt, r.Blocks[i].Replaces), r.Ack)
	}
	return out, nil
}

func (s *Store) storedLocked(id roomID, key skep.Key) bool {
	r := s.rooms[id]
	return r != nil && r.blocks[key] != nil
}

func (s *Store) declineLocked(reason skep.Kind) skep.PutResult {
	s.stats.PutDeclined[reason.Error()]++
	return skep.PutResult{Outcome: skep.Declined, Reason: reason}
}

// space finds a namespace for a call that checks its arguments without the mutex.
func (s *Store) space(ctx context.Context, op string, id skep.NamespaceID) (*namespace, error) {
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return s.spaceLocked(op, id)
}

// newBlock makes a block that is not in a room yet. Its parts are the caller's until
// they are cloned.
func newBlock(n *namespace, salt skep.Salt, key skep.Key, parent *skep.Key, depth, valid int, name []byte, parts map[string][]byte) *block {
	b := &block{
		key:    stored(salt, key),
		parent: storedPtr(salt, parent),
		depth:  depth,
		valid:  skep.ValidTokensIn(n.Shape, valid),
		name:   bytes.Clone(name),
		parts:  parts,
	}
	for _, p := range parts {
		b.bytes += int64(len(p))
	}
	return b
}

// storeLocked is where every put ends: b goes in, or one of an earlier writer stays,
// or there is no room.
func (s *Store) storeLocked(n *namespace, id roomID, b *block, replaces *skep.Key, ack skep.Ack) skep.PutResult {
	r := s.rooms[id]
	if r == nil {
		r = &room{id: id, space: n, salted: id.tag != [32]byte{}, blocks: map[skep.Key]*block{}, children: map[skep.Key]map[*block]struct{}{}}
	}
	b.room = r
	old := r.blocks[b.key]
	if n.Chained && old != nil {
		s.lru.MoveToFront(old.elem)
		res := skep.PutResult{Outcome: skep.Exists, Differs: !sameParts(old.parts, b.parts)}
		s.stats.PutExists++
		if res.Differs {
			s.stats.PutDiffers++
		}
		s.supersedeLocked(r, old, replaces)
		return res
	}
	grow := b.bytes
	if old != nil {
		grow -= old.bytes
	}
	reason := s.refusalLocked(n, b.bytes, grow)
	if reason == 0 && !s.makeRoomLocked(grow, b, old) {
		reason = skep.Full
	}
	if reason != 0 {
		return s.declineLocked(reason)
	}
	// Eviction may have emptied the room and let go of it.
	s.rooms[id] = r
	if old != nil {
		s.inheritLocked(old, b)
		s.removeLocked(old, skep.EventDeleted, 0)
		s.rooms[id] = r
	}
	r.add(b)
	b.elem = s.lru.PushFront(b)
	s.used += b.bytes
	n.tenant.used += b.bytes
	if b.leases > 0 {
		n.tenant.leased += b.bytes
	}
	s.stats.PutBlocks++
	s.stats.PutBytes += b.bytes
	out := skep.Committed
	if ack == skep.AckAccepted {
		// Nothing follows an acceptance here, but callers must cope with both outcomes.
		out = skep.Accepted
		s.emitLocked(skep.EventAccepted, b, 0)
	}
	s.emitLocked(skep.EventCommitted, b, 0)
	s.supersedeLocked(r, b, replaces)
	return skep.PutResult{Outcome: out}
}

// inheritLocked moves leases and pins from the value of a key to the one that
// overwrites it: the promise is that the key can be restored.
func (s *Store) inheritLocked(old, b *block) {
	if old.leases > 0 {
		for _, l := range s.leases {
			for i, x := range l.blocks {
				if x == old {
					l.blocks[i] = b
					b.leases++
				}
			}
		}
		old.room.space.tenant.leased -= old.bytes
		old.leases = 0
	}
	if _, ok := s.pins[old]; ok {
		b.pinned = old.pinned
		s.pins[b] = struct{}{}
	}
}

// supersedeLocked drops the partial tail that b makes superfluous. Whole blocks are
// never dropped by a put: others may descend from them.
func (s *Store) supersedeLocked(r *room, b *block, replaces *skep.Key) {
	if replaces == nil {
		return
	}
	if old := r.blocks[*replaces]; old != nil && old != b && !old.full() {
		s.removeLocked(old, skep.EventDeleted, 0)
	}
}

// removeLocked takes a block out of everything that names it, except leases, which
// find it gone.
func (s *Store) removeLocked(b *block, why skep.EventKind, reason skep.Kind) {
	r := b.room
	r.remove(b)
	if len(r.blocks) == 0 {
		delete(s.rooms, r.id)
	}
	s.lru.Remove(b.elem)
	delete(s.pins, b)
	s.used -= b.bytes
	r.space.tenant.used -= b.bytes
	if b.leases > 0 {
		r.space.tenant.leased -= b.bytes
	}
	if why != 0 {
		s.emitLocked(why, b, reason)
	}
}

// Flush implements skep.Putter. Nothing accepted here is left uncommitted.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.begin(ctx, "flush"); err != nil {
		return err
	}
	s.mu.Unlock()
	return nil
}
