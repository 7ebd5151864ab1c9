package store

import "github.com/skepkv/skep/store/report"

// What maintenance is asked for, and says it found and did: package report has the fields.
type (
	Fault         = report.Fault
	ScrubReport   = report.Scrub
	VerifyReport  = report.Verify
	Progress      = report.Progress
	MoveOptions   = report.MoveOptions
	NewDevice     = report.NewDevice
	CompactResult = report.Compact
	DegradedStats = report.Degraded
	StripeMap     = report.StripeMap
	StripeDevice  = report.StripeDevice
	StripeGroup   = report.StripeGroup

	RebuildReport   = report.Rebuild
	RebuildRead     = report.RebuildRead
	RebuildProgress = report.RebuildProgress
)
