package memstore

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/skepkv/skep"
)

// lease is a live promise: every block in it counts it.
type lease struct {
	until  time.Time
	tenant *tenant
	blocks []*block
}

// Lookup implements skep.PrefixFinder. It walks the chain; a Store with an index searches it by halves.
func (s *Store) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	const op = "lookup"
	if err := r.Validate(); err != nil {
		return skep.LookupResult{}, err
	}
	n, err := s.enter(ctx, op, r.Namespace)
	if err != nil {
		return skep.LookupResult{}, err
	}
	defer s.mu.Unlock()
	found, res := s.lookLocked(n, r, skep.Counts(ctx))
	if r.Lease != skep.NoLease && len(found) > 0 {
		res.Lease, res.LeaseDenied = s.leaseLocked(n.tenant, found, cmp.Or(r.Lease, skep.DefaultLease))
	}
	return res, nil
}

// LookupRuns implements skep.PrefixFinder.
func (s *Store) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	const op = "lookup of runs"
	if err := r.Validate(); err != nil {
		return skep.RunsResult{}, err
	}
	n, err := s.enter(ctx, op, r.Namespace)
	if err != nil {
		return skep.RunsResult{}, err
	}
	defer s.mu.Unlock()
	var out skep.RunsResult
	var all []*block
	for i := range r.Runs {
		one := r.One(i)
		found, res := s.lookLocked(n, &one, skep.Counts(ctx))
		out.Add(&res)
		all = append(all, found...)
	}
	if r.Lease != skep.NoLease && len(all) > 0 {
		out.Lease, out.LeaseDenied = s.leaseLocked(n.tenant, all, cmp.Or(r.Lease, skep.DefaultLease))
	}
	return out, nil
}

// lookLocked is a lookup but for its lease.
func (s *Store) lookLocked(n *namespace, r *skep.LookupRequest, counts bool) ([]*block, skep.LookupResult) {
	found := s.prefixLocked(n, r.Scope, r.Keys)
	res := skep.LookupResult{Blocks: len(found), Pays: true}
	for _, b := range found {
		res.Tokens += b.valid
		res.Bytes += b.bytes
		if r.Tiers {
			res.Tiers = append(res.Tiers, skep.TierDRAM)
		}
	}
	if r.Cost != nil {
		res.Estimate = time.Duration(float64(res.Bytes) / float64(s.opt.LoadBytesPerSecond) * float64(time.Second))
		res.Pays = res.Estimate < r.Cost.Of(res.Tokens)
	}
	s.touchLocked(found)
	if counts {
		s.stats.Lookups++
		s.stats.LookupKeys += int64(len(r.Keys))
		s.stats.LookupHits += int64(len(found))
	}
	return found, res
}

// prefixLocked is the longest visible prefix of keys. In a chained namespace each
// block must follow the one before, and a partial tail is the last.
func (s *Store) prefixLocked(n *namespace, sc skep.Scope, keys []skep.Key) []*block {
	r := s.rooms[roomOf(sc)]
	if r == nil {
		return nil
	}
	var found []*block
	var parent skep.Key
	for i, k := range keys {
		k = stored(sc.Salt, k)
		b := r.blocks[k]
		if b == nil || !b.visible() {
			break
		}
		if n.Chained && (b.depth != i || i > 0 && *b.parent != parent) {
			break
		}
		found = append(found, b)
		parent = k
	}
	return found
}

// leaseLocked promises found for d, or says that the tenant's leased bytes are at
// their cap. A block under several leases counts once.
func (s *Store) leaseLocked(t *tenant, found []*block, d time.Duration) (skep.Lease, bool) {
	found = onlyOnce(found)
	var more int64
	for _, b := range found {
		if b.leases == 0 {
			more += b.bytes
		}
	}
	if limit := s.opt.TenantLeaseBytes; limit > 0 && t.leased+more > limit {
		return skep.Lease{}, true
	}
	// Random, so that a tenant cannot name another's lease.
	id := skep.LeaseID(rand.Uint64())
	for id == 0 || s.leases[id] != nil {
		id = skep.LeaseID(rand.Uint64())
	}
	l := &lease{until: s.opt.Clock().Add(d), tenant: t, blocks: found}
	for _, b := range l.blocks {
		b.leases++
	}
	t.leased += more
	s.leases[id] = l
	s.dueLocked(l.until)
	return skep.Lease{ID: id, Until: l.until}, false
}

// onlyOnce is found without what it names again, as the keys of an unchained namespace may.
func onlyOnce(found []*block) (once []*block) {
	seen := make(map[*block]bool, len(found))
	for _, b := range found {
		if !seen[b] {
			seen[b] = true
			once = append(once, b)
		}
	}
	return once
}

func (s *Store) dueLocked(t time.Time) {
	if s.soonest.IsZero() || len(s.leases) == 1 || t.Before(s.soonest) {
		s.soonest = t
	}
}

func (s *Store) endLeaseLocked(id skep.LeaseID) {
	l := s.leases[id]
	if l == nil {
		return
	}
	delete(s.leases, id)
	for _, b := range l.blocks {
		if b.leases--; b.leases == 0 && !b.gone {
			l.tenant.leased -= b.bytes
		}
	}
}

// Renew implements skep.Leaser.
func (s *Store) Renew(ctx context.Context, id skep.LeaseID, d time.Duration) (skep.Lease, error) {
	const op = "renew"
	d, err := skep.RenewalOf(d)
	if err != nil {
		return skep.Lease{}, err
	}
	if err := s.begin(ctx, op); err != nil {
		return skep.Lease{}, err
	}
	defer s.mu.Unlock()
	l := s.leases[id]
	if l == nil {
		return skep.Lease{}, &skep.Error{Op: op, Kind: skep.LeaseExpired, Field: "lease", Value: uint64(id)}
	}
	l.until = s.opt.Clock().Add(d)
	s.dueLocked(l.until)
	return skep.Lease{ID: id, Until: l.until}, nil
}

// Release implements skep.Leaser.
func (s *Store) Release(ctx context.Context, id skep.LeaseID) error {
	if err := s.begin(ctx, "release"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.endLeaseLocked(id)
	return nil
}
