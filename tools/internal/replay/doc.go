// Package replay drives a skep.Store with the requests of a trace, as a serving
// engine would, and checks every byte it gets back.
//
// For each request: look its chain of blocks up and lease what is found; restore
// that into memory; compare every byte with what was put; put the blocks that were
// not found; release the lease. Blocks that were promised and did not come are
// counted as broken promises and put again, as an engine that recomputed them would.
//
// Payload is made from the key (package payload), so nothing needs to be remembered
// between runs: a second run on the same store checks what the first one left.
//
// Invariants:
//
//   - Time inside the store and time spent making and comparing payload are measured
//     apart: nothing of the one runs while the other is counted.
//   - Memory is bounded by two regions of Options.RegionBytes, whatever the length of
//     a request: longer ones are restored and put piece by piece.
//   - A block counts as hit when it was found and every byte of it and of all before
//     it came back right, so a hit ratio is never of bytes nobody got.
//   - A cancelled context ends the run after the call under way; what was done until
//     then is in the Result.
package replay
