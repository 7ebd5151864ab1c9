//go:build race

package index

// raceOn says that the race detector is on, whose own memory hides the index's.
const raceOn = true
