package index

import (
	"fmt"

	"github.com/skepkv/skep"
)

// shareOfFree is how many times what is free a tenant may have of what all use: three quarters of
// all when it is alone, and whoever comes next finds a quarter.
const shareOfFree = 3

// allOfShare is of how many one tenant may have 65,536.
const allOfShare = 1<<16 + (1<<16+shareOfFree-1)/shareOfFree

// mayTake says whether a tenant that has some may take one more, while so many are left.
func mayTake(has, left int) bool {
	return has < shareOfFree*left
}

// overShare is the error of who may not.
func overShare(op, what string, has, left int) error {
	return &skep.Error{Op: op, Kind: skep.Quota, Field: what + " of the tenant", Value: has,
		Limit: fmt.Sprintf("at most %d times the %d that are free", shareOfFree, left)}
}

// hinted counts a block's hint, or one less, for its tenant. REQUIRES: x.mu.
func (x *Index) hinted(s *slot, n int) { x.owners.at(s.owner).usage.hints += n }
