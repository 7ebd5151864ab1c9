// Package scrub finds what is wrong on the drives of a store, and mends it from what is right.
//
// A Scrubber makes passes over everything that is stored (Run): every copy of every block, and what describes it on the
// drives: superblocks, headers, logs. Between passes it repairs what readers found (RepairSoon, Repair). A Verifier
// reads blocks whole, every copy of them.
//
// A block one copy of which is wrong is written again, whole, to a new place, by the way all blocks move. Nothing of a
// block is mended in place: a write over what is there could be torn, and the same spot of a drive would be trusted
// again. Of a block no copy of which is right the store is told, and forgets it. Headers and superblocks are written
// again where they lie; a record, or an entry of the logs, that is missing is logged again.
//
// The store is a Host to it: how a block is moved, and who is told of damage, is its own.
package scrub
