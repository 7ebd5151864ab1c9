package memstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"github.com/skepkv/skep"
)

// CountBlocks implements skep.Store.
func (s *Store) CountBlocks(ctx context.Context, space skep.NamespaceID) (n int64, err error) {
	const op = "count blocks"
	if _, err := s.enter(ctx, op, space); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	for id, r := range s.rooms {
		if id.space == space {
			n += int64(len(r.blocks))
		}
	}
	return n, nil
}

// ListKeys implements skep.Store. Keys are in order, and a place is the first six bytes of the last.
func (s *Store) ListKeys(ctx context.Context, space skep.NamespaceID, from uint64, n int) (keys []skep.Key, next uint64, err error) {
	const op = "list keys"
	if n < 1 {
		return nil, 0, skep.Invalidf(op, "keys", n, "at least 1")
	}
	if _, err := s.enter(ctx, op, space); err != nil {
		return nil, 0, err
	}
	defer s.mu.Unlock()
	if r := s.rooms[roomID{space: space}]; r != nil {
		for k := range r.blocks {
			if placeOf(k) > from {
				keys = append(keys, k)
			}
		}
	}
	slices.SortFunc(keys, func(a, b skep.Key) int { return bytes.Compare(a[:], b[:]) })
	if len(keys) <= n {
		return keys, 0, nil
	}
	for n < len(keys) && placeOf(keys[n]) == placeOf(keys[n-1]) {
		n++ // a place cannot part them
	}
	if n == len(keys) {
		return keys, 0, nil
	}
	return keys[:n], placeOf(keys[n-1]), nil
}

// placeOf is a key's place in a listing; never 0, which is the beginning.
func placeOf(k skep.Key) uint64 {
	return max(binary.BigEndian.Uint64(k[:])>>(64-skep.ListPlaceBits), 1)
}

// ListBlocks is ListKeys with what each block is, for who keeps copies of them elsewhere. Chains are cut into groups
// of so many blocks, and a block names the first of its group; one of which it is not known is left out.
//
// Errors: those of ListKeys.
func (s *Store) ListBlocks(ctx context.Context, space skep.NamespaceID, group int, from uint64, n int) (out []skep.StoredBlock,
	next uint64, err error) {
	const op = "list blocks"
	if group < 1 {
		return nil, 0, skep.Invalidf(op, "blocks of a group", group, "at least 1")
	}
	keys, next, err := s.ListKeys(ctx, space, from, n)
	if err != nil {
		return nil, 0, err
	}
	if err := s.begin(ctx, op); err != nil {
		return nil, 0, err
	}
	defer s.mu.Unlock()
	r := s.rooms[roomID{space: space}]
	if r == nil {
		return nil, next, nil // purged since
	}
	for _, k := range keys {
		b := r.blocks[k]
		if b == nil {
			continue
		}
		x := skep.StoredBlock{Key: k, First: k, Depth: b.depth, ValidTokens: b.valid, Name: slices.Clone(b.name)}
		if b.parent != nil {
			p := *b.parent
			x.Parent = &p
		}
		for name, bytes := range b.parts {
			x.Manifest = append(x.Manifest, skep.PartSpec{Name: name, Size: int64(len(bytes))})
		}
		slices.SortFunc(x.Manifest, func(a, b skep.PartSpec) int { return cmp.Compare(a.Name, b.Name) })
		for up := b.depth % group; up > 0 && b != nil; up-- {
			x.First, b = *b.parent, r.blocks[*b.parent]
		}
		if b != nil {
			out = append(out, x)
		}
	}
	return out, next, nil
}
