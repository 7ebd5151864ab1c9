// Package verify compares what devices, catalog and index say of a store that nobody has open, and changes nothing:
//
//	superblocks, headers   against the catalog's devices and groups
//	rows                   each within its group, none over another, of a known namespace, with its parent where
//	                       depth says
//	index                  built as an open builds it: every row is found in it
//	side rows              of the blocks they say, and whole
//	logs                   a rebuild is tried on the side: it must give the same blocks
//	payload                where it is asked for, every copy of every block
//
// The store is a Host to it, which opens what is looked at, tries the rebuild and reads payload.
package verify
