package lookup

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/leases"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/memory"
)

// Find looks up a chain, or keys one by one where the namespace has no chains. counts: it is one of the lookups in
// Stats; uses: its keys are seen by the curve of sizes.
func (l *Finder) Find(
	ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest, counts, uses bool,
) (out skep.LookupResult) {
	if uses {
		l.Profile.Saw(ns.Instance, r.Keys)
	}
	for range lookupTries {
		if again := l.once(ns, t, r, &out); !again {
			break
		}
		l.Leases.Release(out.Lease.ID)
		out = skep.LookupResult{Pays: true} // a miss, if it is so each time
	}
	if counts {
		l.count(ns, 1, len(r.Keys), out.Blocks)
	}
	return out
}

// count notes lookups, how many keys they asked for and how many of these are there.
func (l *Finder) count(ns *namespaces.Namespace, lookups, keys, hits int) {
	l.Count.Lookups.Add(int64(lookups))
	l.Count.LookupKeys.Add(int64(keys))
	l.Count.LookupHits.Add(int64(hits))
	ns.Count.Keys.Add(int64(keys))
	ns.Count.Hits.Add(int64(hits))
}

// once looks a chain up, or keys one by one. True: a block that it found was gone before it was looked at closely,
// look again.
func (l *Finder) once(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest, out *skep.LookupResult) bool {
	look := l.keys
	if ns.Info.Chained {
		look = l.chain
	}
	out.Pays = true // unless detail knows better
	again := look(ns, t, r, out)
	if !again && out.Blocks > 0 && (r.Tiers || r.Cost != nil) {
		again = l.detail(ns, t, r, out)
	}
	return again
}

// lookupTries is how often a lookup begins again because a block it had found was gone
// before it was looked at closely.
const lookupTries = 8

// chain fills out. True: the block found was gone before it could be leased,
// look again.
func (l *Finder) chain(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest,
	out *skep.LookupResult) (again bool) {
	n, _ := l.Index.Lookup(len(r.Keys), func(i int) index.Fingerprint {
		return l.Names.Fingerprint(ns.Instance, t, r.Keys[i])
	})
	if n = l.readablePrefix(ns, t, r.Keys, n); n == 0 {
		return false
	}
	fp := l.Names.Fingerprint(ns.Instance, t, r.Keys[n-1])
	e, deepest, ok := l.Index.Probe(fp)
	if !ok {
		return true
	}
	missing, bytes, ok := l.extentOf(ns, fp, e)
	if !ok {
		return true
	}
	out.Blocks = n
	out.Tokens = n*ns.Info.Shape.BlockTokens - missing
	out.Bytes = int64(n) * bytes
	return l.grant(ns, t, r, out, index.LeaseRequest{Deepest: deepest, FP: fp, Bytes: out.Bytes, Tenant: ns.Tenant}, fp, n)
}

// keys is the lookup of a namespace without parents: key by key up to the
// first that is not there. Its lease protects each key.
func (l *Finder) keys(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest,
	out *skep.LookupResult) (again bool) {
	whole := l.allReadable()
	for i, k := range r.Keys {
		fp := l.Names.Fingerprint(ns.Instance, t, k)
		e, id, ok := l.Index.Probe(fp)
		if !ok || !whole && !l.readable(ns, fp, e) {
			break
		}
		missing, bytes, ok := l.extentOf(ns, fp, e)
		if !ok {
			return true
		}
		if l.grant(ns, t, r, out, index.LeaseRequest{Deepest: id, FP: fp, Bytes: bytes, Tenant: ns.Tenant}, fp, i+1) {
			return true
		}
		out.Blocks = i + 1
		out.Tokens += ns.Info.Shape.BlockTokens - missing
		out.Bytes += bytes
	}
	return false
}

// grant adds a promise to the lookup's lease. True: the block is gone.
func (l *Finder) grant(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest, out *skep.LookupResult,
	req index.LeaseRequest, fp index.Fingerprint, blocks int,
) bool {
	if r.Lease == skep.NoLease || out.LeaseDenied {
		return false
	}
	d := r.Lease
	if d == 0 {
		d = skep.DefaultLease
	}
	req.Until = l.Clock().Add(d)
	id, err := l.Index.Grant(req)
	switch skep.KindOf(err) {
	case skep.NotFound:
		return true
	case skep.Quota, skep.Full:
		out.LeaseDenied = true
		l.Leases.Release(out.Lease.ID)
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
	l.Leases.Add(out.Lease.ID, id, leases.Promise{Instance: ns.Instance, Tag: t, FP: fp, Blocks: blocks,
		Until: req.Until})
	return false
}

// detail fills the tiers, the exact size and the estimate. True: a block is gone.
func (l *Finder) detail(ns *namespaces.Namespace, t namespaces.Tag, r *skep.LookupRequest,
	out *skep.LookupResult) (again bool) {
	tiers := make([]skep.Tier, out.Blocks)
	var bytes, dram int64
	for i := range tiers {
		fp := l.Names.Fingerprint(ns.Instance, t, r.Keys[i])
		e, ok := l.Index.Resolve(fp)
		if !ok {
			return true
		}
		_, n, ok := l.extentOf(ns, fp, e)
		if !ok {
			return true
		}
		bytes += n
		tiers[i] = skep.TierDevice
		if e.Location == 0 || l.Cache != nil && l.Cache.Has(memory.IDOf(fp, skep.PartKV)) {
			tiers[i] = skep.TierDRAM
			dram += n
		}
	}
	out.Bytes = bytes
	if r.Tiers {
		out.Tiers = tiers
	}
	out.Estimate = l.Restores.Estimate(bytes-dram, dram)
	out.Pays = r.Cost == nil || out.Estimate < r.Cost.Of(out.Tokens)
	return false
}
