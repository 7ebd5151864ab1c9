// Package store is the embedded engine: a skep.Store on devices. It ties together what lies below it, of which none
// knows package store:
//
//	layout     where bytes go: stripe groups, cells, reads, orders          (pure)
//	index      what is stored, what is found, what is worth keeping         (pure)
//	device     moves aligned bytes, asynchronously
//	segment    the bytes of superblocks, headers, log pages, records, checksums
//	catalog    records, groups, namespaces, in Pebble
//	memory     one arena off the Go heap: I/O buffers and the DRAM tier
//
// What of the engine has a seam of its own lies in packages under internal. Package store calls them, and some call
// each other: tools/lint/rooms_test.go says who may import whom.
//
//	admin      the socket through which other processes see and change an open store
//	admission  which Cache blocks go to the drives
//	appender   writes blocks and log entries to groups
//	aside      where the catalog is, and what is left of one put out of the way
//	clean      makes free groups: garbage collection, and with it eviction
//	commit     the one way in which rows of blocks and the index change
//	compact    which groups are worth writing again, and in which order
//	crypt      encryption at rest: keys by tenant, sealing and opening blocks and rows
//	devlog     has the devices' logs say what the catalog says
//	dirlock    a directory's lock, and who has it
//	gate       lets calls in until the store closes
//	health     how far a drive is to be relied on: a state machine that is fed readings
//	ingest     takes blocks into a store: puts, and blocks that are written part by part
//	intents    what the catalog promises that the devices' logs will say
//	keybook    which encryption keys are in use, as catalog and logs know it
//	leases     what callers were promised: leases of lookups, pins
//	limits     what callers may keep in memory, and the pace of work that nobody waits for
//	locate     finds blocks for restores, and takes note of wrong ones
//	locks      in which order locks are taken
//	lookup     what callers ask of the index: prefixes, runs, keys to put, listings, hints
//	making     which files a store is made with, so that a making that was cut off is undone
//	members    which drives an open store has, and who may change that
//	monitor    looks at the drives, has them judged, and probes those that are not well
//	moving     moves blocks from drives to drives: drains, rebalances, compacts, makes copies again
//	namespaces the table of namespaces, tenants and purged salts; keys become fingerprints
//	naming     makes, purges and deletes namespaces, one at a time
//	observe    what the store tells of itself: counts, events, its log's end, metrics
//	opening    finds a store, or makes it: its directory, its catalog and its drives
//	paths      what a path of the file system leads to
//	pieces     blocks that are written piece by piece: which bytes have been, and their memory
//	pinned     the memory that drives read into, registered with them as it is used
//	places     where the devices of a directory are, and whose
//	puts       what puts under way know of each other
//	rebuild    a new catalog from the drives alone
//	recovery   what an open does with the catalog it has found: loads it, and compares it with the devices
//	restore    reads blocks of chains from drives and the DRAM tier, checks and delivers them
//	room       what is left in the file system of the catalog, for puts and for an open
//	scrub      finds what is wrong on the drives, and mends it from what is right
//	segio      bytes on drives: superblocks, headers, logs, blocks read and verified
//	sidecar    what some blocks say, as rows of the catalog
//	space      stripe groups and free segments: their life, who has one, a place for what is written
//	verify     compares what devices, catalog and index say of a store that nobody has open
//	watermark  sequence numbers, the root row that keeps them, how far all is on the drives, time over restarts
//
// # What is where
//
// A directory holds LOCK, catalog/ and, by default, device-0, device-1, …. Payload
// lives on the devices only, in stripe groups; a block's record (its identity, parent,
// place and granule checksums) lives in the catalog and, a second time, in the log of
// the group it was written to. The index is in memory only: an open fills it from the
// catalog's block rows.
//
// # Life of a put (put.go, internal/ingest, internal/appender, internal/commit)
//
//	prepare   every block is checked; bad input has changed nothing
//	winners   in chained namespaces the first writer of a key wins: who comes second is
//	          told Exists, who comes at the same time waits for the first (flights)
//	place     cells and log pages are taken in the open group, up to 16 MiB or 512
//	          blocks at once: an append. No I/O yet
//	start     payload is written straight from the caller's memory where that is
//	          aligned; checksums are computed while the drives are busy; then the log
//	finish    all writes have completed; durable blocks: every drive of the group is
//	          flushed; the catalog commits the records (synced for durable blocks);
//	          the index shows them; the caller is told
//
// Several appends of one put are under way at once (48 MiB), so that drives and
// checksums overlap. AckAccepted copies the blocks into the DRAM tier, shows them at
// location 0 and does the rest behind the caller's back (internal/ingest).
//
// # Life of a lookup (lookup.go, internal/lookup)
//
// Keys become fingerprints (SipHash-128 under the store's secret, with namespace
// instance and salt tag in them), the index searches by halves for the longest rooted prefix and a
// lease is put on its deepest block, which protects all before it. No I/O.
//
// # Life of a restore (internal/restore, internal/locate)
//
// Package restore plans, queues, reads, checks and delivers, and knows no store. It asks package locate
// where blocks lie: in the DRAM tier, or in a group, which is pinned until the block has been read. The
// record read from the catalog says what the bytes must hash to; where the catalog has failed it
// is read from the group's logs. What was wrong or could not be read comes back to package locate: another copy is
// made, or the block forgotten.
//
// # Life of a cleaning (internal/clean)
//
// Cleaning is eviction. When free groups run low the cleaner takes the sealed group
// the index calls worth least, asks it what of the group survives, drops the rest,
// writes the survivors to a group of their own kind (never mixed with what users put),
// commits their new places, deletes the old group's rows, and frees its segments once no
// restore has it pinned. One free group is kept back for the cleaner, so it can always
// move. What the freed group's log says of namespaces and deletions is written again first; if
// there is no room for that, the catalog promises it with the commit that frees the group
// (internal/intents). A put waits for it up to Options.SpaceTimeout and is then declined as Full; it is
// declined sooner when cleaning finds nothing to free.
//
// # Life of an open (open.go, internal/opening, recover.go, internal/recovery)
//
// LOCK, catalog, devices by the ids in their superblocks (paths may have changed),
// names, groups (all taken as sealed), then one parallel scan of the block rows into the
// index. After an unclean end, rows with a sequence number above the flushed-up-to mark
// are verified against the drives, and those whose bytes did not arrive are dropped.
// Headers of free segments and the marks of groups that were open show whether the catalog
// is as new as the devices (internal/recovery). Then the devices are told what only the catalog
// knows: which groups are freed, what was deleted and purged (internal/devlog), which
// records were never committed. A catalog that is gone, damaged or behind is made anew
// (internal/opening, internal/rebuild).
//
// # Damage (internal/scrub, internal/verify)
//
// Who reads a wrong copy has the block written again to a new place, by the way the
// cleaner moves blocks; who finds no right one forgets it. Scrub reads everything; Verify
// compares devices, catalog and index of a store nobody has open.
//
// # Drives that fail (internal/health, internal/monitor, internal/restore, monitor.go)
//
// Every drive is looked at ten times a second and judged, by a state machine without clock
// or I/O, by its latency against its own past and its peers', its errors, and how long it
// has owed an answer:
//
//	ok       read and written
//	slow     read elsewhere where there is another copy
//	fenced   besides, in no new group: reads, writes or flushes fail, wrong bytes, read-only, slow for long, or its
//	         file was removed or moved
//	dead     besides, not read at all: gone, does not answer, or its writes do not end
//
// Probes let it back in: a page read, and where writes were at fault a page of its own
// written and flushed; three in a row, twice as many each time it fell again.
//
// What is chosen for a read is not a copy but, for each stripe unit, a drive: a copy of a
// large block lies on every drive of its group, so one lost drive takes a piece of every
// copy, and never the same piece of two. Blocks with copies are read into the store's
// memory and copied out once checked: nothing can take memory back from a drive, right
// bytes or wrong ones may land in it minutes later, so the memory of a hanging read is
// left to the drive and the same bytes are read elsewhere; neither the chunk nor the
// caller's memory waits. Options.ReadInPlace trades that for the copy.
//
// # Blocks that move (internal/moving, internal/compact)
//
// Copies a lost drive held are made again, drives that are to go are emptied, one that
// came is filled, groups with holes are compacted: in this order, a group at a time, by
// one mover that writes blocks again in the order of their chains and whose commit is the
// cleaner's. Its budget yields: with restores under way it works a quarter of the time.
// It never takes the groups that puts and the cleaner need, and drops nothing.
//
// # What always holds
//
//   - A block is found only after its payload has been written completely, its record
//     committed, and, where its namespace is durable, both made durable in that order.
//   - Nothing reaches a caller that does not match its granule checksums, from any tier.
//   - A group's segments are reused only when its rows are gone, no restore pins it, and
//     no write to them is under way; and only under a new generation that the catalog
//     has synced before a byte of it is written. A header that a drive is late with keeps
//     its segment on that drive, and two are never on their way to one segment (space/headers.go).
//     So does a write that was given up and that a dead drive, or one to be emptied, has
//     for ever: its group is emptied and freed without it (space/late.go).
//   - Memory given to a drive, to read into or to write from, is nobody else's until the
//     drive gives it back, however long ago its caller was answered: a session's
//     destinations by NotReleased, what a put or the DRAM tier lends by a loan (internal/appender).
//   - A flush that failed fences its drive, and no later flush confirms what was written
//     before it.
//   - Every wait ends: with what was waited for, the caller's context, OpTimeout, or Close.
//   - What the catalog refuses to keep fails the store for changes (skep.Failed); reads
//     go on.
//   - Changes of rows that exist (deletes, replacements, moves) are made under one lock,
//     so that a delete is not undone by a move.
//
// # Locks
//
// Their order is the table of package locks (store/internal/locks/order.go), and the tag invariants asserts it.
// Outermost are those of puts of sidecar rows and of pins, then changes, then what is held over commits, then a
// session's, then space; last the leaves, under which no other lock is taken. The index has locks of its own, taken
// under these: its victims', then Index.mu, then its leases'. Two locks wait under a context and are in no table:
// Opening of space, held over device I/O while a group is opened, after changes and before the root row's; and naming,
// of who makes, purges or deletes a namespace, before it. Only Opening, GroupHeaders, Growing, Mark and LogCache are
// held over device I/O, and only changes, SidecarPuts, RootRow, Mark and naming over commits of the catalog. No lookup
// takes one of these.
//
// # Goroutines
//
// Each has an owner that ends it. The store: the cleaner, what keeps the watermark (flushes in the background),
// accepted puts. Its restores: workers, watch (turns reads that take too long into misses), and a
// pump for each session (internal/restore). Devices and catalog have their own. Close refuses new calls,
// ends sessions, waits for accepted blocks, flushes, and then closes downwards; when a
// drive still holds memory it returns NotReleased and leaves that memory mapped.
package store
