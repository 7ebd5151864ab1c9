package replication

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/promises"
)

// lease is what one is of: a promise of every node that has a part of the prefix.
type lease struct {
	space  *space
	salt   skep.Salt
	chains []covered
}

// covered is what a lease has of a chain.
type covered struct {
	spans []span
	lasts []skep.Key // last key of each span: a chain's key says what came before it
	tail  int        // tokens of the last block
}

// promise gives a lease on what was found; denied where there are too many.
func (s *Store) promise(sp *space, salt skep.Salt, found []*finding) (out skep.Lease, denied bool) {
	x := &lease{space: sp, salt: salt}
	var until time.Time
	for _, f := range found {
		if f.Blocks == 0 {
			continue
		}
		c := covered{spans: f.spans, tail: f.tail(sp)}
		if sp.Chained {
			for _, s := range f.spans {
				c.lasts = append(c.lasts, f.keys[s.to-1])
			}
		}
		x.chains = append(x.chains, c)
		if until.IsZero() || f.until.Before(until) {
			until = f.until
		}
	}
	out, ok := s.leases.Add(x, until)
	return out, !ok
}

// leased is what a lease is of; nil: there is none.
func (s *Store) leased(id skep.LeaseID) *lease {
	x, _ := s.leases.Get(id)
	return x
}

// covers is the spans that a lease has of a chain, as far as it has it, and the tokens of the last block.
func (x *lease) covers(sp *space, salt skep.Salt, keys []skep.Key) (best []span, tail int) {
	if x == nil || x.space != sp || x.salt != salt || !sp.Chained {
		return nil, 0
	}
	for i := range x.chains {
		c := &x.chains[i]
		n := 0
		for n < len(c.spans) && c.spans[n].to <= len(keys) && keys[c.spans[n].to-1] == c.lasts[n] {
			n++
		}
		if n > 0 && (len(best) == 0 || c.spans[n-1].to > best[len(best)-1].to) {
			if best, tail = c.spans[:n], sp.Shape.BlockTokens; n == len(c.spans) {
				tail = c.tail
			}
		}
	}
	return best, tail
}

// spans is all that the lease is of.
func (x *lease) spans() (out []span) {
	for i := range x.chains {
		out = append(out, x.chains[i].spans...)
	}
	return out
}

// Renew implements skep.Leaser. Every node that has a part of it has to answer.
func (s many) Renew(ctx context.Context, id skep.LeaseID, d time.Duration) (skep.Lease, error) {
	const op = "renew"
	d, err := skep.RenewalOf(d)
	if err != nil {
		return skep.Lease{}, err
	}
	if err := s.begin(ctx, op); err != nil {
		return skep.Lease{}, err
	}
	x := s.leased(id)
	if x == nil {
		return skep.Lease{}, &skep.Error{Op: op, Kind: skep.LeaseExpired, Field: "lease", Value: uint64(id)}
	}
	spans := x.spans()
	untils := make([]time.Time, len(s.nodes))
	err = s.allOf(ctx, op, s.nodes, func(n *node) error { // a map may lack some of those by now
		last := skep.LeaseID(0)
		for _, part := range spans {
			if part.node != n || part.lease == last || part.lease == 0 {
				continue
			}
			last = part.lease
			l, err := n.st.Renew(ctx, part.lease, d)
			if err != nil {
				return err
			}
			untils[n.i] = promises.Sooner(untils[n.i], l.Until)
		}
		return nil
	})
	if err != nil {
		return skep.Lease{}, err
	}
	var until time.Time
	for _, t := range untils {
		until = promises.Sooner(until, t)
	}
	s.leases.Until(id, until)
	return skep.Lease{ID: id, Until: until}, nil
}

// Release implements skep.Leaser.
func (s many) Release(ctx context.Context, id skep.LeaseID) error {
	if err := s.begin(ctx, "release"); err != nil {
		return err
	}
	if x, ok := s.leases.Take(id); ok {
		s.release(ctx, x.spans())
	}
	return nil
}
