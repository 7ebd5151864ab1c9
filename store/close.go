package store

import (
	"context"
	"errors"
	"time"

	"github.com/skepkv/skep"
)

// defaultCloseTimeout is how long Close waits for drives and background work.
const defaultCloseTimeout = 10 * time.Second

// Close implements skep.Store. What was acknowledged as committed is flushed. When a
// drive still holds memory after a while, Close returns NotReleased and leaves that
// memory mapped on purpose.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Store) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.closeTimeout)
	defer cancel()
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	orderly := func() bool { return !s.options.ReadOnly && s.rows.Failed() == nil && len(errs) == 0 }
	if s.metrics != nil {
		s.options.Registerer.Unregister(s.metrics)
	}
	s.admin.Close()
	close(s.closing)
	s.catalog.Leave()
	s.gate.Shut() // waits for calls under way; their waits look at closing
	for _, err := range s.restores.Close(ctx) {
		note(err)
	}
	s.ingest.Filter.Flush()
	note(s.puts.Accepted.Wait(ctx))
	if orderly() {
		note(s.root.Advance(ctx, s.catalog, s.space.FlushAll))
		s.logs.Settle(ctx, s.options.closeTimeout/2)
	}
	s.cancel()
	if !waitGroup(&s.background, ctx) {
		note(&skep.Error{Op: "close", Kind: skep.Deadline, Field: "background work"})
		s.outlived = true
	}
	s.restores.Stop()
	if orderly() {
		// What was verified and flushed need not be verified again: the cleaner may have
		// moved blocks since the mark was taken.
		note(s.space.FlushAll(ctx))
	}
	if orderly() {
		mark := s.appends.LastMark()
		b := s.catalog.NewBatch()
		s.space.DropUnused(b)
		s.space.SaveStale(b)
		row := s.root.Close(s.space.AllFreed())
		b.PutStore(row)
		err := s.catalog.Commit(ctx, b, true)
		if err == nil {
			mark(ctx, row.FlushedSeq)
		}
		note(err)
	}
	s.events.Close()
	note(s.shut(ctx))
	return errors.Join(errs...)
}

// discardOpen is abandon for an open, whose error is another.
func (s *Store) discardOpen() {
	if err := s.abandon(); err != nil {
		s.log.Warn("closing after a failed open", "error", err)
	}
}

// abandon closes what a failed open has opened.
func (s *Store) abandon() error {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), s.options.closeTimeout)
	defer cancel()
	s.opening.Abandon()
	err := s.shut(ctx)
	s.opening.Undo()
	return err
}

// shut closes devices, catalog and memory, in that order: memory goes only when no
// drive can write to it, and no background work that outlived Close can look at it.
func (s *Store) shut(ctx context.Context) error {
	var errs []error
	busy := false
	for _, d := range s.members.All() {
		if d == nil {
			continue
		}
		if err := d.Dev.Close(); err != nil {
			busy = true
			errs = append(errs, &skep.Error{Op: "close", Kind: skep.NotReleased, Field: d.Path, Err: err})
		}
	}
	if s.catalog != nil {
		if err := s.catalog.Close(); err != nil {
			errs = append(errs, err)
		}
	}
	busy = busy || s.outlived
	if s.cache != nil {
		s.cache.Close()
	}
	if s.arena != nil && !busy {
		if err := s.arena.Close(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	if s.index != nil && !s.outlived {
		s.index.Close()
	}
	if s.opening.Lock != nil {
		if err := s.opening.Lock.Release(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// waitGroup waits for w until ctx ends.
func waitGroup(w interface{ Wait() }, ctx context.Context) bool {
	done := make(chan struct{})
	go func() {
		w.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
