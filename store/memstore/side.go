package memstore

import (
	"bytes"
	"context"
	"slices"

	"github.com/skepkv/skep"
)

// PutSidecar implements skep.Store: pieces are kept with the block and go with it.
func (s *Store) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	const op = "put sidecar"
	if err := skep.ValidateSidecar(pieces); err != nil {
		return err
	}
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	defer s.mu.Unlock()
	b, err := s.sidedLocked(op, sc, key)
	if err != nil {
		return err
	}
	var data []byte
	for _, p := range pieces {
		data = append(data, p.Bytes...)
	}
	for _, part := range b.parts {
		if len(b.parts) > 1 || !bytes.Equal(part, data) {
			return &skep.Error{Op: op, Kind: skep.Conflict, Field: "pieces", Value: key.Short(), Limit: "the bytes of the block as it is stored"}
		}
	}
	b.side = cloneSide(pieces)
	return nil
}

// Sidecar implements skep.Store.
func (s *Store) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	const op = "sidecar"
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	b, err := s.sidedLocked(op, sc, key)
	if err == nil && b.side == nil {
		err = &skep.Error{Op: op, Kind: skep.NotFound, Field: "side rows of block", Value: key.Short()}
	}
	if err != nil {
		return nil, err
	}
	return cloneSide(b.side), nil
}

// sidedLocked is the block of a key. s.mu is held.
func (s *Store) sidedLocked(op string, sc skep.Scope, key skep.Key) (*block, error) {
	if _, err := s.spaceLocked(op, sc.Namespace); err != nil {
		return nil, err
	}
	if len(sc.Salt) > skep.MaxSaltSize {
		return nil, skep.Invalidf(op, "salt length in bytes", len(sc.Salt), skep.MaxSaltSize)
	}
	if r := s.rooms[roomOf(sc)]; r != nil {
		if b := r.blocks[stored(sc.Salt, key)]; b != nil {
			return b, nil
		}
	}
	return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "block", Value: key.Short()}
}

func cloneSide(pieces []skep.SidecarPiece) []skep.SidecarPiece {
	out := slices.Clone(pieces)
	for i := range out {
		out[i].Bytes = bytes.Clone(out[i].Bytes)
	}
	return out
}
