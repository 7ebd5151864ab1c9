package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/ingest"
	"github.com/skepkv/skep/store/internal/observe"
)

// Put implements skep.Putter.
func (s *Store) Put(ctx context.Context, r *skep.PutRequest) (results []skep.PutResult, err error) {
	sp := observe.BeginSpan(ctx, "store put")
	if sp.Span != nil {
		var bytes int64
		for i := range r.Blocks {
			for j := range r.Blocks[i].Parts {
				bytes += int64(len(r.Blocks[i].Parts[j].Bytes))
			}
		}
		defer func() { sp.Over(len(r.Blocks), len(results), bytes, err) }()
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := s.gate.EnterWrite(ctx, "put"); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	ns, t, err := s.names.Resolve("put", r.Scope)
	if err != nil {
		return nil, err
	}
	state, err := s.calls.Enter("put", ns.Tenant, putState(len(r.Blocks)))
	if err != nil {
		return nil, err
	}
	defer s.calls.Leave(ns.Tenant, state)
	results = make([]skep.PutResult, len(r.Blocks))
	blocks, err := s.ingest.Prepare(ctx, ns, t, r, results)
	if err != nil {
		return nil, err
	}
	l := appender.Lend(r.Released)
	for _, in := range blocks {
		if r.Exposed {
			in.Given = in.Parts
		} else {
			in.Loan = l
		}
	}
	return answerPut(l, results, s.ingest.Put(ctx, ns, blocks, r.Ack))
}

// answerPut is the answer of a put whose parts lie in l's memory: NotReleased where that is not
// back, with the results where there are some.
func answerPut(l *appender.Loan, results []skep.PutResult, err error) ([]skep.PutResult, error) {
	if err != nil {
		results = nil
	}
	if l.Settle() {
		return results, err
	}
	return results, &skep.Error{Op: "put", Kind: skep.NotReleased, Field: "memory of the parts", Value: "a drive's", Limit: "PutRequest.Released says when it is not", Err: err}
}

// Begin implements skep.Putter.
func (s *Store) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	return s.ingest.Begin(ctx, r)
}

// Want implements skep.Putter.
func (s *Store) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	const op = "want"
	if err := checkKeys(op, r.Keys); err != nil {
		return nil, err
	}
	if r.Bytes < 0 {
		return nil, skep.Invalidf(op, "bytes", r.Bytes, "0 or more")
	}
	if err := s.gate.EnterWrite(ctx, op); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	ns, t, err := s.names.Resolve(op, r.Scope)
	if err != nil {
		return nil, err
	}
	return s.lookups.Want(ns, t, r.Keys), nil
}

// Flush implements skep.Putter.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.gate.Enter(ctx); err != nil {
		return err
	}
	defer s.gate.Leave()
	s.ingest.Filter.Flush()
	if err := s.puts.Accepted.Wait(ctx); err != nil {
		return err
	}
	return s.rows.Sync(ctx)
}

// makeIngest makes what takes blocks in, with the filter of Cache blocks that the options ask for.
func (s *Store) makeIngest() error {
	o := &s.options
	s.ingest = ingest.New(ingest.Config{Context: s.ctx, Closing: s.closing, Background: &s.background, Gate: s.gate, Names: s.names,
		Keys: s.keys, Index: s.index, Rows: s.rows, Appends: s.appends, Puts: s.puts, Root: s.root, Arena: s.arena.Arena,
		Cache: s.cache, CacheBytes: o.CacheBytes, OpenBytes: o.WriterBytes,
		Count: &s.count, Log: s.log, GivesWay: s.lookups.GivesWay})
	if o.Admission == admission.All || o.ReadOnly {
		return nil
	}
	return s.ingest.Admit(wearing{s}, admission.Config{Policy: o.Admission, Ghosts: o.AdmissionGhosts,
		WriteBudget: o.WriteBudget})
}

// wearing is the drives as an admission filter sees them: ingest.Drives.
type wearing struct{ s *Store }

func (w wearing) Now() time.Time { return w.s.options.Clock() }

func (w wearing) Written() int64 { return w.s.members.Written() }

func (w wearing) Writable() (n int64) {
	for _, d := range w.s.members.All() {
		if d != nil && !d.Away() && !d.Retired.Load() {
			n++
		}
	}
	return n
}
