package skep

import (
	"fmt"
	"time"
)

// RunsRequest asks for the longest prefix of each of many runs of keys in one call: the prompts of a batch, the groups of
// a chain that a cluster has on one node or, in an unchained namespace, keys one by one.
type RunsRequest struct {
	Scope
	Runs  [][]Key        // each is what LookupRequest.Keys is, and has a key at least; lent for the call
	Lease time.Duration  // as of a LookupRequest: one lease for all that is found
	Tiers bool           // fill RunsResult.Tiers
	Cost  *RecomputeCost // when set, Estimate and Pays of each run are filled
}

// Validate returns an Invalid error naming the first field outside its limits. All runs together have as many keys as a
// chain may have.
func (r *RunsRequest) Validate() error {
	const op = "lookup of runs"
	if len(r.Runs) > MaxChainKeys {
		return Invalidf(op, "runs", len(r.Runs), fmt.Sprintf("at most %d", MaxChainKeys))
	}
	keys := 0
	for i, run := range r.Runs {
		if len(run) == 0 {
			return Invalidf(op, fmt.Sprintf("keys of run %d", i), 0, "at least 1")
		}
		if keys += len(run); keys > MaxChainKeys {
			return Invalidf(op, "keys of all runs", keys, fmt.Sprintf("at most %d", MaxChainKeys))
		}
	}
	if r.Lease != NoLease && (r.Lease < 0 || r.Lease > MaxLease) {
		return Invalidf(op, "lease", r.Lease, fmt.Sprintf("0 to %v, or NoLease", MaxLease))
	}
	if r.Cost != nil {
		if err := r.Cost.validate(op); err != nil {
			return err
		}
	}
	return r.Scope.validate(op)
}

// One is the lookup of one run, without a lease.
func (r *RunsRequest) One(run int) LookupRequest {
	return LookupRequest{Scope: r.Scope, Keys: r.Runs[run], Lease: NoLease, Tiers: r.Tiers, Cost: r.Cost}
}

// RunsResult is what a lookup of runs found.
type RunsResult struct {
	Runs []RunFound // of each of the request's; the caller's
	// Lease is of the blocks of all runs. It is zero when none was asked for, nothing was found, or the tenant's leased
	// bytes are at their cap (LeaseDenied): then nothing is leased.
	Lease       Lease
	LeaseDenied bool
	Tiers       []Tier // of the blocks found, run behind run, when asked for; the caller's
}

// RunFound is what was found of one run: see LookupResult.
type RunFound struct {
	Blocks   int
	Tokens   int
	Bytes    int64
	Estimate time.Duration
	Pays     bool
}

// Add notes what a lookup found of the next run. The lease is not looked at.
func (r *RunsResult) Add(x *LookupResult) {
	r.Runs = append(r.Runs, RunFound{Blocks: x.Blocks, Tokens: x.Tokens, Bytes: x.Bytes, Estimate: x.Estimate, Pays: x.Pays})
	r.Tiers = append(r.Tiers, x.Tiers...)
}
