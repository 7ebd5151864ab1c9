// Package observe keeps what a store tells of itself: counts, events, the last lines of its log,
// background work under way, how often keys are asked for again, what programs gained, how worn
// drives are; and shows its statistics to Prometheus. It knows no store: the engine counts, notes
// and emits, and assembles what is here into skep.Stats.
//
// # Seams
//
//	Counts      what the engine counts; Spaces: of one namespace
//	Events      a ring of events; a Reader copies out of it at its own pace
//	Collector   a prometheus.Collector over a Source, which is asked for skep.Stats
//	LogTail     a logger that also keeps its last lines
//	Works       background work under way, for as long as it is
//	Profile     the curve of reuse, from a sample of the keys that are looked up
//	Programs    what blocks that hints gave to a program brought
//	AskWear     a drive's own health log
//	Span        an OpenTelemetry span of a call; RestoreSpan: of a restore, with its parts
//
// # Invariants
//
//   - Nothing here is unbounded: events and log lines are rings, programs and their blocks have a
//     limit, the profile falls behind by leaving references out and counting them.
//   - Nothing here waits for who reads it.
//   - Metrics keep no numbers of their own: they and Stats cannot disagree.
package observe
