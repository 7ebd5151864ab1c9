// Package memory owns the DRAM of a store: one arena off the Go heap, and the
// cache tier that lives in it.
//
// # The arena
//
// An Arena is one 2 MiB-aligned mapping on huge pages, as large as its two
// budgets together and no larger, so that it can be registered with io_uring,
// in parts as they are used, and never grows. A buddy allocator hands out 4 KiB pages of it: every
// buffer starts at a multiple of its size rounded up to a power of two, and the
// tail that rounding would waste is given back at once, so a buffer costs its
// length rounded up to 4 KiB. Free space is kept as one bitmap per order
// (a quarter of a byte per page in all), which makes every allocation take the
// lowest fitting address and so keeps high addresses whole.
//
// Each buffer is charged to BudgetIO or to BudgetCache. A read is allocated from
// the first; when it has completed, its charge moves to the second and the bytes
// stay where the drive put them. Because both budgets are hard and sum to the
// mapping, an allocation within its budget can only fail for fragmentation, and
// then the arena asks the cache to clear one aligned window.
//
// # The life of a buffer
//
//	Alloc ─▶ held (references > 0) ─▶ Release ─▶ free
//	            │ Lend                   │
//	            ▼                        ▼ references 0, loans > 0
//	          lent to a drive ───▶ quarantined ─▶ Return ─▶ free
//
// A drive may complete a read minutes after its caller gave up, and nothing can
// stop it from writing into the memory it was given. A loan says that it still
// may: a buffer with loans is nobody else's, however often it was released.
// Handles are never recycled, so a second Release of a freed buffer is seen for
// what it is and cannot free somebody else's memory. Freed memory is not zeroed:
// a new buffer holds whatever was there, and its owner must overwrite it before
// showing it to anyone.
//
// # The cache
//
// A Cache maps IDs (a 16-byte key and a part number) to buffers. It evicts by
// cost-effectiveness (SWARM eq. 6) with GreedyDual inflation, because eq. 6
// without aging is LFU and never forgets; exact LRU can be chosen instead. The
// order is a pure structure (ranking) that knows neither bytes nor locks.
//
// Get pins. Bytes are reached only inside Handle.Read, so the cache always knows
// whether somebody is looking: once a handle is past its deadline and nobody is
// inside Read, its memory may be taken back under pressure, either by moving the
// bytes into memory the holder brought along or by making its next Read fail
// with ErrRevoked, which is a miss. A Read in progress is never interrupted.
// Dirty entries (accepted, not committed) are never evicted.
//
// # What always holds
//
//   - Bytes charged to a budget never exceed it, quarantined bytes included.
//   - No two live buffers overlap; a quarantined buffer is live.
//   - Nothing waits without a context; waiters of one budget are served in the
//     order of their arrival, and an attempt that does not wait never overtakes.
//   - Operations that return an error change nothing, and ownership stays where
//     it was.
//   - Locks are taken in the order Cache.mu, Handle.mu, Arena.mu. The arena
//     calls the cache with no lock held.
//
// Built with the tag "invariants", freed memory is poisoned with 0xdb and checked
// when it is handed out again, and misuse of a handle panics instead of being
// counted.
package memory
