package bucket

import (
	"context"
	"time"

	"github.com/skepkv/skep"
)

// Relearn is for a node without which others have deleted (package fence), before it loses that: what it knows of the
// bucket is forgotten, and nothing is found there before it was read again. They have said there what is deleted.
func (s *Store) Relearn() {
	now := time.Now()
	s.mu.Lock()
	s.stale = now // a look that is under way may make spaces yet
	s.mu.Unlock()
	for _, sp := range s.all() {
		sp.relearn(now)
	}
}

// LoseNamespace deletes a namespace from the drives alone: the bucket keeps what others have of it, and is not asked.
//
// Errors: those of the node's Store.
func (s *Store) LoseNamespace(ctx context.Context, id skep.NamespaceID) error {
	sp, err := s.spaceOf(ctx, id)
	if err != nil {
		return err
	}
	if sp != nil { // nothing that is on its way is of what is lost
		if err := sp.pass(ctx); err != nil {
			return err
		}
		defer sp.passed()
	}
	if err := s.Store.DeleteNamespace(ctx, id); err != nil {
		return err
	}
	s.ids.Delete(id)
	return nil
}
