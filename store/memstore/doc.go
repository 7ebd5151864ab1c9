// Package memstore is a Store that keeps its blocks in maps: the smallest thing
// that does everything package skep promises, and the model other Stores are
// compared with (store/storetest). Speed is not its aim; being read and being right
// is. It is also a usable Store for tests of what sits in front of one.
//
// # How it works
//
// Blocks live in rooms. A room is one namespace under one salt, so nothing can cross
// from one to another: there is no map in which two rooms' keys meet. The key in a
// room is the stored form, mixed with the salt; the salt itself is not kept.
//
//	Store ── namespaces ── rooms ── blocks (by stored key)
//	                          └──── children (by parent's stored key, orphans too)
//
// One mutex guards all of it. Block bytes are immutable once stored, so a restore
// copies them without the mutex. There are no goroutines: leases, pins, block
// writers and deadlines run out when a call next looks at the clock, and a restore
// session loads a piece when Next asks for it, so a destination is only ever
// written during a Next.
//
// # Invariants
//
//   - A block of a chained namespace is rooted exactly when it is at depth 0 without
//     a parent, or its parent is stored, rooted, full (not a partial tail) and one
//     depth above. Only rooted blocks are found or restored.
//   - Store.used is the payload of all stored blocks, tenant.used of one tenant's;
//     Store.used ≤ CapacityBytes when there is a cap.
//   - What a live lease, a pin or a session holds is not evicted.
//   - Every event has the sequence number of the one before plus one.
//
// # Where the API leaves room
//
// Purging empties a namespace; its number stays valid and may be put to again. A
// restore that names a lease that has run out is a restore without a lease. A hint to
// drop a block makes it the first to be evicted and removes nothing.
package memstore
