package bucket

import (
	"context"
	"time"

	"github.com/skepkv/skep"
)

// Lookup implements skep.Store.
func (s *Store) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	res, err := s.Store.Lookup(ctx, r)
	if err != nil || r.Salt != "" {
		return res, err
	}
	sp, err := s.spaceOf(ctx, r.Namespace)
	if err != nil || sp == nil {
		return res, nil // the Store has answered
	}
	s.found.note(r.Keys[:res.Blocks])
	more := s.past(sp, r.Keys, here{res.Blocks, res.Tokens, res.Estimate}, r.Cost)
	if more.blocks == 0 {
		return res, nil
	}
	res.Blocks, res.Tokens, res.Bytes = res.Blocks+more.blocks, res.Tokens+more.tokens, res.Bytes+more.bytes
	if r.Tiers {
		for range more.blocks {
			res.Tiers = append(res.Tiers, skep.TierObject)
		}
	}
	if r.Cost != nil {
		res.Estimate += more.took
		res.Pays = res.Estimate < r.Cost.Of(res.Tokens)
	} else {
		res.Pays = true
	}
	res.LeaseDenied = res.LeaseDenied || r.Lease != skep.NoLease && res.Lease.ID == 0
	return res, nil
}

// LookupRuns implements skep.Store.
func (s *Store) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	res, err := s.Store.LookupRuns(ctx, r)
	if err != nil || r.Salt != "" {
		return res, err
	}
	sp, err := s.spaceOf(ctx, r.Namespace)
	if err != nil || sp == nil || len(res.Runs) != len(r.Runs) {
		return res, nil
	}
	var tiers []skep.Tier
	at, any := 0, false
	for i := range res.Runs {
		x := &res.Runs[i]
		s.found.note(r.Runs[i][:x.Blocks])
		if r.Tiers {
			tiers = append(tiers, res.Tiers[at:at+x.Blocks]...)
			at += x.Blocks
		}
		more := s.past(sp, r.Runs[i], here{x.Blocks, x.Tokens, x.Estimate}, r.Cost)
		if more.blocks == 0 {
			continue
		}
		any = true
		x.Blocks, x.Tokens, x.Bytes = x.Blocks+more.blocks, x.Tokens+more.tokens, x.Bytes+more.bytes
		if x.Pays = true; r.Cost != nil {
			x.Estimate += more.took
			x.Pays = x.Estimate < r.Cost.Of(x.Tokens)
		}
		for range more.blocks {
			tiers = append(tiers, skep.TierObject)
		}
	}
	if r.Tiers {
		res.Tiers = tiers
	}
	res.LeaseDenied = res.LeaseDenied || any && r.Lease != skep.NoLease && res.Lease.ID == 0
	return res, nil
}

// here is what the node's Store found of a run.
type here struct {
	blocks, tokens int
	took           time.Duration
}

// beyond is what objects have of a run, after what the node's Store has.
type beyond struct {
	blocks, tokens int
	bytes          int64
	took           time.Duration
}

// past says what there is, unless computing it is quicker or the bucket did not answer lately.
func (s *Store) past(sp *space, keys []skep.Key, x here, cost *skep.RecomputeCost) (out beyond) {
	unit := sp.spec.Shape.BlockTokens
	if x.blocks >= len(keys) || x.tokens != x.blocks*unit || s.why.reads.Load() != nil || !s.takes(sp) {
		return out
	}
	run := sp.run(keys, x.blocks)
	if len(run) == 0 {
		return out
	}
	for _, p := range run {
		out.bytes += int64(p.bytes)
	}
	if !s.budget.canLoad(out.bytes) {
		return beyond{}
	}
	out.blocks, out.tokens, out.took = len(run), len(run)*unit, s.speed.of(out.bytes)
	if cost == nil {
		cost = s.o.Recompute
	}
	if cost != nil && out.took >= cost.Of(x.tokens+out.tokens)-cost.Of(x.tokens) {
		return beyond{}
	}
	return out
}
