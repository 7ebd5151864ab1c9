// Package locate finds blocks for restores, and takes note of those that are not as they were written.
//
// A block is in the DRAM tier, or in a group that is pinned until the block has been read (locate.go). What its bytes
// must hash to its record says: the catalog's row, or, where the catalog has failed, an entry in the group's logs
// (logs.go). A part that was restored from memory gets its checksums from there, too (recall.go). Of a block with a
// wrong copy another is made, and one no copy of which is right is forgotten (damage.go). For the rest of what restores
// ask a store, such as what a lease covers and what calls may keep in memory, a finder asks who knows (source.go).
package locate
