package resp

import (
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

	mu  sync.Mutex
	dbs map[int]*database
}

// leases are the promises EXISTS made: who was told that a key is there and asks for
// it soon after must not find it evicted, as clients exist that stall when it is
// (LMCache's native client reads a hit's header of known length). The budget is small,
// so that asking cannot pin a tenant's blocks; when it is spent EXISTS answers all the
// same and promises nothing.
type leases struct {
	mu     sync.Mutex
	budget int64 // bytes
	used   int64
	live   []grant // in order of end, since all last equally long
	until  map[promised]time.Time
	denied int64
}

// promised is a key of a numbered database.
type promised struct {
	number int
	name   skep.Key
}

type grant struct {
	until time.Time
	bytes int64
	key   promised
}

// covered says whether an EXISTS of key is still promised for long enough, and lets go
// of what has run out.
func (l *leases) covered(key promised, now time.Time, enough time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.live) && !l.live[n].until.After(now) {
		g := &l.live[n]
		l.used -= g.bytes
		if l.until[g.key].Equal(g.until) {
			delete(l.until, g.key)
		}
		n++
	}
	l.live = l.live[n:]
	until, ok := l.until[key]
	return ok && until.Sub(now) > enough
}

// reserve takes bytes of the budget for a promise until then.
func (l *leases) reserve(key promised, bytes int64, until time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used+bytes > l.budget {
		l.denied++
		return false
	}
	l.used += bytes
	l.live = append(l.live, grant{until, bytes, key})
	if l.until == nil {
		l.until = map[promised]time.Time{}
	}
	l.until[key] = until
	return true
}

func (l *leases) refused() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.denied
}

// exists gives the heads of those of keys that are there, whole and not expired, nil for others, and leases those
// within the tenant's budget.
func (db *database) exists(ctx context.Context, keys [][]byte, lease time.Duration) []*head {
	heads, errs := db.headsOf(ctx, keys, false)
	for i, h := range heads {
		if errs[i] != nil {
			continue
		}
		d := skep.NoLease
		name := skep.KeyOf(h.key)
		promise := promised{db.number, name}
		now := db.clock()
		if lease > 0 && !db.tenant.leases.covered(promise, now, lease/2) &&
			db.tenant.leases.reserve(promise, h.size+int64(len(h.key))+headFixed, now.Add(lease)) {
			d = lease
		}
		if !db.present(ctx, db.heads, []skep.Key{name}, d) ||
			h.piece != 0 && !db.present(ctx, db.data, h.pieceKeys(0, h.pieces()), d) {
			heads[i] = nil
		}
	}
	return heads
}

// present says whether all of keys are stored, and leases them for d. The lease ends
// by itself.
func (db *database) present(ctx context.Context, ns skep.NamespaceID, keys []skep.Key, d time.Duration) bool {
	found, err := db.store.Lookup(ctx, &skep.LookupRequest{Scope: skep.Scope{Namespace: ns}, Keys: keys, Lease: d})
	return err == nil && found.Blocks == len(keys)
}
