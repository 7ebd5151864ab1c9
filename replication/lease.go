package replication

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// mostLeases is how many leases a Store has at once.
const mostLeases = 1 << 16

// leases is the promises given, each of them a promise of every node that has a part of the prefix.
type leases struct {
	mu    sync.Mutex
	m     map[skep.LeaseID]*lease
	sweep int // look for what has run out when there are so many
}

type lease struct {
	until  time.Time
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

// add gives a lease on what was found; denied where there are too many.
func (l *leases) add(sp *space, salt skep.Salt, found []*finding) (out skep.Lease, denied bool) {
	x := &lease{space: sp, salt: salt}
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
		if x.until.IsZero() || f.until.Before(x.until) {
			x.until = f.until
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.m) >= l.sweep {
		l.expireLocked()
		l.sweep = min(max(64, 2*len(l.m)), mostLeases)
	}
	if len(l.m) >= mostLeases {
		return skep.Lease{}, true
	}
	id := skep.LeaseID(rand.Uint64())
	for id == 0 || l.m[id] != nil {
		id = skep.LeaseID(rand.Uint64())
	}
	l.m[id] = x
	return skep.Lease{ID: id, Until: x.until}, false
}

func (l *leases) expireLocked() {
	now := skep.Steady()
	for id, x := range l.m {
		if !now.Before(x.until) {
			delete(l.m, id)
		}
	}
}

// count is how many leases there are.
func (l *leases) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expireLocked()
	return len(l.m)
}

func (l *leases) get(id skep.LeaseID) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.m[id]
	if x != nil && !skep.Steady().Before(x.until) {
		delete(l.m, id)
		return nil
	}
	return x
}

// covers is the spans that a lease has of a chain, as far as it has it, and the tokens of the last block
// of that.
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
	if d <= 0 || d > skep.MaxLease {
		return skep.Lease{}, skep.Invalidf(op, "lease", d, fmt.Sprintf("more than 0 and at most %v", skep.MaxLease))
	}
	if err := s.begin(ctx, op); err != nil {
		return skep.Lease{}, err
	}
	x := s.leases.get(id)
	if x == nil {
		return skep.Lease{}, &skep.Error{Op: op, Kind: skep.LeaseExpired, Field: "lease", Value: uint64(id)}
	}
	spans := x.spans()
	untils := make([]time.Time, len(s.nodes))
	err := s.allOf(ctx, op, s.nodes, func(n *node) error { // a map may lack some of those by now
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
			if untils[n.i].IsZero() || l.Until.Before(untils[n.i]) {
				untils[n.i] = l.Until
			}
		}
		return nil
	})
	if err != nil {
		return skep.Lease{}, err
	}
	var until time.Time
	for _, t := range untils {
		if until.IsZero() || !t.IsZero() && t.Before(until) {
			until = t
		}
	}
	s.leases.mu.Lock()
	x.until = until
	s.leases.mu.Unlock()
	return skep.Lease{ID: id, Until: until}, nil
}

// Release implements skep.Leaser.
func (s many) Release(ctx context.Context, id skep.LeaseID) error {
	if err := s.begin(ctx, "release"); err != nil {
		return err
	}
	s.leases.mu.Lock()
	x := s.leases.m[id]
	delete(s.leases.m, id)
	s.leases.mu.Unlock()
	if x != nil {
		s.release(ctx, x.spans())
	}
	return nil
}
