// Package recovery is what an open does with a catalog that it has found: it loads it into memory, and has it compared
// with the devices as far as they may say something else.
//
//	Namespaces   namespaces and purges
//	Groups       stripe groups, all taken as sealed, and the lists of free segments
//	Degraded     refuses to go on without a drive that durable blocks cannot do without
//	Behind       compares the catalog with headers and marks: it may be whole and too old
//	Blocks       the index, by one parallel scan; of an unclean end, the rows that the flushed-up-to mark does not
//	             vouch for
//	Verify       reads the blocks of those rows, and drops those whose bytes did not arrive
//	Agree        has the devices told what only the catalog knows (package devlog)
//
// In this order. An open believes the rows of the catalog: it verifies those in doubt against the bytes on the drives,
// and reads no records from logs. Behind looks into the logs of groups that were open, and of segments that should be
// free, for how new the devices are. A catalog that is gone, damaged or behind is made anew by package rebuild.
package recovery
