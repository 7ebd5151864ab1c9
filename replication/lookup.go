package replication

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// Waves of a lookup: so many groups are asked for at once, and twice as many when all of them were there. Of one node
// so many at a time.
const (
	firstWave = 64
	mostWave  = 4096
	abreast   = 4
)

// span is blocks [from, to) of a chain that are together on a node, in a chain there that begins with block head.
type span struct {
	node     *node
	head     int
	from, to int
	lease    skep.LeaseID // the node's
}

// ask is what is wanted of a lookup.
type ask struct {
	lease time.Duration
	tiers bool
	cost  *skep.RecomputeCost
}

// finding is what a lookup found: a prefix of the keys.
type finding struct {
	skep.LookupResult
	spans []span
	time  []time.Duration // estimates of restoring, by node
	until time.Time       // of the first of the leases
	whole bool            // the last block is no partial tail
}

// tail is the tokens of the last block found.
func (f *finding) tail(sp *space) int { return f.Tokens - (f.Blocks-1)*sp.Shape.BlockTokens }

// Lookup implements skep.PrefixFinder.
func (s *Store) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	const op = "lookup"
	if err := r.Validate(); err != nil {
		return skep.LookupResult{}, err
	}
	if err := s.begin(ctx, op); err != nil {
		return skep.LookupResult{}, err
	}
	sp, err := s.spaces.get(op, r.Namespace)
	if err != nil {
		return skep.LookupResult{}, err
	}
	f, err := s.find(ctx, sp, r.Salt, r.Keys, ask{r.Lease, r.Tiers, r.Cost})
	if err != nil {
		return skep.LookupResult{}, err
	}
	s.count.lookups.Add(1)
	s.count.keys.Add(int64(len(r.Keys)))
	s.count.hits.Add(int64(f.Blocks))
	if n := f.Blocks; n > 0 && sp.group > 1 {
		last := f.spans[len(f.spans)-1]
		e := seen{depth: n - 1, anchor: r.Keys[last.head], base: last.head}
		if n > 1 {
			e.parent, e.hasParent = r.Keys[n-2], true
		}
		s.known.put(r.Scope, r.Keys[n-1], e)
	}
	if r.Lease != skep.NoLease && f.Blocks > 0 && !f.LeaseDenied {
		f.Lease, f.LeaseDenied = s.leases.add(sp, r.Salt, r.Keys, f)
	}
	if f.LeaseDenied {
		s.release(ctx, f.spans)
	}
	f.Pays = true
	if r.Cost != nil {
		for _, t := range f.time {
			f.Estimate = max(f.Estimate, t) // the nodes load beside one another
		}
		f.Pays = f.Estimate < r.Cost.Of(f.Tokens)
	}
	return f.LookupResult, nil
}

// find finds the longest prefix of keys. What is leased beyond it is given back.
func (s *Store) find(ctx context.Context, sp *space, salt skep.Salt, keys []skep.Key, a ask) (*finding, error) {
	f := &finding{time: make([]time.Duration, len(s.nodes)), whole: true}
	var err error
	if sp.Chained {
		err = s.findChain(ctx, sp, salt, keys, a, f)
	} else {
		err = s.findEach(ctx, sp, salt, keys, a, f)
	}
	if err != nil {
		s.release(context.WithoutCancel(ctx), f.spans)
		return nil, err
	}
	return f, nil
}

// part asks one node for keys [from, to), which are a chain there. A node that is away has nothing.
func (s *Store) part(ctx context.Context, sp *space, salt skep.Salt, n *node, keys []skep.Key, a ask) (out skep.LookupResult, err error) {
	err = s.on(ctx, "lookup", n, sp, false, func(id skep.NamespaceID) error {
		out, err = n.st.Lookup(ctx, &skep.LookupRequest{Scope: skep.Scope{Namespace: id, Salt: salt}, Keys: keys, Lease: a.lease, Tiers: a.tiers, Cost: a.cost})
		return err
	})
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return out, ended(ctx, "lookup")
	case s.away(err):
		return skep.LookupResult{}, nil
	}
	return out, err
}

// take adds what a node found of a span to the prefix, and says whether all of it was there and more may follow.
func (f *finding) take(sp *space, x span, r skep.LookupResult) bool {
	if r.Blocks == 0 {
		return false
	}
	all := r.Blocks == x.to-x.from
	x.to, x.lease = x.from+r.Blocks, r.Lease.ID
	f.add(sp, x, r)
	return all && f.whole
}

func (f *finding) add(sp *space, x span, r skep.LookupResult) {
	f.spans = append(f.spans, x)
	f.Blocks = x.to
	f.Tokens += r.Tokens
	f.Bytes += r.Bytes
	f.Tiers = append(f.Tiers, r.Tiers...)
	f.LeaseDenied = f.LeaseDenied || r.LeaseDenied
	f.time[x.node.i] += r.Estimate
	f.whole = r.Tokens == r.Blocks*sp.Shape.BlockTokens
	if r.Lease.ID != 0 && (f.until.IsZero() || r.Lease.Until.Before(f.until)) {
		f.until = r.Lease.Until
	}
}

// findChain asks for the groups of a chain, a wave at a time.
func (s *Store) findChain(ctx context.Context, sp *space, salt skep.Salt, keys []skep.Key, a ask, f *finding) error {
	for from, wave := 0, firstWave; from < len(keys); wave = min(2*wave, mostWave) {
		to := min(from+wave*sp.group, len(keys))
		var spans []span
		for i := from; i < to; i += sp.group {
			spans = append(spans, span{node: s.nodeOf(sp, salt, keys[i]), head: i, from: i, to: min(i+sp.group, len(keys))})
		}
		results, err := s.askAll(ctx, sp, salt, keys, a, spans)
		if err != nil {
			s.releaseResults(context.WithoutCancel(ctx), spans, results)
			return err
		}
		for g, x := range spans {
			more := f.take(sp, x, results[g])
			if !more && f.whole && results[g].Blocks > 0 {
				more, err = s.findLoose(ctx, sp, salt, keys, a, f, x.to)
			}
			if !more || err != nil {
				s.releaseResults(context.WithoutCancel(ctx), spans[g+1:], results[g+1:])
				return err
			}
		}
		from = to
	}
	return nil
}

// findLoose goes on within a group, which ends before block end, where its chain does not: with blocks that were put by
// somebody who did not know the group's first block.
func (s *Store) findLoose(ctx context.Context, sp *space, salt skep.Salt, keys []skep.Key, a ask, f *finding, end int) (more bool, err error) {
	for f.Blocks < end {
		x := span{node: s.nodeOf(sp, salt, keys[f.Blocks]), head: f.Blocks, from: f.Blocks, to: end}
		r, err := s.part(ctx, sp, salt, x.node, keys[x.from:x.to], a)
		if err != nil {
			return false, err
		}
		if more := f.take(sp, x, r); !more && (r.Blocks == 0 || !f.whole) {
			return false, nil
		}
	}
	return true, nil
}

// askAll asks for all spans: the nodes at once, and of each a few at a time.
func (s *Store) askAll(ctx context.Context, sp *space, salt skep.Salt, keys []skep.Key, a ask, spans []span) ([]skep.LookupResult, error) {
	out := make([]skep.LookupResult, len(spans))
	if len(spans) == 1 {
		r, err := s.part(ctx, sp, salt, spans[0].node, keys[spans[0].from:spans[0].to], a)
		out[0] = r
		return out, err
	}
	of := make([][]int, len(s.nodes))
	for i, x := range spans {
		of[x.node.i] = append(of[x.node.i], i)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	for _, mine := range of {
		for w := range min(abreast, len(mine)) {
			wait.Go(func() {
				for j := w; j < len(mine) && ctx.Err() == nil; j += abreast {
					i := mine[j]
					r, err := s.part(ctx, sp, salt, spans[i].node, keys[spans[i].from:spans[i].to], a)
					if err != nil {
						cancel(err)
						return
					}
					out[i] = r
				}
			})
		}
	}
	wait.Wait()
	return out, context.Cause(ctx)
}

// findEach asks for keys that stand alone. A node is asked once for all that are its own, and once more for fewer where
// another has less.
func (s *Store) findEach(ctx context.Context, sp *space, salt skep.Salt, keys []skep.Key, a ask, f *finding) error {
	of := make([][]int, len(s.nodes))
	for i, k := range keys {
		n := s.nodeOf(sp, salt, k)
		of[n.i] = append(of[n.i], i)
	}
	results := make([]skep.LookupResult, len(s.nodes))
	mine := make([][]skep.Key, len(s.nodes))
	for i, list := range of {
		for _, k := range list {
			mine[i] = append(mine[i], keys[k])
		}
	}
	held := func() (out []span) {
		for i := range results {
			out = append(out, span{node: s.nodes[i], lease: results[i].Lease.ID})
		}
		return out
	}
	first := func(errs []error) error {
		for _, err := range errs {
			if err != nil {
				s.release(context.WithoutCancel(ctx), held())
				return err
			}
		}
		return nil
	}
	err := first(s.each(func(n *node) (err error) {
		if len(mine[n.i]) > 0 {
			results[n.i], err = s.part(ctx, sp, salt, n, mine[n.i], a)
		}
		return err
	}))
	if err != nil {
		return err
	}
	f.Blocks = len(keys)
	for i, list := range of {
		if n := results[i].Blocks; n < len(list) {
			f.Blocks = min(f.Blocks, list[n])
		}
	}
	err = first(s.each(func(n *node) (err error) {
		k := 0
		for k < len(of[n.i]) && of[n.i][k] < f.Blocks {
			k++
		}
		if results[n.i].Blocks == k {
			return nil
		}
		s.release(ctx, []span{{node: n, lease: results[n.i].Lease.ID}})
		if results[n.i] = (skep.LookupResult{}); k > 0 {
			results[n.i], err = s.part(ctx, sp, salt, n, mine[n.i][:k], a)
		}
		return err
	}))
	if err != nil {
		return err
	}
	n := f.Blocks
	for i, r := range results {
		if k := r.Blocks; k < len(of[i]) {
			n = min(n, of[i][k]) // deleted since
		}
		f.add(sp, span{node: s.nodes[i], lease: r.Lease.ID}, r)
	}
	f.Blocks = n
	if a.tiers {
		f.Tiers = make([]skep.Tier, 0, n)
		at := make([]int, len(s.nodes))
		for _, k := range keys[:n] {
			i := s.nodeOf(sp, salt, k).i
			f.Tiers = append(f.Tiers, results[i].Tiers[at[i]])
			at[i]++
		}
	}
	return nil
}

// release gives the nodes' leases of spans back.
func (s *Store) release(ctx context.Context, spans []span) {
	var wait sync.WaitGroup
	of := make([][]skep.LeaseID, len(s.nodes))
	for _, x := range spans {
		if x.lease != 0 {
			of[x.node.i] = append(of[x.node.i], x.lease)
		}
	}
	for i, ids := range of {
		if len(ids) == 0 {
			continue
		}
		wait.Go(func() {
			for _, id := range ids {
				_ = s.nodes[i].st.Release(ctx, id) // one that is not released runs out
			}
		})
	}
	wait.Wait()
}

func (s *Store) releaseResults(ctx context.Context, spans []span, results []skep.LookupResult) {
	var held []span
	for i, r := range results {
		if r.Lease.ID != 0 {
			held = append(held, span{node: spans[i].node, lease: r.Lease.ID})
		}
	}
	s.release(ctx, held)
}

// alone is the spans of keys [from, to) that stand alone.
func (s *Store) alone(sp *space, salt skep.Salt, keys []skep.Key, from, to int) []span {
	out := make([]span, 0, to-from)
	for i := from; i < to; i++ {
		out = append(out, span{node: s.nodeOf(sp, salt, keys[i]), head: i, from: i, to: i + 1})
	}
	return out
}
