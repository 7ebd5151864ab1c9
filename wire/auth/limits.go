package auth

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limits of one tenant over all its connections. Zero fields do not limit.
type Limits struct {
	RequestsPerSecond float64
	BytesPerSecond    float64 // payload, both directions, also what passes by the connection
	Connections       int
}

// Tenant is a tenant's use of its Limits. A nil Tenant admits everything.
type Tenant struct {
	name  string
	clock func() time.Time
	lasts *lasts
	alone atomic.Bool // there is no other

	mu struct {
		sync.Mutex
		limits   Limits
		requests *rate.Limiter // nil: no limit
		bytes    *rate.Limiter
		conns    int
		shed     int64
	}
}

func newTenant(name string, clock func() time.Time, l *lasts) *Tenant {
	return &Tenant{name: name, clock: clock, lasts: l}
}

// later is the time by which credentials end, where the clock says now.
func (t *Tenant) later(now time.Time) time.Time { return later(now, t.lasts) }

func later(now time.Time, l *lasts) time.Time {
	if f := l.Load(); f != nil {
		if at := (*f)(); at.After(now) {
			return at
		}
	}
	return now
}

// Name is the tenant's.
func (t *Tenant) Name() string { return t.name }

// set changes the limits; what is unchanged keeps its bucket.
func (t *Tenant) set(l Limits) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.mu.limits
	t.mu.limits = l
	if l.RequestsPerSecond != old.RequestsPerSecond {
		t.mu.requests = bucket(l.RequestsPerSecond)
	}
	if l.BytesPerSecond != old.BytesPerSecond {
		t.mu.bytes = bucket(l.BytesPerSecond)
	}
}

// bucket holds a second's worth.
func bucket(perSecond float64) *rate.Limiter {
	if perSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perSecond), max(int(perSecond), 1))
}

// Admit takes requests and bytes out of the tenant's buckets. When they are empty it
// takes nothing and says after how long to come back. Bytes larger than a second's
// worth are admitted when the bucket is full, and leave it in debt.
func (t *Tenant) Admit(requests int, bytes int64) (retryAfter time.Duration, ok bool) {
	if t == nil {
		return 0, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock()
	wait := shortfall(t.mu.requests, now, float64(requests))
	wait = max(wait, shortfall(t.mu.bytes, now, float64(bytes)))
	if wait > 0 {
		t.mu.shed++
		return wait, false
	}
	take(t.mu.requests, now, float64(requests))
	take(t.mu.bytes, now, float64(bytes))
	return 0, true
}

// Charge takes bytes that cannot be refused any more, since the rest of their answer is under way.
// The bucket may be left in debt.
func (t *Tenant) Charge(bytes int64) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	take(t.mu.bytes, t.clock(), float64(bytes))
}

// Owe takes requests that are not refused. The bucket may be left in debt.
func (t *Tenant) Owe(requests int) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	take(t.mu.requests, t.clock(), float64(requests))
}

// Solvent says whether the tenant has a byte left; else after how long to come back. It takes nothing: it is for what
// is charged once it is known how many bytes it is (Charge).
func (t *Tenant) Solvent() (retryAfter time.Duration, ok bool) {
	if t == nil {
		return 0, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := shortfall(t.mu.bytes, t.clock(), 1)
	if wait > 0 {
		t.mu.shed++
	}
	return wait, wait == 0
}

// shortfall is how long until l holds n, or is full.
func shortfall(l *rate.Limiter, now time.Time, n float64) time.Duration {
	if l == nil || n == 0 {
		return 0
	}
	n = min(n, float64(l.Burst()))
	missing := n - l.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	wait := missing / float64(l.Limit()) * float64(time.Second)
	return max(time.Duration(min(wait, float64(longest))), time.Millisecond)
}

// longest is the longest time that somebody is told to wait.
const longest = 24 * time.Hour

// take removes n from l, which may leave it in debt.
func take(l *rate.Limiter, now time.Time, n float64) {
	if l == nil || n <= 0 {
		return
	}
	burst := l.Burst()
	l.SetBurstAt(now, max(burst, int(n))) // the most it gives at once
	l.ReserveN(now, int(n))
	l.SetBurstAt(now, burst)
}

// Connect counts a connection; false when the tenant has all it may. Disconnect must
// follow a true.
func (t *Tenant) Connect() bool {
	if t == nil {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if limit := t.mu.limits.Connections; limit > 0 && t.mu.conns >= limit {
		t.mu.shed++
		return false
	}
	t.mu.conns++
	return true
}

// Disconnect ends what Connect began.
func (t *Tenant) Disconnect() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.mu.conns--
	t.mu.Unlock()
}

// Usage is how a tenant stands.
type Usage struct {
	Tenant      string
	Limits      Limits
	Connections int
	Shed        int64 // requests and connections refused
}

// Usage lists the tenants that were ever named, in no order.
func (d *Directory) Usage() []Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Usage, 0, len(d.tenants))
	for _, t := range d.tenants {
		t.mu.Lock()
		out = append(out, Usage{t.name, t.mu.limits, t.mu.conns, t.mu.shed})
		t.mu.Unlock()
	}
	return out
}
