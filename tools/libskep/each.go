package main

import (
	"context"
	"errors"
	"time"

	"github.com/skepkv/skep"
)

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

// put is the Store's Put.
func (o *opened) put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	sp, err := o.space(ctx, r.Namespace)
	if err != nil {
		return nil, err
	}
	q := *r
	q.Each = sp.Each
	return o.Put(ctx, &q)
}
