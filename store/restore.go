package store

import (
	"context"

	"github.com/skepkv/skep"
)

// Restore implements skep.Restorer.
func (s *Store) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	return s.restores.Restore(ctx, r)
}
