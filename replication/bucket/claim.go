package bucket

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
)

// whole is a chain's number in the first session where that has all of it; false: it was cut, and is the second
// session's, too.
func (x *session) whole(op string, chain int) (i int, ok bool, err error) {
	if slices.Contains(x.late, chain) {
		return 0, false, nil
	}
	if i = slices.Index(x.early, chain); i < 0 {
		return 0, false, skep.Invalidf(op, "chain", chain, "one of the request")
	}
	return i, true, nil
}

// Claim implements skep.Session. Of a chain that was cut nothing is granted: all of it is on its way.
func (x *session) Claim(ctx context.Context, chain int, want skep.Subset, load skep.EngineLoad) (skep.Claim, error) {
	i, ok, err := x.whole("claim", chain)
	if err != nil {
		return skep.Claim{}, err
	}
	if ok {
		return x.now.Claim(ctx, i, want, load)
	}
	j := slices.Index(x.late, chain)
	c, shape := &x.later.Chains[j], &x.cuts[j].sp.spec.Shape
	end := len(c.Keys) * shape.BlockTokens
	if c.Direction.ByLayer() {
		end = shape.Layers
	}
	of, ok := want.In(end)
	if !ok {
		return skep.Claim{}, skep.Invalidf("claim", "range", want, skep.Only(0, end))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.over:
		return skep.Claim{}, &skep.Error{Op: "claim", Kind: skep.Closed}
	case x.stopped[chain]:
		return skep.Claim{}, errStopped
	}
	return skep.Claim{Granted: skep.Range{From: of.From, To: of.From}, Next: end}, nil
}

// ShareClaimWord implements skep.Session.
func (x *session) ShareClaimWord(ctx context.Context, chain int, word *atomic.Uint64) error {
	i, ok, err := x.whole("share claim word", chain)
	if err == nil && !ok {
		err = skep.Invalidf("share claim word", "chain", chain, "one with Compute")
	}
	if err != nil {
		return err
	}
	return x.now.ShareClaimWord(ctx, i, word)
}

// Computed implements skep.Session.
func (x *session) Computed(ctx context.Context, chain int, done skep.Range, took, other time.Duration) error {
	i, ok, err := x.whole("computed", chain)
	if err == nil && !ok {
		err = skep.Invalidf("computed", "chain", chain, "one with Compute")
	}
	if err != nil {
		return err
	}
	return x.now.Computed(ctx, i, done, took, other)
}
