//go:build !race

package sim

// raceOn says that the race detector is on: a run is one goroutine, where it only costs time.
const raceOn = false
