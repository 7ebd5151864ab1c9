// Package restore reads blocks of chains from drives and from the DRAM tier: it plans, queues, reads around what
// fails, checks, and delivers. It knows no store: a Restorer asks a Source where blocks lie, and tells it what became
// of them.
//
// # Seams
//
//	Restorer  Restore begins a session; Hint has blocks read ahead; Estimate, TwoPointers, Prefetch and State tell
//	Source    the store: Locate pins blocks where they are now, Failed and Used are told, Hold counts a session's memory
//	Drive     a drive with its Queue of reads; Hedge has those read elsewhere that take too long
//	Stripe    the segments a block lies in
//
// # Life of a restore (session.go, plan.go, pump.go, read.go, check.go)
//
//	plan      the request is checked, destinations are measured against what may land
//	pump      one goroutine a session takes the next chunk of the chain whose turn it is, has the Source
//	          find where its block lies now, and those whose turn comes next (turns.go), and pin them, and
//	          queues its reads on the
//	          drives, within a window of 64 MiB
//	read      a drive has at most 128 reads or 32 MiB under way; of reads into memory that
//	          is lent 2 MiB, and more while they come back soon (depth.go); the rest waits in its
//	          queue, by priority, where it can still be cancelled
//	check     workers compare every granule with its checksum, copy where a copy is
//	          needed, try the next copy where bytes are wrong or a drive failed; what is
//	          wrong in a destination is read again into the store's own memory first
//	deliver   Next hands chunks out in the order they landed, then what was claimed or given up, which it
//	          makes as it is asked
//
// A chunk is answered once (delivered, or a miss with a reason) and is back when no
// drive and no worker can write to its destination any more. A deadline answers; only
// coming back releases.
//
// # Who may read memory that others can write (exposed.go)
//
// Drives read straight into a destination that is aligned. It is its caller's memory, and over
// shared memory another process's: its bytes may change while they are checked, and after. So
// they are checked there for that caller only. Nothing is kept or handed on from there: who joined
// the read, and the DRAM tier, get a copy in the store's own memory, and it is the copy that is
// checked. And they prove nothing: a block is counted as damaged, repaired or forgotten only when
// a read into the store's own memory was wrong as well. What the store lends of its own memory
// is for reading.
//
// # Two pointers (twopointer.go, direction.go, wanted.go)
//
// Chains that say what computing them costs are fed by one scheduler (layout/twopointer), not by
// their own pumps: it decides what is read next of which, and what an engine's claim is granted. A
// chain asked for either way goes by tokens or by layers as L_Δ says when its session begins. What
// one such chain has read and another still wants is kept in the DRAM tier.
//
// # Locks and goroutines
//
// The order of locks is the table of package locks: a session's, then the scheduler's, then those of queues, joins,
// wanted and prefetch. A Source's methods are called with a session's lock held only where it is Used, LetGo or Unpin.
// Goroutines: a pump for each session, which ends when its chunks are answered; workers, which Stop ends; watch,
// dispatch of the scheduler and reading ahead, which end with Parts.Context.
package restore
