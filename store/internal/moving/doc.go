// Package moving moves stored blocks from drives to drives, and drops nothing for it.
//
// Why groups are moved (next.go decides, in this order): copies that were lost are made again, drives that are to go
// are emptied, a drive that came is filled, groups with holes are compacted. One mover does it in the background, a
// group at a time (background.go); Drain, Remove, Rebalance and Compact are the same on request. One of them moves at
// a time.
//
// A group is moved (group.go) by claiming it, writing what lives in it again in the order of its chains (copier.go),
// and having the cleaner free it. The cleaner's commit makes a move known: a delete is not undone by one. The work
// takes no group that puts and the cleaner need, and yields to restores. A group that cannot be moved now is left
// alone for a while.
//
// Retiring a drive is a decision that the catalog keeps: nothing new goes there, and it may be taken back until the
// drive is empty (Keep).
package moving
