// Package space is the groups of a store and its free segments: who may write where.
//
// A Table has them all, and the one lock that guards them. It opens groups, and the next ones ahead of need; it gives
// what is written a place in them (Current, Place, PlaceEntries), and knows of each whether something of it is under
// way (BeginWrites, EndAppend), who reads it (Pin), and who has it (Claim). It keeps drives that fail out of new groups
// (Exclude, Include), lets files grow, writes headers, and gives segments back when a group is gone (Empty, Regain).
// What a store has room for (Reroom) and whether waiting for room is of use (Fruitlessly) is reckoned here too. What
// lies in a group, and what is worth keeping of it, is nothing that this package knows.
//
// A Drive is one device and its segments, a Group a segment on each of some drives. Both tell who may see them how to
// read (restore.Drive, restore.Stripe). What of them the table's lock guards says so.
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
