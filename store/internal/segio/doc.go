// Package segio reads and writes what skep keeps on its drives: superblocks, segment headers,
// logs, and the payload of blocks, which it verifies. What the bytes are is package segment's;
// where they lie is here. It does the I/O and knows no store: who calls it says which drives
// there are, which to prefer and how long to wait.
//
// # Seams
//
//	Drive        a device and its segments
//	Batch        operations under way together, and the wait for them
//	Flusher      the only way to flush a drive: callers share flushes
//	Superblocks  both copies of a device's superblock, read, checked, written, wiped
//	ReadHeaders  headers of segments, many at once
//	ScanLog      the appends in one segment's log; ScanGroup: in all logs of a group
//	Sums         the checksums of one part, and the granules that do not match them
//	ReadBlock    a whole block, verified, under a Policy: which copies, in which order, what of
//	             drives that fail, do not answer or give wrong bytes
//
// A restore chooses with the same rules (Best, Units, Sums) and reads by itself, since its reads
// queue, are cancelled, and are sent elsewhere while they are under way.
//
// # Invariants
//
//   - A copy of a large block lies on all drives of its group, and never the same unit of two
//     copies on one drive. So what is chosen is for each unit where to read it.
//   - Memory given to a drive is the drive's until it answers. Who gives up waiting gets an error
//     of kind Deadline, and lets go of the memory: nothing is read into it again.
//   - A flush that failed is counted before the next begins: whoever compares the count before
//     and after knows whether what was written meanwhile is durable.
//   - Of a superblock's two copies one is whole at any time, whenever a write is cut off.
package segio
