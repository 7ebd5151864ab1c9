package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/leases"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/memory"
)

// Lookup implements skep.PrefixFinder.
func (s *Store) Lookup(ctx context.Context, r *skep.LookupRequest) (out skep.LookupResult, err error) {
	sp := observe.BeginSpan(ctx, "store lookup")
	defer func() { sp.Over(len(r.Keys), out.Blocks, out.Bytes, err) }()
	if err := r.Validate(); err != nil {
		return out, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return out, err
	}
	defer s.gate.Leave()
	ns, t, err := s.names.Resolve("lookup", r.Scope)
	if err != nil {
		return out, err
	}
	c := &s.count
	c.Lookups.Add(1)
	c.LookupKeys.Add(int64(len(r.Keys)))
	ns.Count.Keys.Add(int64(len(r.Keys)))
	s.profile.Saw(ns.Instance, r.Keys)
	for range lookupTries {
		again := false
		if ns.Info.Chained {
			again = s.lookupChain(ns, t, r, &out)
		} else {
			again = s.lookupKeys(ns, t, r, &out)
		}
		if !again && out.Blocks > 0 && (r.Tiers || r.Cost != nil) {
			again = s.detail(ns, t, r, &out)
		}
		if !again {
			break
		}
		s.leases.Release(out.Lease.ID)
		out = skep.LookupResult{} // a miss, if it is so each time
	}
	c.LookupHits.Add(int64(out.Blocks))
	ns.Count.Hits.Add(int64(out.Blocks))
	if out.Blocks == 0 || !r.Tiers && r.Cost == nil {
		out.Pays = true
	}
	return out, nil
}

// lookupTries is how often a lookup begins again because a block it had found was gone
// before it was looked at closely.
const lookupTries = 8

// lookupChain fills out. True: the block found was gone before it could be leased,
// look again.
func (s *Store) lookupChain(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest, out *skep.LookupResult) (again bool) {
	n, _ := s.index.Lookup(len(r.Keys), func(i int) index.Fingerprint {
		return s.names.Fingerprint(ns.Instance, t, r.Keys[i])
	})
	if n = s.readablePrefix(ns, t, r.Keys, n); n == 0 {
		return false
	}
	fp := s.names.Fingerprint(ns.Instance, t, r.Keys[n-1])
	e, deepest, ok := s.index.Probe(fp)
	if !ok {
		return true
	}
	missing, bytes, ok := s.extentOf(ns, fp, e)
	if !ok {
		return true
	}
	out.Blocks = n
	out.Tokens = n*ns.Info.Shape.BlockTokens - missing
	out.Bytes = int64(n) * bytes
	return s.grant(ns, t, r, out, index.LeaseRequest{Deepest: deepest, FP: fp, Bytes: out.Bytes, Tenant: ns.Tenant}, fp, n)
}

// lookupKeys is the lookup of a namespace without parents: key by key up to the
// first that is not there. Its lease protects each key.
func (s *Store) lookupKeys(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest, out *skep.LookupResult) (again bool) {
	whole := s.allReadable()
	for i, k := range r.Keys {
		fp := s.names.Fingerprint(ns.Instance, t, k)
		e, id, ok := s.index.Probe(fp)
		if !ok || !whole && !s.readable(ns, fp, e) {
			break
		}
		missing, bytes, ok := s.extentOf(ns, fp, e)
		if !ok {
			return true
		}
		if s.grant(ns, t, r, out, index.LeaseRequest{Deepest: id, FP: fp, Bytes: bytes, Tenant: ns.Tenant}, fp, i+1) {
			return true
		}
		out.Blocks = i + 1
		out.Tokens += ns.Info.Shape.BlockTokens - missing
		out.Bytes += bytes
	}
	return false
}

// grant adds a promise to the lookup's lease. True: the block is gone.
func (s *Store) grant(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest, out *skep.LookupResult,
	req index.LeaseRequest, fp index.Fingerprint, blocks int,
) bool {
	if r.Lease == skep.NoLease || out.LeaseDenied {
		return false
	}
	d := r.Lease
	if d == 0 {
		d = skep.DefaultLease
	}
	req.Until = s.options.Clock().Add(d)
	id, err := s.index.Grant(req)
	switch skep.KindOf(err) {
	case skep.NotFound:
		return true
	case skep.Quota, skep.Full:
		out.LeaseDenied = true
		s.leases.Release(out.Lease.ID)
		out.Lease = skep.Lease{}
		return false
	}
	if err != nil {
		out.LeaseDenied = true
		return false
	}
	if out.Lease.ID == 0 {
		out.Lease = skep.Lease{ID: id, Until: req.Until}
	}
	s.leases.Add(out.Lease.ID, id, leases.Promise{Instance: ns.Instance, Tag: t, FP: fp, Blocks: blocks,
		Until: req.Until, Bytes: req.Bytes})
	return false
}

// extentOf is how many tokens a block lacks, which a partial tail does, and the size of its
// payload: its record says, where the namespace does not fix it or the block has more parts
// than one. False: the block is gone.
func (s *Store) extentOf(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) (missing int, bytes int64, ok bool) {
	if n, fixed := fixedSize(ns, e); fixed && !e.Partial {
		return 0, n, true
	}
	rec, err := s.rows.RecordNow(fp, e)
	switch {
	case err == commit.ErrGone:
		return 0, 0, false
	case err != nil:
		return 0, layout.SlotBytes(uint64(e.Pages)), true // its row cannot be read: the log may have it
	case e.Partial && rec.ValidTokens > 0:
		missing = ns.Info.Shape.BlockTokens - int(rec.ValidTokens)
	}
	return missing, rec.Bytes(), true
}

// payloadOf is extentOf's size; that of what is gone is what it took.
func (s *Store) payloadOf(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) int64 {
	if _, n, ok := s.extentOf(ns, fp, e); ok {
		return n
	}
	return layout.SlotBytes(uint64(e.Pages))
}

// fixedSize is a block's payload where that follows from the namespace: as many bytes as part kv has.
func fixedSize(ns *namespaces.Namespace, e index.Entry) (int64, bool) {
	return ns.PartSize(skep.PartKV), !e.Odd
}

// detail fills the tiers, the exact size and the estimate. True: a block is gone.
func (s *Store) detail(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest, out *skep.LookupResult) (again bool) {
	tiers := make([]skep.Tier, out.Blocks)
	var bytes, dram int64
	for i := range tiers {
		fp := s.names.Fingerprint(ns.Instance, t, r.Keys[i])
		e, ok := s.index.Resolve(fp)
		if !ok {
			return true
		}
		_, n, ok := s.extentOf(ns, fp, e)
		if !ok {
			return true
		}
		bytes += n
		tiers[i] = skep.TierDevice
		if e.Location == 0 || s.cache != nil && s.cache.Has(memory.IDOf(fp, skep.PartKV)) {
			tiers[i] = skep.TierDRAM
			dram += n
		}
	}
	out.Bytes = bytes
	if r.Tiers {
		out.Tiers = tiers
	}
	out.Estimate = s.restores.Estimate(bytes-dram, dram)
	out.Pays = r.Cost == nil || out.Estimate < r.Cost.Of(out.Tokens)
	return false
}

// Renew implements skep.Leaser.
func (s *Store) Renew(ctx context.Context, id skep.LeaseID, d time.Duration) (skep.Lease, error) {
	const op = "renew"
	if err := s.gate.Enter(ctx); err != nil {
		return skep.Lease{}, err
	}
	defer s.gate.Leave()
	if d == 0 {
		d = skep.DefaultLease
	}
	if d < 0 || d > skep.MaxLease {
		return skep.Lease{}, skep.Invalidf(op, "lease", d, "0 to "+skep.MaxLease.String())
	}
	now := s.options.Clock()
	return s.leases.Renew(id, now, now.Add(d))
}

// Release implements skep.Leaser.
func (s *Store) Release(ctx context.Context, id skep.LeaseID) error {
	if err := s.gate.Enter(ctx); err != nil {
		return err
	}
	defer s.gate.Leave()
	s.leases.Release(id)
	return nil
}

// applyHint hands a hint to the index, block by block.
func (s *Store) applyHint(ns *namespaces.Namespace, fps []index.Fingerprint, h skep.Hint) (int, error) {
	now := s.options.Clock()
	n := 0
	s.programs.Hinted(h.Program, fps)
	for _, fp := range fps {
		if _, ok := s.index.Resolve(fp); ok {
			n++
		}
	}
	row := index.Hint{Drop: h.Drop}
	if h.NextUse > 0 {
		row.NextUse = now.Add(h.NextUse)
	}
	if h.TTL > 0 {
		row.Until = now.Add(h.TTL)
	}
	if h.Steps > 0 {
		row.Steps = uint16(min(h.Steps, 1<<16-1))
		if row.Until.IsZero() {
			row.Until = now.Add(stepsLife)
		}
	}
	for _, fp := range fps {
		if row == (index.Hint{}) {
			break
		}
		if err := s.index.SetHint(now, fp, row); err != nil && skep.KindOf(err) != skep.NotFound {
			return n, err
		}
	}
	if h.Pin > 0 { // last: where there is an error, nothing is pinned
		bytes := func(fp index.Fingerprint, e index.Entry) int64 { return s.payloadOf(ns, fp, e) }
		if err := s.pins.Pin(ns.Tenant, fps, now, now.Add(h.Pin), bytes); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// stepsLife is how long steps to execution are believed without a time to live.
const stepsLife = 10 * time.Minute
