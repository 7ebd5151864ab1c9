// Package answers is what a node of a cluster says of runs of keys that it is asked for.
package answers

import (
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/promises"
)

// Said is what a node says of runs of keys.
type Said struct {
	Away   bool // it does not answer
	One    bool // one lease is of all of them
	Denied bool
	Until  time.Time
	Found  []skep.RunFound
	Lease  skep.LeaseID   // the one
	Leases []skep.LeaseID // else that of each
	Tiers  [][]skep.Tier  // nil: nobody asked
	Err    error
}

// Read takes a node's answer for all runs.
func (x *Said) Read(q *skep.RunsRequest, r *skep.RunsResult) {
	*x = Said{One: true, Until: r.Lease.Until, Denied: r.LeaseDenied, Found: r.Runs, Lease: r.Lease.ID}
	tiers := r.Tiers
	for i := 0; q.Tiers && i < len(r.Runs); i++ {
		k := r.Runs[i].Blocks
		x.Tiers, tiers = append(x.Tiers, tiers[:k]), tiers[k:]
	}
}

// Add takes a node's answer for the next run, which was asked for by itself.
func (x *Said) Add(r *skep.LookupResult) {
	x.Found, x.Leases, x.Tiers = append(x.Found, FoundOf(r)), append(x.Leases, r.Lease.ID), append(x.Tiers, r.Tiers)
	if x.Denied = x.Denied || r.LeaseDenied; r.Lease.ID != 0 {
		x.Until = promises.Sooner(x.Until, r.Lease.Until)
	}
}

// FoundOf is a lookup's result as that of a run.
func FoundOf(r *skep.LookupResult) skep.RunFound {
	return skep.RunFound{Blocks: r.Blocks, Tokens: r.Tokens, Bytes: r.Bytes, Estimate: r.Estimate}
}
