// Package sparse keeps clustered contexts on any skep.Store: skep.Sparse on top of
// lookup, restore and put. It needs no storage of its own; what it stores are blocks, so
// checksums, crash safety, cleaning and repair are the Store's, and, where the Store has them
// (skep.Sidecars), rows of its catalog.
//
// # What is stored
//
// A context belongs to a chain of a block namespace, N say, and lives in two unchained
// namespaces of the same tenant, model, class and number of copies beside it:
//
//	N#sparse-R   records. A block is 64 slots of R bytes (whole pages), one entry each. Its
//	             shape is "latent", a slot a layer, so a slot is a granule: it has its own
//	             checksum, and a range of slots is a range of layers
//	N#sparse     all else, opaque: the context, each layer's arrangement, profiles, appended
//	             tokens on their way
//
// A record block is 256 KiB for entries of 4 KiB: one stripe unit, so it lies on one
// drive, and blocks put one after another go around the drives. Which one it is is asked
// of the Store (Locator), so that balance is reckoned with where things are.
//
//	layer 3, generation 2       dev 0            dev 1            dev 2
//	                          ┌ block 0 ┐      ┌ block 0 ┐      ┌ block 0 ┐
//	slots 0 to 63             │ a0 a1 b4│      │ a2 a3 b5│      │ a4 b0 b1│  …
//	                          └─────────┘      └─────────┘      └─────────┘
//	slots 64 to 127             block 1          block 1          block 1
//
// # Arrangement, generation
//
// An arrangement says what is in which slot and which entries form clusters. It is
// immutable but for growth at its end and is stored as one block; replacing that block
// is the moment a new generation takes over. Rows are made of it then, medoids, routes and
// clusters apart (rows.go), and are what an open reads, unless they are not of the block as
// it is: then the block, and rows are made anew. Records of a generation that is not in
// force are found by their keys, which name it, and deleted when its last reader is done.
//
//	recluster   write plan (what is wanted) → records of the new generation → arrangement
//	            → delete old records → delete plan
//	crash       plan there: recluster goes on with it, skipping what is stored, or, where it
//	            is in force, deletes what was before; what there is of a later generation
//	            without a plan, as evictions leave it, is deleted before a plan is stored.
//	            A plan is gone on with if it places the entries that have a place now
//
// # Append
//
// A token's entries are put as one block and acknowledged when that is stored. They are
// in the window, in memory, until they join clusters (those of element types without
// arithmetic never do, and Append refuses more than maxUnjoined of them); then they wait
// for a block's worth of neighbours on the drive that is theirs, (id + |C|) mod n, are
// written as an overflow block, and the arrangement grows. The token's own block is deleted
// after that, so an acknowledged entry is always stored at least once. A token is stored
// only when none is stored under the next number: where the store evicted one, those after
// it may be there still, and numbers go on from the one that is missing.
//
// # What holds
//
//   - A Fetch delivers an entry's bytes or names it as missing. Bytes are checked by the
//     Store, slot by slot.
//   - Readers see one arrangement from beginning to end; its records are deleted after.
//   - Only what the Store says is not stored is taken for that: where a block cannot be read
//     now, a call fails with the Store's error before it begins anything anew.
//   - A context is served only while the last block of its chain is found, and not once its
//     description says that it is dropped.
//   - Memory: hot records up to the DRAM asked for; the window, of 4,096 entries a layer or as many as it has steps and
//     blocks take; prefetched records up to twice one choice a layer, and two on their way; an index that
//     LayerInfo.IndexBytes counts.
//     Besides, while a layer is clustered or reclustered, all its entries at once, in whole pages when they are
//     moved, and those of float types with their keys as 4-byte numbers besides: 128k
//     entries of K and V in bf16, 4 KiB each, are 512 MiB and as much again.
//
// # Locks
//
// A place (scope and last key) is claimed, over I/O and before all locks, by whoever makes,
// opens or drops its context. Sparse.mu guards the table of open contexts. context.mu guards tokens on their way;
// context.appending is held by one Append at a time, over I/O, and is taken before all of a context's: an Append waits
// for it until its ctx ends; context.flushing is by a Flush or drop, before context.mu.
// layer.mu guards what a layer learned, its memory and its arrangement pointer; it is not
// held over I/O. arrangement.readers is shared by reads, which do not wait for it, and taken
// whole before deleting.
// layer.moving is held by one recluster or overflow write at a time, over I/O, and is
// taken before the others but appending. An Observe does not wait for it, an Append and a Recluster do until their ctx
// ends; a drop and a Close do however long, and a Recluster gives way to them.
package sparse
