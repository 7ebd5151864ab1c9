// Package lookup answers what callers ask of the index: which leading blocks of a chain, or of many runs, are there
// and can be read; which of some keys had better be put; which blocks a namespace has. What a caller is told of may be
// leased or pinned, and a hint says how soon it is used again.
//
// Nothing here reads a drive. What cannot be read now, since a drive is away that has a piece of it, is not promised:
// a lookup ends before it, as if it were not stored.
package lookup
