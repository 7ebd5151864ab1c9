package replication

import (
	"context"

	"github.com/skepkv/skep"
)

// Holders is a lookup without a lease, and how many of the blocks found each node gives, by its name: of copies the one
// that answered counts.
//
// Errors: those of Lookup.
func (s *Store) Holders(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, map[string]int, error) {
	of := map[string]int{}
	if err := r.Validate(); err != nil {
		return skep.LookupResult{}, nil, err
	}
	out, err := by(ctx, s, func(ctx context.Context, st skep.Store) (skep.LookupResult, error) {
		clear(of)
		m, ok := st.(many)
		if !ok { // one node is the cluster
			out, err := st.Lookup(ctx, &skep.LookupRequest{Scope: r.Scope, Keys: r.Keys, Lease: skep.NoLease, Cost: r.Cost})
			of[s.now.Load().owner[0].Name] += out.Blocks
			return out, err
		}
		found, _, _, err := m.look(ctx, "lookup", r.Scope, [][]skep.Key{r.Keys}, ask{lease: skep.NoLease, cost: r.Cost})
		if err != nil {
			return skep.LookupResult{}, err
		}
		for _, x := range found[0].spans {
			of[x.node.Name] += x.to - x.from
		}
		return found[0].LookupResult, nil
	})
	return out, of, err
}
