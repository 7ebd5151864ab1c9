package store

import (
	"context"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/restore"
)

// LookupRuns implements skep.PrefixFinder: run after run, under one lease.
func (s *Store) LookupRuns(ctx context.Context, r *skep.RunsRequest) (out skep.RunsResult, err error) {
	keys, hits, bytes := 0, 0, int64(0)
	sp := observe.BeginSpan(ctx, "store lookup")
	defer func() { sp.Over(keys, hits, bytes, err) }()
	if err := r.Validate(); err != nil {
		return out, err
	}
	if err := s.enter(ctx); err != nil {
		return out, err
	}
	defer s.leave()
	ns, t, err := s.names.Resolve("lookup of runs", r.Scope)
	if err != nil {
		return out, err
	}
	out.Runs = make([]skep.RunFound, 0, len(r.Runs))
	covered := &covers{at: map[cover]struct{}{}}
	for i := range r.Runs {
		one := r.One(i)
		one.Lease = r.Lease
		found := s.lookupRun(ns, t, &one, &out)
		out.Add(&found)
		keys, hits, bytes = keys+len(one.Keys), hits+found.Blocks, bytes+found.Bytes
		if n := found.Blocks; n > 0 && out.Lease.ID != 0 {
			covered.add(n, s.names.Fingerprint(ns.Instance, t, one.Keys[n-1]))
		}
	}
	s.leases.cover(out.Lease.ID, covered, bytes)
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

// covers is what the lease of a lookup of runs covers. It does not change once a caller knows the lease.
type covers struct {
	at      map[cover]struct{}
	lengths []int // of the runs found, each once, the longest first
}

// cover is a run's leading blocks.
type cover struct {
	blocks int
	fp     index.Fingerprint // of the deepest
}

func (v *covers) add(blocks int, fp index.Fingerprint) {
	v.at[cover{blocks, fp}] = struct{}{}
	if i, ok := slices.BinarySearchFunc(v.lengths, blocks, func(a, b int) int { return b - a }); !ok {
		v.lengths = slices.Insert(v.lengths, i, blocks)
	}
}

// only is what is covered of some blocks.
func (v *covers) only(blocks []leased) *covers {
	if v == nil {
		return nil
	}
	there := map[index.Fingerprint]bool{}
	for _, o := range blocks {
		there[o.fp] = true
	}
	out := &covers{at: map[cover]struct{}{}}
	for c := range v.at {
		if there[c.fp] {
			out.add(c.blocks, c.fp)
		}
	}
	return out
}

// of is how many leading keys of a chain are covered.
func (v *covers) of(s *Store, c *restore.Asked) int {
	for _, n := range v.lengths {
		if n > len(c.Keys) {
			continue
		}
		if _, ok := v.at[cover{n, s.names.Fingerprint(c.NS.Instance, c.Tag, c.Keys[n-1])}]; ok {
			return n
		}
	}
	return 0
}

// cover says what a lease of many runs covers, and how much that is.
func (l *leaseTable) cover(id skep.LeaseID, v *covers, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if row := l.m[id]; row != nil {
		row.runs, row.promises.bytes = v, bytes
	}
}
