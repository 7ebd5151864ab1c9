// Package members has the drives of an open store: which there are, what they are called, and who may change that.
//
// A drive has an index for ever: one that was removed keeps its place. Every drive's superblock says how many there
// are, so that a rebuild from the devices alone knows whether it has found them all (Restamp). The catalog says it
// first; what a drive does not take then is written when it does.
package members
