package resp

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// tenant is what the connections of one tenant share.
type tenant struct {
	name   string
	leases leases
	stats  tenantStats

	mu     sync.Mutex
	dbs    map[int]*database
	told   *told             // lockstep; nil: nothing was
	digits map[string]uint16 // by credential: a bit for each number of digits that sizes of its values have (lockstep)
}

// leases are the promises EXISTS made: who was told that a key is there and asks for
// it soon after must not find it evicted, as clients exist that stall when it is
// (LMCache's native client reads a hit's header of known length). The budget is small,
// so that asking cannot pin a tenant's blocks; when it is spent, or the store grants no lease, EXISTS answers all the
// same and promises nothing, which is counted.
//
// A promise is of a value, and each EXISTS makes it last for the whole time from then on. A value that takes the place of
// a promised one is promised for what is left.
type leases struct {
	mu     sync.Mutex
	budget int64 // bytes
	used   int64
	of     map[promised]*promise // those of live
	live   ends
	denied int64
}

// ends is a heap of promises, by their ends.
type ends []*promise

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].until.Before(e[j].until) }
func (e ends) Swap(i, j int)      { e[i], e[j], e[i].place, e[j].place = e[j], e[i], j, i }
func (e *ends) Push(x any)        { p := x.(*promise); p.place, *e = len(*e), append(*e, p) }
func (e *ends) Pop() any {
	last := len(*e) - 1
	p := (*e)[last]
	(*e)[last], *e = nil, (*e)[:last]
	return p
}

// promised is a key of a numbered database.
type promised struct {
	number int
	name   skep.Key
}

// promise is one key's. Its leases are 0 while they are being asked for.
type promise struct {
	key    promised
	id     pieceID // of the value's pieces
	until  time.Time
	bytes  int64
	leases [2]skep.LeaseID // of the head and of the pieces
	place  int             // in ends
}

// find is the promise of a key that still holds, and lets go of what has run out.
func (l *leases) find(key promised, now time.Time) (p promise, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.live) > 0 && !l.live[0].until.After(now) {
		l.dropLocked(l.live[0])
	}
	if held := l.of[key]; held != nil {
		return *held, true
	}
	return promise{}, false
}

func (l *leases) dropLocked(p *promise) {
	heap.Remove(&l.live, p.place)
	delete(l.of, p.key)
	l.used -= p.bytes
}

// reserve takes p's bytes of the budget and notes it, in the place of its key's promise before.
func (l *leases) reserve(p *promise) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.of[p.key]; before != nil {
		l.dropLocked(before)
	}
	if l.used+p.bytes > l.budget {
		l.denied++
		return false
	}
	l.used += p.bytes
	if l.of == nil {
		l.of = map[promised]*promise{}
	}
	l.of[p.key] = p
	heap.Push(&l.live, p)
	return true
}

// made notes which leases keep what was reserved, unless it was let go of since.
func (l *leases) made(p *promise, ids [2]skep.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.leases = ids
}

// refuse takes back what was reserved.
func (l *leases) refuse(p *promise, denied bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if denied {
		l.denied++
	}
	if l.of[p.key] == p {
		l.dropLocked(p)
	}
}

// renew makes a promise last until then, if it is the same still.
func (l *leases) renew(p promise, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held := l.of[p.key]; held != nil && held.leases == p.leases && held.until.Before(until) {
		held.until = until
		heap.Fix(&l.live, held.place)
	}
}

// forget lets go of a key's promise and gives it, when it has one.
func (l *leases) forget(key promised) (p promise, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.of[key]
	if held == nil {
		return promise{}, false
	}
	l.dropLocked(held)
	return *held, true
}

func (l *leases) refused() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.denied
}

// exists gives the heads of those of keys that are there, whole and not expired, nil for others, and promises those
// within the tenant's budget.
func (db *database) exists(ctx context.Context, keys [][]byte, lease time.Duration) []*head {
	heads, errs := db.headsOf(ctx, keys, false)
	ctx = skep.Continued(ctx)
	for i, h := range heads {
		for errs[i] == nil && !db.promise(ctx, h, lease) {
			was := h.id // it may have been replaced meanwhile, and its pieces deleted
			now, err := db.headsOf(ctx, keys[i:i+1], false)
			if h, errs[i] = now[0], err[0]; errs[i] != nil || h.id == was {
				heads[i] = nil
				break
			}
			heads[i] = h
		}
	}
	return heads
}

// promise says whether a value is there, and has it stay for d, if that may be promised.
func (db *database) promise(ctx context.Context, h *head, d time.Duration) (there bool) {
	if d <= 0 {
		there, _, _ = db.lease(ctx, h, skep.NoLease)
		return there
	}
	l, now := &db.tenant.leases, db.clock()
	key := promised{db.number, skep.KeyOf(h.key)}
	if p, ok := l.find(key, now); ok && p.id == h.id && p.leases[0] != 0 && db.renew(ctx, p.leases, d) {
		l.renew(p, now.Add(d))
		there, _, _ = db.lease(ctx, h, skep.NoLease)
		return there
	}
	p := &promise{key: key, id: h.id, until: now.Add(d), bytes: h.size + int64(len(h.key)) + headFixed}
	if !l.reserve(p) {
		there, _, _ = db.lease(ctx, h, skep.NoLease)
		return there
	}
	there, ids, denied := db.lease(ctx, h, d)
	if !there || denied {
		l.refuse(p, denied)
		db.release(ctx, ids)
	} else {
		l.made(p, ids)
	}
	return there
}

// lease looks for all of a value and leases it for d. Leases end by themselves.
func (db *database) lease(ctx context.Context, h *head, d time.Duration) (there bool, ids [2]skep.LeaseID, denied bool) {
	for i, r := range []skep.LookupRequest{
		{Scope: skep.Scope{Namespace: db.heads}, Keys: []skep.Key{skep.KeyOf(h.key)}, Lease: d},
		{Scope: skep.Scope{Namespace: db.data}, Keys: h.pieceKeys(0, h.pieces()), Lease: d},
	} {
		if len(r.Keys) == 0 {
			continue
		}
		found, err := db.store.Lookup(ctx, &r)
		ids[i], denied = found.Lease.ID, denied || found.LeaseDenied
		if err != nil || found.Blocks < len(r.Keys) {
			return false, ids, denied
		}
	}
	return true, ids, denied
}

// renew has leases last for d from now, and says whether they do.
func (db *database) renew(ctx context.Context, ids [2]skep.LeaseID, d time.Duration) bool {
	for _, id := range ids {
		if id == 0 {
			continue
		}
		if _, err := db.store.Renew(ctx, id, d); err != nil {
			return false
		}
	}
	return true
}

func (db *database) release(ctx context.Context, ids [2]skep.LeaseID) {
	for _, id := range ids {
		if id != 0 {
			_ = db.store.Release(context.WithoutCancel(ctx), id)
		}
	}
}

// replaced has what was promised of a key's value before hold of h, which took its place. Where only the head is written anew
// the promise goes on, since leases are of keys.
func (db *database) replaced(ctx context.Context, h *head) {
	p, ok := db.tenant.leases.forget(promised{db.number, skep.KeyOf(h.key)})
	if !ok {
		return
	}
	if left := p.until.Sub(db.clock()); left > 0 {
		_ = db.promise(ctx, h, left)
	}
	db.release(ctx, p.leases)
}

// gone lets go of what was promised of keys that were deleted.
func (db *database) gone(ctx context.Context, names []skep.Key) {
	for _, name := range names {
		if p, ok := db.tenant.leases.forget(promised{db.number, name}); ok {
			db.release(ctx, p.leases)
		}
	}
}
