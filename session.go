package skep

import (
	"context"
	"sync/atomic"
	"time"
)

// Session is a restore under way. Next is for one goroutine; the other calls may be made from any, also while Next waits.
// A chain is named by its index in RestoreRequest.Chains; one that is not there is Invalid. Besides what is said below,
// every call returns Closed once the session or its Store is closed, Deadline when ctx ended first, and, over a
// connection, Unavailable when the server does not answer. What a Session cannot do is Unsupported, by the call's name.
type Session interface {
	// Next waits until something has landed, or will not, and fills into with at least one chunk, in the order they
	// landed. io.EOF says that every chunk of every chain has been delivered and that all destinations are the
	// caller's again. The end of ctx ends the wait and not the session.
	//
	// Errors: Invalid when into is empty. What becomes of a block is its chunk's Err and no error of Next.
	Next(ctx context.Context, into []Chunk) (int, error)

	// Direction is the way by which the chain is restored: what was asked for or, of Auto, what the Store chose, TailFirst or
	// LayersDown. It does not change. Claims, Computed and the claim word count in tokens or in layers by it, and chunks come
	// by it: whole blocks, or one layer of a block. Over a connection it may take a round trip, once.
	//
	// Errors: Unsupported when a server's Store does not say.
	Direction(ctx context.Context, chain int) (Direction, error)

	// Claim says that the engine is about to compute part of the chain: tokens of it in the block directions, 0 to
	// len(Keys) × BlockTokens; layers in the layer directions. What the answer grants is not loaded, and comes as
	// misses of kind Claimed. Of a chain with Compute a claim names the position that comes next, which the answer before
	// said (Claim.Next), and load decides with the drives' speed how far computing is expected to be first; without
	// Compute all is granted that is neither loaded nor on its way, and load makes no difference.
	//
	// It waits for nothing but, over a connection, the answer. A claim whose answer was lost may have been granted:
	// a miss of kind Claimed is to be computed, whoever claimed it.
	//
	// Errors: Invalid for a range outside the chain; Stopped when the chain is stopped.
	Claim(ctx context.Context, chain int, want Subset, load EngineLoad) (Claim, error)

	// ShareClaimWord has claims of the chain, which has Compute, granted through word too, until the session is closed:
	// see ClaimWord for what word says and Claimer for how an engine claims by it. Claims by calls go on working and
	// are the same claims: no block is granted by both. Misses of kind Claimed come within milliseconds.
	//
	// word is the session's until Close has returned nil. One that is written to in any way but a claim is shut: claims
	// go by calls again, and what it granted before is computed or loaded as the store last knew. Over a connection word
	// lies in memory of Alloc that is shared with the server, as the chain's destination does.
	//
	// Errors: Invalid for a chain without Compute, a nil word, and one elsewhere than in shared memory; Conflict when the
	// chain has a word; Unsupported where there are no words, and for chains longer than MaxClaimWord: claim by calls.
	ShareClaimWord(ctx context.Context, chain int, word *atomic.Uint64) error

	// Computed tells that done of the chain, which has Compute, is computed: tokens or layers that were granted before, in a
	// step of the engine that took took and did other work besides for other (the engine's own estimate of suffixes
	// and other requests; 0: nothing). The store learns speeds from it. took 0 says nothing of time: an earlier item of
	// a step whose last item will. A Store that learns nothing from it returns nil.
	//
	// Errors: Invalid for a chain without Compute, and for a range that was not granted.
	Computed(ctx context.Context, chain int, done Range, took, other time.Duration) error

	// Reprioritise changes the chain's priority and deadline (zero: none) for what is not yet on its way.
	//
	// Errors: Stopped when the chain is stopped.
	Reprioritise(ctx context.Context, chain int, priority int, deadline time.Time) error

	// Stop ends a chain (-1: all of them). It waits for the drives that write to its destination: when it returns nil no
	// byte is ever again written there. What had not landed is delivered as misses of kind Stopped.
	//
	// Errors: NotReleased when ctx ended first. The memory is still the store's then, and Stop may be called again.
	Stop(ctx context.Context, chain int) error

	// Close stops what is left and waits, as Stop(ctx, -1) does, and ends the session. It must be called, and may be
	// called again after NotReleased.
	Close(ctx context.Context) error
}
