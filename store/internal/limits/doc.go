// Package limits bounds what a store's callers may keep in memory, and paces what it does unasked.
//
// Calls counts what puts and restores under way keep on the heap, by tenant: who finds no room is refused at once. A
// Pace is a rate for work in the background, or none: then the work gives way to restores.
package limits
