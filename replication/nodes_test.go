package replication

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
)

// fallible is a node's Store that can be taken away.
type fallible struct {
	skep.Store
	down atomic.Bool
	// gate, when set, is waited for before a restore begins; asked counts the blocks that were asked for.
	gate     chan struct{}
	asked    atomic.Int64
	deaf     bool // the gate is waited for although the call has been given up
	doubt    atomic.Bool
	lends    bool                      // who gives a Restore up does not know whether it writes
	told     chan struct{}             // when set, is waited for before events are told of
	saw      func(skep.RestoreRequest) // is shown what was asked for
	runs     atomic.Int64              // lookups of runs
	onlyRuns atomic.Int64              // so many are answered; 0: all
	old      bool                      // knows no lookup of runs
	newer    []byte                    // the map that it tells
	stale    int                       // so many puts are refused, as by an older map
	noRoom   skep.Kind                 // puts and commits end in an error of this kind
	mute     skep.Kind                 // calls of Want do, unless it is 0
	writers  *writers                  // when set, notes who may write where
	dies     atomic.Int64              // the node goes down when so many chunks have been handed out; 0: it does not
	spoilt   atomic.Bool               // every block is damaged
	damaged  atomic.Pointer[skep.Key]  // this one is
	holds    atomic.Bool               // sessions do not end: their memory is not released
	arrived  atomic.Int64              // puts that have come
	held     chan struct{}             // when set, is waited for by puts and commits
	behind   atomic.Int64              // so many calls of Want are refused, by an older map
	open     bool                      // closing the Store leaves it open: others use it
	lag      atomic.Int64              // nanoseconds that lookups, questions and releases take; for a bubble of synctest
	wrap     func(s skep.Session, r *skep.RestoreRequest) skep.Session
}

func (f *fallible) Close() error {
	if f.open {
		return nil
	}
	return f.Store.Close()
}

func (f *fallible) up() error {
	if f.down.Load() {
		return &skep.Error{Op: "dial", Kind: skep.Unavailable}
	}
	return nil
}

// try is a call of a node that may be away.
func try[T any](f *fallible, call func() (T, error)) (out T, err error) {
	if err := f.up(); err != nil {
		return out, err
	}
	return call()
}

// lags is a call of a node that is slow.
func lags[T any](ctx context.Context, f *fallible, call func() (T, error)) (out T, err error) {
	if d := f.lag.Load(); d > 0 {
		select {
		case <-time.After(time.Duration(d)):
		case <-ctx.Done():
			return out, &skep.Error{Op: "call", Kind: skep.Deadline, Err: ctx.Err()}
		}
	}
	return try(f, call)
}

func do(f *fallible, call func() error) error {
	_, err := try(f, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

func (f *fallible) CountBlocks(ctx context.Context, id skep.NamespaceID) (int64, error) {
	return try(f, func() (int64, error) { return f.Store.CountBlocks(ctx, id) })
}

func (f *fallible) ListKeys(ctx context.Context, id skep.NamespaceID, from uint64, n int) (keys []skep.Key, next uint64, err error) {
	err = do(f, func() (err error) {
		keys, next, err = f.Store.ListKeys(ctx, id, from, n)
		return err
	})
	return keys, next, err
}

func (f *fallible) ListBlocks(ctx context.Context, id skep.NamespaceID, group int, from uint64, n int) (
	out []skep.StoredBlock, next uint64, err error) {
	err = do(f, func() (err error) {
		l, _ := skep.As[blockLister](f.Store)
		out, next, err = l.ListBlocks(ctx, id, group, from, n)
		return err
	})
	return out, next, err
}

func (f *fallible) OpenNamespace(ctx context.Context, s skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	return try(f, func() (skep.NamespaceInfo, error) { return f.Store.OpenNamespace(ctx, s) })
}

func (f *fallible) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	return try(f, func() (skep.NamespaceInfo, error) { return f.Store.FindNamespace(ctx, id) })
}

func (f *fallible) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	return try(f, func() ([]skep.NamespaceInfo, error) { return f.Store.Namespaces(ctx) })
}

func (f *fallible) NamespacesOf(ctx context.Context, t string) ([]skep.NamespaceInfo, error) {
	return try(f, func() ([]skep.NamespaceInfo, error) { return f.Store.NamespacesOf(ctx, t) })
}

func (f *fallible) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	return do(f, func() error { return f.Store.DeleteNamespace(ctx, id) })
}

func (f *fallible) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	return lags(ctx, f, func() (skep.LookupResult, error) { return f.Store.Lookup(ctx, r) })
}

func (f *fallible) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	n, most := f.runs.Add(1), f.onlyRuns.Load()
	switch {
	case f.old:
		return skep.UnsupportedStore{}.LookupRuns(ctx, r)
	case most > 0 && n > most:
		return skep.RunsResult{}, &skep.Error{Op: "lookup of runs", Kind: skep.Overloaded}
	}
	return lags(ctx, f, func() (skep.RunsResult, error) { return f.Store.LookupRuns(ctx, r) })
}

func (f *fallible) Renew(ctx context.Context, id skep.LeaseID, d time.Duration) (skep.Lease, error) {
	return try(f, func() (skep.Lease, error) { return f.Store.Renew(ctx, id, d) })
}

func (f *fallible) Release(ctx context.Context, id skep.LeaseID) error {
	_, err := lags(ctx, f, func() (struct{}, error) { return struct{}{}, f.Store.Release(ctx, id) })
	return err
}

func (f *fallible) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	if f.behind.Load() > 0 {
		f.behind.Add(-1)
		return nil, &skep.Error{Op: "want", Kind: skep.Behind}
	}
	if f.mute != 0 {
		return nil, &skep.Error{Op: "want", Kind: f.mute}
	}
	return lags(ctx, f, func() ([]skep.Want, error) { return f.Store.Want(ctx, r) })
}

// ClusterMap tells the map that the node has, where the test says one.
func (f *fallible) ClusterMap(context.Context) ([]byte, error) {
	if f.newer == nil {
		return nil, skep.Unsupported
	}
	return f.newer, nil
}

func (f *fallible) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	if f.arrived.Add(1); f.held != nil {
		<-f.held
	}
	if f.stale > 0 {
		f.stale--
		return nil, &skep.Error{Op: "put", Kind: skep.StaleMap}
	}
	if f.noRoom != 0 {
		return nil, &skep.Error{Op: "put", Kind: f.noRoom}
	}
	return try(f, func() ([]skep.PutResult, error) { return f.Store.Put(ctx, r) })
}

func (f *fallible) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	return try(f, func() (skep.BlockWriter, error) {
		w, err := f.Store.Begin(ctx, r)
		return &fallibleWriter{w, f}, err
	})
}

type fallibleWriter struct {
	skep.BlockWriter
	f *fallible
}

func (w *fallibleWriter) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	if w.f.held != nil {
		<-w.f.held
	}
	if w.f.noRoom != 0 {
		return skep.PutResult{}, &skep.Error{Op: "commit", Kind: w.f.noRoom}
	}
	return try(w.f, func() (skep.PutResult, error) { return w.BlockWriter.Commit(ctx, ack) })
}

func (f *fallible) Flush(ctx context.Context) error {
	return do(f, func() error { return f.Store.Flush(ctx) })
}

func (f *fallible) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	return try(f, func() (int, error) { return f.Store.Delete(ctx, sc, keys) })
}

func (f *fallible) Purge(ctx context.Context, p skep.Purge) error {
	return do(f, func() error { return f.Store.Purge(ctx, p) })
}

func (f *fallible) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	return try(f, func() (int, error) { return f.Store.Hint(ctx, sc, keys, h) })
}

func (f *fallible) Stats(ctx context.Context) (skep.Stats, error) {
	return try(f, func() (skep.Stats, error) { return f.Store.Stats(ctx) })
}

// Shares says that the node's drives write to destinations by themselves.
func (f *fallible) Shares([]byte) bool { return f.lends }

// InDoubt says so of who does, while the test does.
func (f *fallible) InDoubt([]byte) bool { return f.doubt.Load() }

func (f *fallible) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	for i := range r.Chains {
		blocks, _ := r.Chains[i].Blocks.In(len(r.Chains[i].Keys))
		f.asked.Add(int64(blocks.Len()))
	}
	if f.saw != nil {
		f.saw(*r)
	}
	if f.gate != nil {
		given := ctx.Done()
		if f.deaf {
			given = nil
		}
		select {
		case <-f.gate:
		case <-given:
			if f.lends {
				f.doubt.Store(true)
				return nil, &skep.Error{Op: "restore", Kind: skep.NotReleased, Err: ctx.Err()}
			}
			return nil, ctx.Err()
		}
	}
	return try(f, func() (skep.Session, error) {
		s, err := f.Store.Restore(ctx, r)
		if err == nil {
			f.writers.begin(r, 1)
		}
		if err == nil && f.wrap != nil {
			s = f.wrap(s, r)
		}
		return &fallibleSession{Session: s, f: f, r: r}, err
	})
}

type fallibleSession struct {
	skep.Session
	f *fallible
	r *skep.RestoreRequest
}

func (s *fallibleSession) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	if s.f.dies.Load() > 0 {
		into = into[:1]
		defer func() {
			if s.f.dies.Add(-1) == 0 {
				s.f.down.Store(true)
			}
		}()
	}
	n, err := try(s.f, func() (int, error) { return s.Session.Next(ctx, into) })
	if damaged := s.f.damaged.Load(); damaged != nil || s.f.spoilt.Load() {
		for i := range into[:n] {
			if damaged != nil && *damaged != s.r.Chains[into[i].Chain].Keys[into[i].Block] {
				continue
			}
			into[i].Release()
			into[i] = skep.Chunk{Chain: into[i].Chain, Block: into[i].Block, Layers: into[i].Layers, Err: skep.Damaged}
		}
	}
	return n, err
}

func (s *fallibleSession) Close(ctx context.Context) error {
	err := s.Session.Close(ctx)
	if s.f.holds.Load() {
		return &skep.Error{Op: "close", Kind: skep.NotReleased}
	}
	s.f.writers.begin(s.r, -1)
	return err
}

// writers is how many sessions of nodes may write the blocks of chains that are restored.
type writers struct {
	mu  sync.Mutex
	of  map[skep.Key]int
	two bool // there were two of one block at once
}

func (w *writers) begin(r *skep.RestoreRequest, n int) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range r.Chains {
		c := &r.Chains[i]
		blocks, _ := c.Blocks.In(len(c.Keys))
		for _, k := range c.Keys[blocks.From:blocks.To] {
			w.of[k] += n
			w.two = w.two || w.of[k] > 1
		}
	}
}

func (f *fallible) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	return try(f, func() (skep.EventStream, error) {
		st, err := f.Store.Events(ctx, from, snapshot)
		return &fallibleStream{st, f, f.told != nil && from.Seq > 1}, err
	})
}

type fallibleStream struct {
	skep.EventStream
	f    *fallible
	held bool
}

func (s *fallibleStream) Next(ctx context.Context, into []skep.Event) (int, error) {
	if s.held {
		select {
		case <-s.f.told:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return try(s.f, func() (int, error) { return s.EventStream.Next(ctx, into) })
}
