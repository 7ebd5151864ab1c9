package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
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
	return s.scrub(ctx, o, false)
}

// scrub is Scrub; with logsOnly no block is read.
func (s *Store) scrub(ctx context.Context, o ScrubOptions, logsOnly bool) (ScrubReport, error) {
	if o.Rate < 0 {
		return ScrubReport{}, skep.Invalidf("scrub", "rate", o.Rate, "0 or more")
	}
	if err := s.gate.Enter(ctx); err != nil {
		return ScrubReport{}, err
	}
	s.background.Add(1)
	defer s.background.Done()
	s.gate.Leave() // it waits for drives: Close ends it
	if s.options.ReadOnly && !o.DryRun {
		return ScrubReport{}, &skep.Error{Op: "scrub", Kind: skep.ReadOnly, Limit: "a dry run"}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	work := s.works.Begin("scrub", s.space.LiveBytes(s.space.Groups()))
	defer work.End()
	rep, err := s.mends.Run(ctx, scrub.Options{Rate: o.Rate, DryRun: o.DryRun, LogsOnly: logsOnly,
		Progress: o.Progress}, s.space.Pace(o.Rate), work)
	if err == nil && ctx.Err() != nil {
		err = &skep.Error{Op: "scrub", Kind: skep.Deadline, Err: context.Cause(ctx)}
	}
	return rep, err
}

// scrubPause is the rest between two passes of the background scrub.
const scrubPause = time.Minute

// scrubAlways scrubs at Options.ScrubRate, pass after pass, until Close.
func (s *Store) scrubAlways() {
	for {
		t := time.NewTimer(scrubPause)
		select {
		case <-s.closing:
			t.Stop()
			return
		case <-t.C:
		}
		rep, err := s.Scrub(s.ctx, ScrubOptions{Rate: s.options.ScrubRate})
		if s.ctx.Err() != nil {
			return
		}
		level := s.log.Info
		if err != nil || !rep.Sound() {
			level = s.log.Warn
		}
		level("scrubbed", "blocks", rep.Blocks, "bytes", rep.Bytes, "repaired", rep.Repaired, "lost", rep.Lost,
			"unread", rep.Unread, "headers", rep.Headers, "error", err)
	}
}
