// Package catalog keeps skep's metadata in Pebble: where every block is, what
// state each stripe group is in, and whose namespaces there are. Payload never
// goes through it, and it can be rebuilt from the devices.
//
// # Rows
//
// Keys are big-endian, so that ranges are in order. Values of all rows but 'b'
// are one version byte, a body, and a CRC-32C over key, version and body.
//
//	key                                        value
//	'b' group u32, page u32, device u8, sub u8 a block record: opaque bytes of package segment
//	'd' device index u16                       DeviceState
//	'g' group u32                              GroupState
//	'j' number u64                             log entries still to be written to the devices
//	'k' instance u32, key id [16]              things of the instance are encrypted with this key, or were
//	'n' namespace id u32                       Namespace (JSON)
//	'o'                                        Owner (JSON): which directory the devices belong to
//	'p' instance u32, tag [16]                 a purged salt of an instance: sequence number
//	's'                                        StoreState
//	'x' instance u32, tag [16], key [32]       SideRoot: which pieces count of what a block says
//	'y' the same, edition u64, piece u32       one of those pieces: opaque bytes
//
// The block rows of a group are one range, in the order the group was written: a
// chain put together lies together and is read by one scan, and a group is
// dropped by one range deletion.
//
// Side rows hold what some blocks say a second time, cut into rows: the medoids, route
// tables and clusters of clustered contexts (skep.Sidecars; docs/reference/format.md has their bytes).
// The block is what counts. An edition is a version of it. Pieces of a new edition are
// written first, those that did not change are kept from an earlier one, and the root, one
// small row, is what has them count, in the commit that deletes what it no longer names.
// Pieces that no root names are what a crash has left, and go at the next open.
//
// # Commits
//
// A Batch is atomic: after a crash it is there whole or not at all, and the batches
// that are there are a prefix of those committed. With sync it survives any crash
// once Commit has returned nil; without, it may be lost with the batches after it.
// A synced commit makes every earlier unsynced batch durable too: Pebble has one
// log. Who commits a record before its payload is flushed must mark it so.
//
// # Failure
//
// Pebble ends the process when its log or manifest cannot be written: Logger.Fatalf
// by default, and, in rotateWAL, a panic through a deferred unlock of a mutex that
// is not held, which the runtime turns into an exit that cannot be recovered. A store
// must not take the engine it is embedded in down with it. So:
//
//   - The filesystem under Pebble is a fence. When the log, the manifest, a marker
//     or a directory cannot be written, the fence fails the catalog and the calling
//     goroutine is parked for good: Pebble never learns of an error it would die of,
//     and nothing is retried after a failed fsync. Errors on table files go back to
//     Pebble, which tries again; the fence slows it down to once a second. Commits that
//     have begun and wait for a flush that finds no space wait on, for Options.Patience.
//   - Our Fatalf does the same: fail, park. It cannot return (Pebble would carry on
//     with state it called broken) and must not unwind (see above).
//   - Every call into Pebble runs on a goroutine of its own, and the caller waits for
//     its result, its context, the catalog's timeout, or the failure. So nobody hangs
//     behind a parked goroutine or a drive that does not answer.
//
// A failed catalog stays failed: every call returns skep.Failed without touching
// Pebble, OnFailure has been called once, and nothing more is written to its
// directory. Its goroutines and memory stay until the process ends. Close gives back
// its lock when no write is under way any more, and what was committed is found
// by the next Open. A read that finds damage is skep.Damaged and does not fail the
// catalog. What remains: a panic of Pebble's on a goroutine of its own, which would be
// a bug of Pebble's and not an error of a drive, ends the process.
//
// # Memory
//
// Options.CacheBytes (64 MiB) of table blocks, and memtables of 32 MiB, of which at
// most three wait before writes stall. Pebble takes memtables out of the cache's
// account, so the cache is opened with the sum and the sum is the cap:
//
//	blocks cached               CacheBytes, and what memtables leave free
//	memtables                   at most 3 × 32 MiB, and what of the next is filled
//	batches in flight           at most 128 commits, each as large as its caller made it
//	log writer, compactions     some MiB; at most 2 compactions at a time
//	Inspect                     the live log in memory as well
package catalog
