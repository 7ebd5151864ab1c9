// Package index is the prefix index: what is stored, where, and what of it is worth
// keeping. It knows no I/O and no clock; callers pass the time.
//
// # What it holds
//
// One slot a block: a fingerprint of the key, the location on the devices, the parent's slot, and what the cleaner
// needs to judge it. Slots and hash buckets live off the Go heap in chunks that are never copied, so growing the index
// neither doubles its memory nor makes the garbage collector look at it. A slot is 56 bytes and a bucket 4, at 1.75
// blocks a bucket: 58.3 bytes a block, and at most 60 with everything counted, at 2 million blocks (TestBytesPerBlock).
// It is counted in pages of 2 MiB, so a smaller one has more a block. The exact orders of lru and s3fifo take 12 bytes
// a slot more, and a ghost of s3fifo's 80.
//
// # Words
//
//	slot    a row of the index's table, for a block or a stub; an ID is its number. Slots of package layout are another
//	        thing: parts of a page
//	page    the unit of space, of Config.PageBytes, in all that is called Pages. Package store counts in slots of
//	        package layout, 512 bytes each, so that a small block is charged its part of a page
//	group   a stripe group on the devices; a block is in the one that its location names
//	bucket  of the hash table; what a lookup asks for is a fingerprint, a probe, whichever bucket it is in
//
// # Only rooted blocks are seen
//
// A block is rooted when it has no parent or its parent is rooted. Rooted blocks of
// a chain are therefore a prefix of it, without a hole, and Lookup may search the
// chain by halves: at most 12 probes for 2,000 keys, the first key and 11 halvings. A block whose parent is absent is
// an orphan, stored and hidden; the parent's place is held by a stub, a slot without a block, so that the parent finds
// the waiting subtree when it arrives. Removing a block that has children leaves such a stub and hides the subtree.
//
// # Who goes first
//
// The device space is cleaned by stripe groups, and cleaning is eviction. The index
// counts for each group what lives in it and what of that was touched since it was
// written, so PickVictim looks at some thousands of groups, not at blocks, and Survivors
// says which blocks of the chosen group to write again. Both ask a Policy, pure functions of numbers:
//
//   - cost, the default: a block is kept when it was touched since it was written,
//     no longer ago than a horizon; the horizon shrinks as the budget for rewriting
//     is used up, so write amplification is bounded whatever the workload.
//   - lru and s3fifo: an exact order over all blocks under a logical cap (NextEvict),
//     with the emptiest group cleaned for space.
//
// Leases and pins are promises: what they protect survives whatever the policy says,
// and Evict refuses it. Hints (expected next use, steps to execution, time to live,
// drop) come before the policy and after promises. Tenants over their share and dead
// namespaces give first.
//
// # Invariants (Check verifies them)
//
//   - every live slot and stub is in exactly one hash bucket, the one its fingerprint
//     names; every other slot is on the free list;
//   - a child's parent lists it exactly once; a stub has at least one child and no parent;
//   - rooted ⇔ live and (no parent, or the parent rooted and one shallower);
//   - counts, group statistics and tenant usage equal a recount.
//
// # Locks
//
// Index.mu guards slots, buckets, groups, tenants and hints: lookups share it, changes
// take it for themselves, long work gives it up between pieces (except BulkLoad, which
// is for an open, and hiding or showing a subtree, which must look like one moment).
// leases.mu guards leases and the set of protected slots and is taken after Index.mu. victims.mu, of who chooses a
// victim, is taken before it.
package index
