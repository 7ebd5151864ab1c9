// Package puts is what puts under way know of each other, by the fingerprints of their keys.
//
//	Flights    where the first writer of a key wins: who comes second waits for the first
//	Rivals     where the last one wins: which of two it is, and what an older record of the key may be
//	Records    what accepted blocks are, until the catalog has a row of them
//	Accepted   that some are on their way to the drives, for a Flush
//
// Table has one of each.
package puts
