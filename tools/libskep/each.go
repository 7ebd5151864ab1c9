package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skepkv/skep"
)

// puttingEach is how many puts of one call are under way at once, of chains of one block.
const puttingEach = 64

// runsOfOne asks for keys one by one.
func runsOfOne(sc skep.Scope, keys []skep.Key, lease time.Duration) *skep.RunsRequest {
	r := &skep.RunsRequest{Scope: sc, Runs: make([][]skep.Key, len(keys)), Lease: lease}
	for i := range keys {
		r.Runs[i] = keys[i : i+1]
	}
	return r
}

// wanted tells of the keys that are there, of a server that knows no lookup of runs.
func (o *opened) wanted(ctx context.Context, sc skep.Scope, keys []skep.Key, there func(i int)) error {
	list, err := o.Want(ctx, &skep.WantRequest{Scope: sc, Keys: keys})
	for i, w := range list {
		if !w.Wanted && w.Outcome == skep.Exists {
			there(i)
		}
	}
	return err
}

// existsEach is exists of keys that are chains of their own.
func (o *opened) existsEach(ctx context.Context, sc skep.Scope, keys []skep.Key, tiers []skep.Tier) error {
	r := runsOfOne(sc, keys, skep.NoLease)
	r.Tiers = true
	f, err := o.LookupRuns(ctx, r)
	if errors.Is(err, skep.Unsupported) {
		return o.wanted(ctx, sc, keys, func(i int) { tiers[i] = skep.TierDevice })
	}
	for i, run := range f.Runs {
		if run.Blocks == 0 {
			continue
		}
		if tiers[i] = skep.TierDevice; len(f.Tiers) > 0 {
			if f.Tiers[0] != skep.TierNone {
				tiers[i] = f.Tiers[0]
			}
			f.Tiers = f.Tiers[1:]
		}
	}
	return err
}

// lookup is the Store's Lookup. Of keys that are chains of their own it finds those before the first that is not there;
// the lease may be of more.
func (o *opened) lookup(ctx context.Context, r *skep.LookupRequest) (out skep.LookupResult, err error) {
	sp, err := o.space(ctx, r.Namespace)
	if err != nil {
		return out, err
	}
	if !sp.Each {
		return o.Lookup(ctx, r)
	}
	f, err := o.LookupRuns(ctx, runsOfOne(r.Scope, r.Keys, r.Lease))
	if errors.Is(err, skep.Unsupported) {
		f.Runs = make([]skep.RunFound, len(r.Keys))
		err = o.wanted(ctx, r.Scope, r.Keys, func(i int) {
			f.Runs[i] = skep.RunFound{Blocks: 1, Tokens: sp.Shape.BlockTokens, Bytes: sp.Shape.Bytes}
		})
	}
	for _, run := range f.Runs {
		if run.Blocks == 0 {
			break
		}
		out.Blocks, out.Tokens, out.Bytes = out.Blocks+1, out.Tokens+run.Tokens, out.Bytes+run.Bytes
	}
	if out.Blocks == 0 && f.Lease.ID != 0 {
		return out, errors.Join(err, o.Release(ctx, f.Lease.ID))
	}
	out.Lease, out.LeaseDenied = f.Lease, f.LeaseDenied
	return out, err
}

// put is the Store's Put. Blocks whose keys are chains of their own go in as many puts, side by side: an error is that
// of the first, and says nothing of the others, whose results are there.
func (o *opened) put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	sp, err := o.space(ctx, r.Namespace)
	switch {
	case err != nil:
		return nil, err
	case !sp.Each:
		return o.Put(ctx, r)
	case r.Parent != nil || r.Depth != 0:
		return nil, skep.Invalidf(op, "parent and depth", "set", "unset where each key is a chain of its own")
	case len(r.Blocks) == 1:
		return o.Put(ctx, r)
	}
	out := make([]skep.PutResult, len(r.Blocks))
	for i := range out {
		out[i].Outcome = unheard
	}
	lent := &lentOnce{open: 1, back: r.Released}
	var g errgroup.Group
	g.SetLimit(puttingEach)
	for i := range r.Blocks {
		g.Go(func() error {
			q := *r
			q.Blocks, q.Released = r.Blocks[i:i+1:i+1], lent.released
			lent.take()
			list, err := o.Put(ctx, &q)
			err, held := skep.Held(err)
			if !held {
				lent.released()
			} else if lent.keep(); err == nil && list == nil {
				err = &skep.Error{Op: op, Kind: gaveUp(ctx)}
			}
			copy(out[i:i+1], list)
			return err
		})
	}
	err = g.Wait()
	if lent.held() {
		err = &skep.Error{Op: op, Kind: skep.NotReleased, Err: err}
	}
	lent.released()
	return out, err
}

// lentOnce is memory of one caller's that several puts have.
type lentOnce struct {
	mu   sync.Mutex
	open int    // puts that have some, and the call itself
	kept bool   // a put has some after it has returned
	back func() // nil: nobody waits
}

func (l *lentOnce) take() {
	l.mu.Lock()
	l.open++
	l.mu.Unlock()
}

func (l *lentOnce) keep() {
	l.mu.Lock()
	l.kept = true
	l.mu.Unlock()
}

func (l *lentOnce) held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept
}

// released says that a put has no more of it. The caller is told by the last, where it was told that some is kept.
func (l *lentOnce) released() {
	l.mu.Lock()
	l.open--
	last := l.open == 0 && l.kept
	l.mu.Unlock()
	if last && l.back != nil {
		l.back()
	}
}
