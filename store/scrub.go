package store

import (
	"context"

	"github.com/skepkv/skep/store/internal/scrub"
)

// ScrubOptions say how a store is scrubbed.
type ScrubOptions struct {
	Rate     int64 // bytes read a second; 0: as fast as it goes
	DryRun   bool  // tell and mend nothing
	Progress func(ScrubReport)
}

// Scrub reads and verifies everything stored, every copy, at o.Rate and yielding to
// restores. A wrong copy is repaired from another; a block no copy of which is right is
// forgotten, with an event. Headers and superblocks are written again where they are wrong.
//
// Errors: Closed, ReadOnly (unless DryRun), Failed, Deadline (ctx). What was found until
// then is in the report.
func (s *Store) Scrub(ctx context.Context, o ScrubOptions) (ScrubReport, error) {
	return s.mends.Scrub(ctx, scrub.Options{Rate: o.Rate, DryRun: o.DryRun, Progress: o.Progress})
}
