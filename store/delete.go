package store

import (
	"cmp"
	"context"
	"fmt"

	"github.com/skepkv/skep"
)

// Delete implements skep.Deleter.
func (s *Store) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	const op = "delete"
	if err := checkKeys(op, keys); err != nil {
		return 0, err
	}
	if err := s.gate.EnterWrite(ctx, op); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return 0, err
	}
	return s.logs.Delete(ctx, ns, t, keys)
}

// checkKeys refuses more keys than a chain may have.
func checkKeys(op string, keys []skep.Key) error {
	if len(keys) > skep.MaxChainKeys {
		return skep.Invalidf(op, "keys", len(keys), fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	return nil
}

// Purge implements skep.Deleter.
func (s *Store) Purge(ctx context.Context, p skep.Purge) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := s.gate.EnterWrite(ctx, "purge"); err != nil {
		return err
	}
	defer s.gate.Leave()
	return s.naming.Purge(ctx, p)
}

// Hint implements skep.Hinter.
func (s *Store) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	const op = "hint"
	if err := cmp.Or(checkKeys(op, keys), h.Validate()); err != nil {
		return 0, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return 0, err
	}
	return s.lookups.Hint(ns, t, sc, keys, h)
}
