package scrub

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/report"
)

// Scrub reads and verifies everything stored, every copy, at o.Rate and yielding to restores, and mends what is wrong.
//
// Errors: Invalid, Closed, ReadOnly (unless DryRun), Deadline (ctx, or the store's end). What was found until then is in
// the report.
func (s *Scrubber) Scrub(ctx context.Context, o Options) (report.Scrub, error) {
	if o.Rate < 0 {
		return report.Scrub{}, skep.Invalidf("scrub", "rate", o.Rate, "0 or more")
	}
	if err := s.Gate.Enter(ctx); err != nil {
		return report.Scrub{}, err
	}
	s.Background.Add(1)
	defer s.Background.Done()
	s.Gate.Leave() // it waits for drives: Close ends it
	if s.ReadOnly && !o.DryRun {
		return report.Scrub{}, &skep.Error{Op: "scrub", Kind: skep.ReadOnly, Limit: "a dry run"}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.Context, cancel)
	defer stop()
	work := s.Works.Begin("scrub", s.Space.LiveBytes(s.Space.Groups()))
	defer work.End()
	return s.run(ctx, o, s.Space.Pace(o.Rate), work)
}

// pause is the rest between two passes of Always.
const pause = time.Minute

// Always scrubs at a rate, bytes a second, pass after pass, until the store closes.
func (s *Scrubber) Always(rate int64) {
	for limits.Pause(s.Closing, pause) {
		rep, err := s.Scrub(s.Context, Options{Rate: rate})
		if s.Context.Err() != nil {
			return
		}
		s.tell(&rep, err)
	}
}

// tell logs a pass: as a warning with what was wrong, or why it ended early.
func (s *Scrubber) tell(rep *report.Scrub, err error) {
	said := []any{"blocks", rep.Blocks, "bytes", rep.Bytes}
	if err == nil && rep.Sound() {
		s.Log.Info("scrubbed", said...)
		return
	}
	said = append(said, "repaired", rep.Repaired, "bad copies", rep.BadCopies, "lost", rep.Lost, "unread", rep.Unread,
		"headers", rep.Headers, "logs mended", rep.LogsMended, "unmended", rep.Unmended,
		"faults", int64(len(rep.Faults))+rep.MoreFaults)
	if len(rep.Faults) > 0 {
		said = append(said, "first", rep.Faults[0].String())
	}
	if err != nil {
		said = append(said, "error", err)
	}
	s.Log.Warn("scrubbed", said...)
}
