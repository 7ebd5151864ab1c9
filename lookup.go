package skep

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"
)

// MaxChainKeys is the most keys that one call may name: a lookup, over all of its runs, a restore, over all of its
// chains, a Want, a Hint, a Delete. MaxPutBlocks is that of a put, MaxDepth says how deep its blocks may be.
const MaxChainKeys = 1 << 20

// DefaultLease is how long a lookup's promise holds when the request does not say.
const DefaultLease = 10 * time.Second

// MaxLease is the longest lease, and the longest renewal.
const MaxLease = 10 * time.Minute

// NoLease asks a Lookup for no promise.
const NoLease time.Duration = -1

// Tier is where a block's bytes are. The numbers travel on the wire.
type Tier uint8

const (
	TierNone   Tier = 0 // nowhere
	TierDevice Tier = 1 // on drives
	TierDRAM   Tier = 2 // in the store's memory
	TierRemote Tier = 3 // on another node
	TierGPU    Tier = 4 // in GPU memory
	TierObject Tier = 5 // in object storage
)

func (t Tier) String() string {
	if int(t) < len(tierText) {
		return tierText[t]
	}
	return fmt.Sprintf("tier %d", uint8(t))
}

var tierText = [...]string{"none", "device", "dram", "remote", "gpu", "object"}

// RecomputeCost is what computing n tokens costs the engine:
// Fixed + n·PerToken + n²·PerTokenSquared. The square is attention's share.
type RecomputeCost struct {
	Fixed           time.Duration
	PerToken        time.Duration
	PerTokenSquared float64 // nanoseconds
}

// Of is the time to compute n tokens: the longest Duration where it is longer than that, or no
// number.
func (c RecomputeCost) Of(tokens int) time.Duration {
	const longest, least = time.Duration(math.MaxInt64), time.Duration(math.MinInt64)
	n := float64(tokens)
	var d time.Duration
	switch v := n*float64(c.PerToken) + n*n*c.PerTokenSquared; {
	case v >= float64(longest) || v != v:
		d = longest
	case v <= float64(least):
		d = least
	default:
		d = time.Duration(v)
	}
	switch {
	case c.Fixed > 0 && d > longest-c.Fixed:
		return longest
	case c.Fixed < 0 && d < least-c.Fixed:
		return least
	}
	return c.Fixed + d
}

// validate returns an Invalid error naming the first field outside its limits. A cost of nothing
// is one.
func (c RecomputeCost) validate(op string) error {
	switch {
	case c.Fixed < 0:
		return Invalidf(op, "fixed recompute cost", c.Fixed, "0 or more")
	case c.PerToken < 0:
		return Invalidf(op, "recompute cost of a token", c.PerToken, "0 or more")
	case !(c.PerTokenSquared >= 0) || c.PerTokenSquared > maxPerTokenSquared:
		return Invalidf(op, "recompute cost of a token squared in ns", c.PerTokenSquared, fmt.Sprintf("0 to %g", float64(maxPerTokenSquared)))
	}
	return nil
}

// RenewalOf is how long a renewal of d has a lease last: DefaultLease for 0, as of a lookup. Invalid unless d is 0 to
// MaxLease.
func RenewalOf(d time.Duration) (time.Duration, error) {
	if d < 0 || d > MaxLease {
		return 0, Invalidf("renew", "lease", d, "0 to "+MaxLease.String())
	}
	return cmp.Or(d, DefaultLease), nil
}

// LookupRequest asks for the longest prefix of Keys that can be restored now.
type LookupRequest struct {
	Scope
	Keys  []Key          // a chain, first block first; lent for the call
	Lease time.Duration  // 0: DefaultLease; NoLease: none; else at most MaxLease
	Tiers bool           // fill LookupResult.Tiers
	Cost  *RecomputeCost // when set, Estimate and Pays are filled
}

// Validate returns an Invalid error naming the first field outside its limits.
func (r *LookupRequest) Validate() error {
	const op = "lookup"
	if len(r.Keys) > MaxChainKeys {
		return Invalidf(op, "keys", len(r.Keys), fmt.Sprintf("at most %d", MaxChainKeys))
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

func (s Scope) validate(op string) error {
	if len(s.Salt) > MaxSaltSize {
		return Invalidf(op, "salt length in bytes", len(s.Salt), fmt.Sprintf("at most %d", MaxSaltSize))
	}
	return nil
}

// LeaseID names a lease; 0 is none. Ids are random: one of an earlier run of the store, or of another store at the same
// address, is nobody's.
type LeaseID uint64

// Lease is a promise that the blocks a lookup found stay restorable until Until,
// unless they are deleted, purged or damaged.
type Lease struct {
	ID    LeaseID
	Until time.Time
}

// LookupResult is what a lookup found. In an unchained namespace Blocks counts the
// leading keys that are stored.
type LookupResult struct {
	Blocks int // how many leading keys can be restored now
	Tokens int // valid tokens in them; less than Blocks × B only when the last is a partial tail
	// Bytes is the payload of those blocks: exact when Tiers were asked for, else
	// reckoned from the size of the last one.
	Bytes int64
	// Lease is zero when none was asked for, nothing was found, or the tenant's
	// leased bytes are at their cap (LeaseDenied). A lease counts with the bytes of its whole prefix; leases that one
	// tenant has of the same prefix count once, those of a longer or another one besides, though they share blocks. Who
	// is denied releases leases sooner (Leaser.Release), asks for shorter ones, or raises store.Options.LeasedBytes,
	// leased_bytes of a server. What was found may be restored all the same, and may be evicted meanwhile.
	Lease       Lease
	LeaseDenied bool
	Tiers       []Tier        // of each of the Blocks, when asked for; the caller's
	Estimate    time.Duration // to restore them now, when Cost was given
	Pays        bool          // Estimate is below the cost of recomputing; true when no Cost was given
}

// PrefixFinder finds prefixes.
type PrefixFinder interface {
	// Lookup finds the longest prefix of the request's chain that can be restored
	// right now and leases it. It sees every block whose put returned before it
	// began. Nothing found is a result with Blocks 0, not an error; nor is a lease that was denied (LeaseDenied).
	// Answers come from memory: it waits for no drive.
	//
	// Errors: Invalid, NotFound (no such namespace).
	Lookup(ctx context.Context, r *LookupRequest) (LookupResult, error)
	// LookupRuns is a Lookup of each of many runs of keys in one call, with one lease for all that is found. A run that
	// is not there, or not whole, changes nothing for the others.
	//
	// Errors: as Lookup's; Unsupported by a Store that has no such call: look up run by run.
	LookupRuns(ctx context.Context, r *RunsRequest) (RunsResult, error)
}

// Leaser keeps and gives back promises.
type Leaser interface {
	// Renew has a lease end d from now, at most MaxLease; 0 is DefaultLease. It may end it sooner than it would have.
	//
	// Errors: Invalid, LeaseExpired (it is unknown or has run out).
	Renew(ctx context.Context, id LeaseID, d time.Duration) (Lease, error)
	// Release ends a lease. Releasing one that is unknown or over is not an error.
	//
	// Errors: none but those of every call (Store).
	Release(ctx context.Context, id LeaseID) error
}
