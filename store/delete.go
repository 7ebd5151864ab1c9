package store

import (
	"context"
	"fmt"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/lookup"
)

// Delete implements skep.Deleter.
func (s *Store) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	const op = "delete"
	if err := s.gate.EnterWrite(ctx, op); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	if len(keys) > skep.MaxChainKeys {
		return 0, skep.Invalidf(op, "keys", len(keys), fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return 0, err
	}
	return s.logs.Delete(ctx, ns, t, keys)
}

// Purge implements skep.Deleter.
func (s *Store) Purge(ctx context.Context, p skep.Purge) error {
	if err := s.gate.EnterWrite(ctx, "purge"); err != nil {
		return err
	}
	defer s.gate.Leave()
	if err := p.Validate(); err != nil {
		return err
	}
	return s.naming.Purge(ctx, p)
}

// Hint implements skep.Hinter.
func (s *Store) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	const op = "hint"
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	if len(keys) > skep.MaxChainKeys {
		return 0, skep.Invalidf(op, "keys", len(keys), fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	if err := lookup.CheckHint(op, h); err != nil {
		return 0, err
	}
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return 0, err
	}
	return s.lookups.Hint(ns, t, sc, keys, h)
}
