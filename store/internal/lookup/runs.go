package lookup

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/leases"
	"github.com/skepkv/skep/store/internal/namespaces"
)

// FindRuns looks up run after run, under one lease. It says how many keys were looked up in all, how many were there,
// and how many bytes these have.
func (l *Finder) FindRuns(ns *namespaces.Namespace, t namespaces.Tag, r *skep.RunsRequest, counts, uses bool) (
	out skep.RunsResult, keys, hits int, bytes int64,
) {
	out.Runs = make([]skep.RunFound, 0, len(r.Runs))
	covered := leases.NewRuns()
	for i := range r.Runs {
		one := r.One(i)
		one.Lease = r.Lease
		if uses {
			l.Profile.Saw(ns.Instance, one.Keys)
		}
		found := l.run(ns, t, &one, &out)
		out.Add(&found)
		keys, hits, bytes = keys+len(one.Keys), hits+found.Blocks, bytes+found.Bytes
		if n := found.Blocks; n > 0 && out.Lease.ID != 0 {
			covered.Add(n, l.Names.Fingerprint(ns.Instance, t, one.Keys[n-1]))
		}
	}
	l.Leases.Cover(out.Lease.ID, covered)
	if counts {
		l.count(ns, len(r.Runs), keys, hits)
	}
	return out, keys, hits, bytes
}

// run looks one run up, and adds what it finds to the lease of all.
func (l *Finder) run(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest,
	all *skep.RunsResult) (out skep.LookupResult) {
	for range lookupTries {
		out = skep.LookupResult{Lease: all.Lease, LeaseDenied: all.LeaseDenied}
		again := l.once(ns, t, r, &out)
		// What was leased of a try that begins again stays leased: the lease is of other runs, too.
		all.Lease, all.LeaseDenied = out.Lease, out.LeaseDenied
		if !again {
			break
		}
		out = skep.LookupResult{Pays: true} // a miss, if it is so each time
	}
	return out
}
