// Package commit is the one way in which rows of blocks and the index change.
//
// The catalog commits, then the index follows. A commit that was refused did not happen, and nothing has changed; one
// of which it is not known whether it happened fails the store for changes. What changes
//
//	Publish   new blocks, with the rows of those that they replace
//	Move      blocks that were written again elsewhere
//	Delete    blocks that somebody deletes
//	Evict     blocks that a cleaning drops with their group
//	Trim      blocks over the logical cap, where the policy has an exact order
//	Lost      blocks no copy of which can be read
//	Forget    blocks that are wrong, whatever the catalog says
//
// and is told as an event. Changes of rows that exist are made under one lock, so that no move undoes a delete: who
// looks rows up beside them finds some that are on the way, and Await returns when they have arrived.
//
// Where the index comes first, since only it can say whether a lease protects a block (Evict) or because the bytes are
// wrong whatever the catalog says (Forget), the rows of what it has forgotten are owed until a commit has deleted them:
// every later commit of changed rows takes them along, and no delete is acknowledged before they are gone. So what was
// said to be gone is not found by the next open.
package commit
