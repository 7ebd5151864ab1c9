package store

import (
	"context"
	"iter"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/locate"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/restore"
)

// Restore implements skep.Restorer.
func (s *Store) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	return s.restores.Restore(ctx, r)
}

// source is the store as its restores see it: where blocks lie, and who is told of what became of them.
type source struct {
	*locate.Finder
	s *Store
}

var _ restore.Source = source{}

func (o source) Enter(ctx context.Context) error { return o.s.gate.Enter(ctx) }
func (o source) Leave()                          { o.s.gate.Leave() }

func (o source) Hold(tenant uint16, bytes int64) (int64, error) {
	return o.s.calls.Enter("restore", tenant, bytes)
}
func (o source) LetGo(tenant uint16, bytes int64) { o.s.calls.Leave(tenant, bytes) }

func (o source) Leased(a *restore.Asked) int { return o.s.lookups.Covered(a) }

func (o source) PayloadOf(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) int64 {
	return o.s.lookups.PayloadOf(ns, fp, e)
}

func (o source) Drives() iter.Seq[restore.Drive] {
	return func(yield func(restore.Drive) bool) {
		for _, d := range o.s.members.All() {
			if !yield(d) {
				return
			}
		}
	}
}

func (o source) Used(fp index.Fingerprint, t skep.Tier) {
	o.s.index.Touch(fp)
	o.s.lookups.Programs.Restored(fp)
	if t == skep.TierDRAM {
		o.s.ingest.Filter.Use(fp)
	}
}
