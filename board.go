package skep

import "sync/atomic"

// Boarder is what a Session is besides whose claims can be granted without a call. Chains without Compute are
// Invalid here.
type Boarder interface {
	// Board has the chain's claims granted through word, until the session is closed: what it says,
	// and how an engine claims by it, is package layout/twopointer's (Word, Board). Claims by calls go on
	// working, and are the same claims: no block is granted by both. Misses of kind Claimed come within
	// milliseconds. A store on the other side of a connection takes a word in memory of Alloc;
	// what cannot have a word is Unsupported, and claims go by calls.
	//
	// The word is the session's until Close has returned nil. A word that is written to in any way but
	// a claim is shut: claims go by calls again, and what it granted before is computed or loaded
	// as the store last knew.
	Board(chain int, word *atomic.Uint64) error
}
