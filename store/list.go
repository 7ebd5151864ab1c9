package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// lookAtOnce is how many blocks of all namespaces one call of ListKeys looks at in the index: some milliseconds.
const lookAtOnce = 1 << 20

// CountBlocks implements skep.Store.
func (s *Store) CountBlocks(ctx context.Context, space skep.NamespaceID) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	ns, _, err := s.names.Resolve("count blocks", skep.Scope{Namespace: space})
	if err != nil {
		return 0, err
	}
	return s.index.Count(ns.Instance, ns.Tenant), nil
}

// ListKeys implements skep.Store. A place in the listing is a place in the index of this run: it is told in disguise, since
// it depends on what others store. One of another run begins anew.
func (s *Store) ListKeys(ctx context.Context, space skep.NamespaceID, from uint64, n int) (keys []skep.Key, next uint64, err error) {
	const op = "list keys"
	if n < 1 {
		return nil, 0, skep.Invalidf(op, "keys", n, "at least 1")
	}
	if err := s.enter(ctx); err != nil {
		return nil, 0, err
	}
	defer s.leave()
	ns, _, err := s.names.Resolve(op, skep.Scope{Namespace: space})
	if err != nil {
		return nil, 0, err
	}
	found, end := s.index.Walk(ns.Instance, ns.Tenant, s.listPlace(from), n, lookAtOnce)
	add := func(rec *segment.Record) {
		if rec.Instance == ns.Instance && namespaces.Tag(rec.SaltTag) == (namespaces.Tag{}) {
			keys = append(keys, rec.Key)
		}
	}
	var locs []layout.Location
	var at []index.Fingerprint // of locs
	accepted := map[index.Fingerprint]bool{}
	for i := range found {
		if e := &found[i]; e.Accepted() {
			accepted[e.FP] = true
		} else {
			locs, at = append(locs, layout.Unpack(e.Location)), append(at, e.FP)
		}
	}
	seen := make([]bool, len(locs))
	if err := s.records(locs, func(i int, rec *segment.Record) error {
		seen[i] = true
		add(rec)
		return nil
	}); err != nil {
		return nil, 0, err
	}
	s.pending.among(accepted, add)
	for fp := range accepted { // committed since
		at, seen = append(at, fp), append(seen, false)
	}
	for i, fp := range at {
		if seen[i] {
			continue
		}
		if e, ok := s.index.Resolve(fp); ok { // moved since
			if rec, err := s.recordNow(fp, e); err == nil {
				add(&rec)
			}
		}
	}
	return keys, s.listCursor(end), nil
}

// A cursor is the run's epoch and, in disguise, a slot of the index.
const slotBits = 32

func (s *Store) listCursor(at index.ID) uint64 {
	if at == 0 {
		return 0
	}
	return (s.epoch&0x7fff|0x8000)<<slotBits | uint64(s.disguiseSlot(uint32(at), false))
}

// listPlace is where a cursor goes on; the beginning, when it is of another run.
func (s *Store) listPlace(cursor uint64) index.ID {
	if cursor>>slotBits != s.epoch&0x7fff|0x8000 {
		return 1
	}
	return index.ID(max(s.disguiseSlot(uint32(cursor), true), 1))
}

// disguiseSlot is a permutation of numbers that only this store knows, and the way back: four rounds of a Feistel network.
func (s *Store) disguiseSlot(n uint32, back bool) uint32 {
	l, r := uint16(n>>16), uint16(n)
	round := func(i int, half uint16) uint16 {
		return uint16(s.names.Hash([]byte{'s', 'l', 'o', 't', byte(i), byte(half), byte(half >> 8)}))
	}
	for i := range 4 {
		if back {
			l, r = r^round(3-i, l), l
		} else {
			l, r = r, l^round(i, r)
		}
	}
	return uint32(l)<<16 | uint32(r)
}
