// Package rebuild makes a new catalog from the drives of a store alone.
//
//	superblocks   whose devices these are, the secret, the geometry
//	headers       which groups there are; one freed or overwritten header is enough to
//	              say that a group is gone
//	logs          every record, tombstone, purge, namespace and key in use, all devices at once
//	verify        the payload of what was written after the last mark: a crash may have
//	              left records without it
//	settle        of the records of a block the one written last wins, unless it was
//	              deleted or purged
//
// The root row is committed last, alone and synced. Until it is there the directory holds
// no catalog, and whoever opens the store next begins anew: a rebuild may be cut off at
// any point, any number of times.
//
// Of blocks it keeps some 60 bytes a record, found by fingerprint (known.go); rows are written as tables, sorted, with
// a bound on the memory of those that wait (rows.go). It reads headers and logs by itself and asks its caller, the
// Store of its Input, for what is the store's: whether a block's bytes are there, and writes to drives.
package rebuild
