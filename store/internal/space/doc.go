// Package space is the life of stripe groups: what a group is at any time, who may have it, and which there are.
//
// A group takes one segment of each of its drives. It goes through these states, and through no others:
//
//	Preparing ─▶ Spare ─▶ Open ─▶ Sealed ◀─▶ Claimed ─▶ Emptied ─▶ Freed ─▶ Gone
//	    └──────────┴─▶ Failed ───────────────────────────────────────────────┘
//
//	Preparing  its segments are taken; its row is committed first, then its headers are written
//	Spare      all of that is on the drives; it waits to be opened
//	Open       blocks and log entries are placed in it
//	Sealed     nothing is placed in it any more; writes to it may be under way. So is each that an open finds
//	Claimed    it is at rest, and one worker has it (Claim): to clean it, to move its blocks, to mend its log
//	Emptied    the catalog has synced that it is free, and nobody finds it any more; its drives are to be told so
//	Freed      a drive says so; readers that found it before may hold it yet
//	Failed     its row or a header could not be written, or nobody wants it; its row and its segments go back
//	Gone       its segments are free
//
// A Life is one group's state. Who changes it holds the lock of the groups; anybody may read it. Built with the tag
// invariants, a change that the picture does not have panics. Besides the state a group has facts, which its owner
// keeps: readers that pin it, writes under way, whether its log tells of blocks that are gone.
//
// A Set is the groups that can be found, by number and by age.
package space
