// Package health judges drives: how far each of them is to be relied on, when what it holds
// counts as lost, when it is to be probed, and how long a read of it may take before it is
// sent elsewhere. It decides and does nothing: no I/O, no clock, no goroutine, no lock.
//
// # Seams
//
//	Judge     what is known of one drive; made once, for as long as the drive is in use
//	Reading   what a drive did up to now, as its counters, its file and its probe say
//	Look      takes one reading of every drive into account, at one moment
//	Rules     the numbers that drives are judged by
//	Standing  how a drive stands, for all who use it: what was found last, and what they count
//	Streak    writes in a row that failed, for who cannot wait for the next look
//
// Package monitor (store/internal/monitor) takes the readings several times a second, asks each Judge afterwards, and
// does what follows: it has the store fence, read around, and let back in, and it probes.
//
// # States
//
//	Healthy   read and written
//	Slow      read elsewhere where there is another copy
//	Fenced    besides, in no new group: reads, writes or flushes fail, it gives wrong bytes, is read-only or slow for
//	          long, or its file was removed or moved
//	Dead      besides, not read at all: gone, it does not answer, or its writes do not end
//
// A drive gets worse at once and better step by step: transitions says from which state it may
// come into which, and there is no other way. A drive that is Fenced or Dead is let back in by
// probes: some in a row have to be good, twice as many each time it fell again.
//
// # Invariants
//
//   - A drive is slow only by comparison with its own past and its peers: when all of them
//     are slow it is the load, and none is.
//   - A drive that does not answer is dead soon only where another one has answered meanwhile: one that has nothing to
//     do is asked for a sign of life. What stands still together is the machine, or the disk under several files.
//   - A machine that stood still itself is not held against the drives: between two looks a
//     drive's answer is overdue by a few ticks at most.
//   - A few bad pages among right ones are no bad drive.
package health
