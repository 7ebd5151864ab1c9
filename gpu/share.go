package gpu

import "os"

// Sharer is a Device whose memory other processes of this machine can map: what a lender
// hands to its borrowers. Devices need not be one.
//
// Shared memory lives until the last process that maps it has freed it or has ended, so a
// lender gets memory back from a borrower that is stuck by having it ended.
type Sharer interface {
	Device
	// AllocShared is Alloc of memory that others can Import: a driver wants to know that
	// when memory is made. The file stands for the memory on its way to another process
	// and is the caller's to close; the memory does not need it.
	AllocShared(n int64) (Memory, *os.File, error)
	// Import maps n bytes of memory that another process made on this GPU by AllocShared.
	// It does not count as this process's memory. f stays the caller's. Invalid when f is
	// not such memory, or smaller.
	Import(f *os.File, n int64) (Memory, error)
}
