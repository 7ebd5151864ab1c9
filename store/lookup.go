package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/observe"
)

// Lookup implements skep.PrefixFinder.
func (s *Store) Lookup(ctx context.Context, r *skep.LookupRequest) (out skep.LookupResult, err error) {
	sp := observe.BeginSpan(ctx, "store lookup")
	defer func() { sp.Over(len(r.Keys), out.Blocks, out.Bytes, err) }()
	if err := r.Validate(); err != nil {
		return out, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return out, err
	}
	defer s.gate.Leave()
	ns, t, err := s.names.Resolve("lookup", r.Scope)
	if err != nil {
		return out, err
	}
	return s.lookups.Find(ns, t, r, skep.Counts(ctx), skep.Reuses(ctx)), nil
}

// LookupRuns implements skep.PrefixFinder: run after run, under one lease.
func (s *Store) LookupRuns(ctx context.Context, r *skep.RunsRequest) (out skep.RunsResult, err error) {
	keys, hits, bytes := 0, 0, int64(0)
	sp := observe.BeginSpan(ctx, "store lookup")
	defer func() { sp.Over(keys, hits, bytes, err) }()
	if err := r.Validate(); err != nil {
		return out, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return out, err
	}
	defer s.gate.Leave()
	ns, t, err := s.names.Resolve("lookup of runs", r.Scope)
	if err != nil {
		return out, err
	}
	out, keys, hits, bytes = s.lookups.FindRuns(ns, t, r, skep.Counts(ctx), skep.Reuses(ctx))
	return out, nil
}

// Renew implements skep.Leaser.
func (s *Store) Renew(ctx context.Context, id skep.LeaseID, d time.Duration) (skep.Lease, error) {
	d, err := skep.RenewalOf(d)
	if err != nil {
		return skep.Lease{}, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return skep.Lease{}, err
	}
	defer s.gate.Leave()
	now := s.options.Clock()
	return s.lookups.Leases.Renew(id, now, now.Add(d))
}

// Release implements skep.Leaser.
func (s *Store) Release(ctx context.Context, id skep.LeaseID) error {
	if err := s.gate.Enter(ctx); err != nil {
		return err
	}
	defer s.gate.Leave()
	s.lookups.Leases.Release(id)
	return nil
}
