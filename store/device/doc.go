// Package device is the one seam between skep and its drives.
//
// A Device is one drive: a raw block device, a preallocated file, or memory.
// It moves aligned bytes at given offsets, asynchronously, and knows nothing
// about segments, blocks or checksums. Everything above it (segments, restore,
// scrub, repair) submits Ops and is told when each is done.
//
// Backends, all held to the same contract by package devicetest:
//
//	memory     a sparse image in DRAM, for tests
//	pool       a file or block device behind a bounded set of goroutines doing
//	           preadv and pwritev; works on every system
//	iouring    the same behind an io_uring (Linux, build tag iouring)
//	Throttled  wraps a Device in a bandwidth, IOPS and latency model (simulated)
//	Fault      wraps a Device: records what was written and flushed, rebuilds
//	           what a crash could have left, and injects faults by rule
//
// # Invariants
//
//   - Submit takes all ops of a batch or none. It never waits for the drive: what
//     exceeds the queue depth waits in the device, in order, and is bounded only
//     by what callers lend.
//   - Every op taken is done exactly once, with its full length transferred or an
//     error. Done runs on a goroutine of the device, never inside Submit, so a
//     caller may submit while holding a lock that its Done takes.
//   - From Submit until Done, the op and its buffers belong to the device. No
//     deadline, cancellation or Close changes that: a hung drive may write into a
//     buffer minutes after the caller gave up on it. The caller quarantines the
//     buffer until Done.
//   - Ops in flight are not ordered. A Flush makes durable the writes that were
//     done before the flush was submitted, and no others. A write that is done
//     but not flushed may be lost, whole or in part, at a power cut, O_DIRECT or
//     not.
//   - Close refuses new ops and waits a bounded time for those in flight. If some
//     are still out then, it says how many and keeps descriptor, ring and
//     references to the buffers alive, so that the kernel never writes into
//     memory that has become somebody else's. When the last of them completes,
//     the device is released after all.
//
// # Choosing a backend
//
// Open picks io_uring when the program was built with it and the kernel permits
// it, and the pool otherwise; Info says which and why. The same holds for
// O_DIRECT, which some file systems refuse.
package device
