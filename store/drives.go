package store

// What Options.Degraded says about opening without a drive.
const (
	DegradedAuto   = "auto"   // when no durable block is lost with it
	DegradedNever  = "never"  // refuse
	DegradedAlways = "always" // whatever is lost
)
