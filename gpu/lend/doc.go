// Package lend is the pure half of lending: two state machines by which a lender and its borrowers agree on who may use
// which units of the lender's arena (SwiftCache §3.5). They take messages and moments and give messages back: no I/O,
// no clock, no goroutine; times are the caller's. Package gpu/loan is the other half: processes, sockets and memory.
//
//	lender                                   borrower
//	  Grant{epoch, units, until}   ───────►    may allocate there, and read what it wrote
//	                               ◄───────  Renew{epoch}            while it lives
//	  Grant{epoch, units, until'}  ───────►
//	  Revoke{epoch+1, units, by}   ───────►  stops: allocates nothing there, finds nothing there
//	                                         drains: waits for its copies to and from there
//	                               ◄───────  Ack{epoch+1}
//	  the units are the lender's
//	  Grant{epoch+2, more units}   ───────►  those it had before it goes on using
//	                               ◄───────  Return{epoch+2}    it leaves: all come back
//
// What was in revoked units has its copy behind the GPU tier (in DRAM or on drives), so
// stopping is all a borrower needs for its next lookup to be right.
//
// # What holds
//
//   - The lender uses a unit again only after the borrower's Ack for it or after the borrower
//     is gone. Not after a deadline: a copy that is under way cannot be called back, and one
//     that arrives late would land in the lender's own blocks. At the deadline the lender asks
//     for the borrower to be ended (Kill), and its end is what gives the memory back.
//   - What a borrower copies is believed only if the unit is still its own when the copy is
//     done (Borrower.End), and what it wrote before only if it has had the unit ever since
//     (Borrower.Since).
//   - A borrower that does not hear from its lender before its lease ends stops by itself.
//   - A lender that was stopped itself ends nobody for what it did not hear meanwhile.
//   - Messages may be lost, doubled and reordered, and reach a later process of the same
//     number (Message.Life); an epoch is never used twice for a borrower.
package lend
