package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
)

// PutSidecar implements skep.Store.
func (s *Store) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	const op = "put sidecar"
	if err := skep.ValidateSidecar(pieces); err != nil {
		return err
	}
	if err := s.gate.EnterWrite(ctx, op); err != nil {
		return err
	}
	defer s.gate.Leave()
	if s.catalogRoom.Full() {
		return &skep.Error{Op: op, Kind: s.catalogRoom.Kind(), Field: "catalog"}
	}
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return err
	}
	err = s.sidecars.Put(ctx, ns, catalog.SideID{Instance: ns.Instance, Tag: t, Key: key}, pieces)
	if err == nil && ns.Info.Class == skep.Cache {
		s.rows.SyncSoon()
	}
	return err
}

// Sidecar implements skep.Store.
func (s *Store) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	ns, t, err := s.names.Resolve("sidecar", sc)
	if err != nil {
		return nil, err
	}
	pieces, err := s.sidecars.Get(ctx, ns, catalog.SideID{Instance: ns.Instance, Tag: t, Key: key})
	if err == nil {
		s.index.Touch(s.names.Fingerprint(ns.Instance, t, key)) // as reading the block is
	}
	return pieces, err
}
