package skep

import "fmt"

// Compute says that an engine computes what is not loaded of a chain, and what that costs. A
// chain with it is restored by two pointers (CacheFlow, §3): the engine computes from the head and
// claims what it is about to compute (Session.Claim); the store loads from the tail what it expects to
// be there first, for all such chains of all sessions together, and grants a claim only as far as
// computing is expected to be first. The chain's Direction says over what: TailFirst over tokens,
// LayersDown over layers, Auto over whichever is expected to be ready first (Session.Direction says which it is).
//
// What the store leaves to computing stays unanswered until it is claimed, the chain's Deadline has passed, or the
// session is stopped or closed. An engine that may never claim gives a Deadline, or says LoadOnly.
type Compute struct {
	// Cost is of this chain's layers on this engine: of a stage's share, where there are stages.
	Cost RecomputeCost
	// Suffix is how many tokens after the chain the engine computes before the request's first
	// token. It says how long the engine is busy with the request besides.
	Suffix int
	// Weight of the request: the sum of weight × completion is kept small. 0: 1.
	Weight float64
	// LoadOnly says that the engine claims nothing: the chain is loaded, or, when loading is expected
	// to take longer than computing, declined: all its chunks are misses of kind Claimed whose
	// error says how long loading would take (Value) and how long computing (Limit).
	LoadOnly bool
	// Background is a prefetch: it gets what no other chain wants, until Reprioritise gives
	// the chain a priority of 0 or more.
	Background bool
	// Boundary says which chain brings the activations entering this chain's stage of a pipeline;
	// nil: none are needed. Claims are granted as far as they have landed, and they are loaded
	// as far as the stage will compute; what of them is not needed is a miss of kind Stopped.
	// TailFirst only, which is what Auto then is.
	Boundary *Boundary
}

// Boundary ties a stage's boundary activations to its KV.
type Boundary struct {
	// Chain is their chain's number in the same request: its Part is Split.BoundaryPart, its
	// Direction HeadFirst, and its scope, keys and blocks are those of the KV. The KV's layers are
	// those of the stage. A chain brings them for one other.
	Chain int
	// BytesPerToken is what they have of one token: what reading them is reckoned to cost.
	BytesPerToken int64
}

// maxPerTokenSquared keeps what is reckoned from a cost finite: a second for each pair of tokens.
const maxPerTokenSquared = 1e9

// Validate returns an Invalid error naming the first field outside its limits.
func (c *Compute) Validate() error {
	const op = "restore"
	switch {
	case c.Cost.Fixed < 0 || c.Cost.PerToken < 0 || !(c.Cost.PerTokenSquared >= 0) ||
		c.Cost.Fixed|c.Cost.PerToken == 0 && c.Cost.PerTokenSquared/1e9 == 0: // in seconds, which a Store reckons in
		return Invalidf(op, "recompute cost", fmt.Sprintf("%+v", c.Cost), "nothing negative, something above 0 s")
	case c.Cost.PerTokenSquared > maxPerTokenSquared:
		return Invalidf(op, "recompute cost of a token squared in ns", c.Cost.PerTokenSquared, "0 to 1e9")
	case c.Suffix < 0 || c.Suffix > 1<<30:
		return Invalidf(op, "suffix in tokens", c.Suffix, fmt.Sprintf("0 to %d", 1<<30))
	case !(c.Weight >= 0) || c.Weight > 1e9:
		return Invalidf(op, "weight", c.Weight, "0 to 1e9")
	case c.Boundary != nil && c.LoadOnly:
		return Invalidf(op, "boundary", "set", "unset where nothing is computed")
	case c.Boundary != nil && (c.Boundary.BytesPerToken < 1 || c.Boundary.BytesPerToken > MaxPartBytes):
		return Invalidf(op, "boundary bytes of a token", c.Boundary.BytesPerToken, fmt.Sprintf("1 to %d", int64(MaxPartBytes)))
	}
	return nil
}
