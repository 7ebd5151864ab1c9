// Package schedule makes goroutines wait at places where they meet, for tests. Shipped code does not import it:
// `go run ./tools/schedule -o DIR` writes copies of the engine's files in which a call of this package stands at every
// lock, every change and look at atomic state, every channel and the beginning of every goroutine, and go test's
// -overlay builds those in their place.
//
// A window of nanoseconds between two of these places, in which another goroutine must not come, is met by hardly any
// test. Here it becomes one of milliseconds: under a plan, drawn from a seed, some places are hot, and whoever passes
// one often sleeps there; at all others goroutines now and then let others go first. A plan heats either places all
// over the engine or all those in one neighbourhood of a file or two, since two halves of one race are seldom far apart
// (compare Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010: few
// points of change find most defects). What a plan does at a place follows from the seed and how often the place was
// passed; which goroutine gets there first is the machine's, so a seed finds a defect again often, not always.
package schedule
