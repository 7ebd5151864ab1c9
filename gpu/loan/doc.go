// Package loan is lending between processes: it lends GPU memory from one process of a machine to another, over a
// socket, as the pure state machines of package gpu/lend decide. Linux only; elsewhere Lend and Borrow are Unsupported.
//
//	lending process                                borrowing process
//	  Lend: an arena of shared GPU memory,           Borrow: connects, and says how much it wants
//	        a Unix socket (SOCK_SEQPACKET)
//	             ── the arena as a descriptor ──▶     maps it, for as long as it borrows
//	             ── Grant ─────────────────────▶     gpu.Store.Attach
//	             ◀───────────────────── Renew ──
//	  Move up:   ── Revoke ────────────────────▶     gpu.Store.Reclaim: stops, waits for its copies
//	             ◀─────────────────────── Ack ──
//	  the units are the lender's
//
// A borrower that ends is noticed by its pidfd, and its memory is back at once. One that
// does not acknowledge in time, or lets its lease run out (it hangs, or is stopped), is ended
// by SIGKILL: nothing else takes memory from a process that maps it. So borrow in a process
// that may be ended, as skep-gpu is, and with the lender's user: others are refused, and so
// is the lender's own process.
//
// Times that go between the two are of CLOCK_MONOTONIC: both have to be in one time
// namespace, as containers of one machine are unless told otherwise.
package loan
