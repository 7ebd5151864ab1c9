package wire

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
)

// Claim implements skep.Session. A server that does not know of busy engines takes claims as they come.
func (s *clientSession) Claim(ctx context.Context, chain int, want skep.Subset, load skep.EngineLoad) (skep.Claim, error) {
	const op = "claim"
	if err := s.checkChain(op, chain); err != nil {
		return skep.Claim{}, err
	}
	r, err := frames.Travelling(op, "range", want)
	if err != nil {
		return skep.Claim{}, err
	}
	m := frames.ClaimRequest{Session: s.id, Chain: chain, Range: r}
	var out frames.ClaimResult
	if load != skep.Idle && s.chains[chain].Compute != nil && s.schedules() {
		err = s.ask(ctx, frames.TypeClaimWhen, &frames.ClaimWhenRequest{ClaimRequest: m, Idle: false}, &out)
	} else {
		err = s.ask(ctx, frames.TypeClaim, &m, &out)
	}
	return out.Claim, err
}

// schedules says whether the server has the frames of chains with a cost. One that has not loads them like any others.
func (s *clientSession) schedules() bool {
	return s.x != nil && s.x.hi.Features&frames.FeatureCompute != 0
}

// Reprioritise implements skep.Session.
func (s *clientSession) Reprioritise(ctx context.Context, chain, priority int, deadline time.Time) error {
	if err := s.checkChain("reprioritise", chain); err != nil {
		return err
	}
	return s.ask(ctx, frames.TypeReprioritise, &frames.ReprioritiseRequest{Session: s.id, Chain: chain,
		Priority: priority, Deadline: leftUntil(skep.Steady(), deadline)}, nil)
}

// Computed implements skep.Session. A server that learns nothing from it is not told.
func (s *clientSession) Computed(ctx context.Context, chain int, done skep.Range, took, other time.Duration) error {
	if err := s.checkCosted("computed", chain); err != nil || !s.schedules() {
		return err
	}
	return s.ask(ctx, frames.TypeComputed, &frames.ComputedRequest{ClaimRequest: frames.ClaimRequest{Session: s.id,
		Chain: chain, Range: done}, Took: took, Other: other}, nil)
}

// checkCosted is checkChain of a call about a chain that says what computing costs.
func (s *clientSession) checkCosted(op string, chain int) error {
	err := s.checkChain(op, chain)
	if err == nil && s.chains[chain].Compute == nil {
		err = skep.Invalidf(op, "chain", chain, "one that says what computing costs")
	}
	return err
}
