package auth

import (
	"sync"
	"sync/atomic"
)

// Pool is an amount of something that all tenants use: bytes, connections. Where credentials name several tenants, none
// gets more than three times what it leaves to the others: one alone three quarters, two three sevenths each. However
// many take all they can, whoever comes finds something free. Where there is one tenant, everything is its.
type Pool struct {
	Limit int64
	used  atomic.Int64

	mu sync.Mutex
	by map[*Tenant]*Held
}

// greed is how many times as much as is free one tenant may hold.
const greed = 3

// Used is how much everybody holds.
func (p *Pool) Used() int64 { return p.used.Load() }

// Of is what a tenant holds of the pool.
func (p *Pool) Of(t *Tenant) *Held {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.by[t]
	if h == nil {
		if p.by == nil {
			p.by = map[*Tenant]*Held{}
		}
		h = &Held{pool: p, tenant: t}
		p.by[t] = h
	}
	return h
}

// Held is a tenant's part of a Pool.
type Held struct {
	pool   *Pool
	tenant *Tenant
	n      atomic.Int64
}

// Take takes n of the pool; false when the tenant may not have them now.
func (h *Held) Take(n int64) bool {
	used, mine := h.pool.used.Add(n), h.n.Add(n)
	if used > h.pool.Limit || h.shares() && mine > greed*(h.pool.Limit-used) {
		h.Give(n)
		return false
	}
	return true
}

// Give gives n back.
func (h *Held) Give(n int64) {
	h.pool.used.Add(-n)
	h.n.Add(-n)
}

// Left is how much more Take would give now.
func (h *Held) Left() int64 {
	free := h.pool.Limit - h.pool.used.Load()
	if h.shares() { // n more are given as long as mine+n <= greed*(free-n)
		free = (greed*free - h.n.Load()) / (greed + 1)
	}
	return max(free, 0)
}

// Most is what the tenant can get when nobody else has any.
func (h *Held) Most() int64 {
	if h.shares() {
		return h.pool.Limit - h.pool.Limit/(greed+1)
	}
	return h.pool.Limit
}

func (h *Held) shares() bool { return h.tenant != nil && !h.tenant.alone.Load() }
