package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/leases"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
)

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
	out.Runs = make([]skep.RunFound, 0, len(r.Runs))
	covered := leases.NewRuns()
	for i := range r.Runs {
		one := r.One(i)
		one.Lease = r.Lease
		found := s.lookupRun(ns, t, &one, &out)
		out.Add(&found)
		keys, hits, bytes = keys+len(one.Keys), hits+found.Blocks, bytes+found.Bytes
		if n := found.Blocks; n > 0 && out.Lease.ID != 0 {
			covered.Add(n, s.names.Fingerprint(ns.Instance, t, one.Keys[n-1]))
		}
	}
	s.leases.Cover(out.Lease.ID, covered, bytes)
	c := &s.count
	c.Lookups.Add(int64(len(r.Runs)))
	c.LookupKeys.Add(int64(keys))
	c.LookupHits.Add(int64(hits))
	ns.Count.Keys.Add(int64(keys))
	ns.Count.Hits.Add(int64(hits))
	return out, nil
}

// lookupRun looks one run up, and adds what it finds to the lease of all.
func (s *Store) lookupRun(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest, all *skep.RunsResult) (out skep.LookupResult) {
	s.profile.Saw(ns.Instance, r.Keys)
	for range lookupTries {
		out = skep.LookupResult{Lease: all.Lease, LeaseDenied: all.LeaseDenied}
		again := false
		if ns.Info.Chained {
			again = s.lookupChain(ns, t, r, &out)
		} else {
			again = s.lookupKeys(ns, t, r, &out)
		}
		if !again && out.Blocks > 0 && (r.Tiers || r.Cost != nil) {
			again = s.detail(ns, t, r, &out)
		}
		// What was leased of a try that begins again stays leased: the lease is of other runs, too.
		all.Lease, all.LeaseDenied = out.Lease, out.LeaseDenied
		if !again {
			break
		}
		out = skep.LookupResult{} // a miss, if it is so each time
	}
	if out.Blocks == 0 || !r.Tiers && r.Cost == nil {
		out.Pays = true
	}
	return out
}
