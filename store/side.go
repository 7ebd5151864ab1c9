package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/sidecar"
	"github.com/skepkv/skep/store/segment"
)

// PutSidecar implements skep.Store.
func (s *Store) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	const op = "put sidecar"
	if err := s.enterWrite(ctx, op); err != nil {
		return err
	}
	defer s.leave()
	if err := skep.ValidateSidecar(pieces); err != nil {
		return err
	}
	if s.catalogRoom.Full() {
		return &skep.Error{Op: op, Kind: skep.Full, Field: "catalog"}
	}
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return err
	}
	err = s.sidecars.Put(ctx, ns, catalog.SideID{Instance: ns.Instance, Tag: t, Key: key}, pieces)
	if err == nil && ns.Info.Class == skep.Cache {
		s.wantHardened()
	}
	return err
}

// Sidecar implements skep.Store.
func (s *Store) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
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

// sideBlocks is the store's blocks, for their side rows: sidecar.Blocks.
type sideBlocks struct{ s *Store }

func (b sideBlocks) Record(op string, key skep.Key, fp index.Fingerprint) (segment.Record, error) {
	return b.s.committed(op, key, fp, b.s.recordNow)
}

func (b sideBlocks) Change(f func(sidecar.Reader) error) error {
	b.s.changes.Lock()
	defer b.s.changes.Unlock()
	return f(func(op string, key skep.Key, fp index.Fingerprint) (segment.Record, error) {
		return b.s.committed(op, key, fp, b.s.record)
	})
}

func (b sideBlocks) Stored(fp index.Fingerprint, id catalog.SideID) bool {
	_, ok := b.s.index.Resolve(fp)
	return ok && !b.s.names.Dead(id.Instance, id.Tag)
}

// committed is the record of a block that is on its devices, as read reads it: record, under
// s.changes, or recordNow. NotFound when there is none.
func (s *Store) committed(op string, key skep.Key, fp index.Fingerprint,
	read func(index.Fingerprint, index.Entry) (segment.Record, error),
) (rec segment.Record, err error) {
	if e, ok := s.index.Resolve(fp); ok && e.Location != 0 {
		if rec, err = read(fp, e); err == nil || skep.KindOf(err) != skep.NotFound && err != errGone {
			return rec, err
		}
	}
	return rec, &skep.Error{Op: op, Kind: skep.NotFound, Field: "block", Value: key.Short()}
}
