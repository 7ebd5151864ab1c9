package wire

import (
	"context"
	"time"

	"github.com/skepkv/skep"
)

// Claim implements skep.Session.
func (s *clientSession) Claim(chain int, r skep.Range) (skep.Claim, error) {
	if err := s.checkChain("claim", chain); err != nil {
		return skep.Claim{}, err
	}
	var out claimResult
	err := s.ask(context.Background(), TypeClaim, &claimRequest{s.id, chain, r}, &out)
	return out.Claim, err
}

// Reprioritise implements skep.Session.
func (s *clientSession) Reprioritise(chain, priority int, deadline time.Time) error {
	if err := s.checkChain("reprioritise", chain); err != nil {
		return err
	}
	return s.ask(context.Background(), TypeReprioritise, &reprioritiseRequest{s.id, chain, priority, leftUntil(deadline)}, nil)
}

var _ skep.Planner = (*clientSession)(nil)

// plannedAt checks a chain of a call of skep.Planner, and says whether the server has the frames
// for it. One that has not loads the chain like any other, and takes claims as they come.
func (s *clientSession) plannedAt(op string, chain int) (known bool, err error) {
	if err := s.checkChain(op, chain); err != nil {
		return false, err
	}
	if s.chains[chain].Compute == nil {
		return false, skep.Invalidf(op, "chain", chain, "one that says what computing costs")
	}
	return s.x != nil && s.x.hi.Features&FeatureCompute != 0, nil
}

// ClaimWhen implements skep.Planner.
func (s *clientSession) ClaimWhen(chain int, r skep.Range, idle bool) (skep.Claim, error) {
	known, err := s.plannedAt("claim", chain)
	switch {
	case err != nil:
		return skep.Claim{}, err
	case !known:
		return s.Claim(chain, r)
	}
	var out claimResult
	err = s.ask(context.Background(), TypeClaimWhen, &claimWhenRequest{claimRequest{s.id, chain, r}, idle}, &out)
	return out.Claim, err
}

// Computed implements skep.Planner. A server that learns nothing from it is not told.
func (s *clientSession) Computed(chain int, r skep.Range, took, other time.Duration) error {
	known, err := s.plannedAt("computed", chain)
	if err != nil || !known {
		return err
	}
	return s.ask(context.Background(), TypeComputed, &computedRequest{claimRequest{s.id, chain, r}, took, other}, nil)
}
