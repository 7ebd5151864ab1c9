// Package wired holds no code: its tests put the engine behind the wire, which neither
// room may know of the other, and prove what takes both: that the contract holds over
// every kind of connection with drives behind it, that a stop stops the drives, that a
// slow reader holds up nobody else, and that nothing is copied through shared memory.
package wired
