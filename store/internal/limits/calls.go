package limits

import (
	"fmt"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/locks"
)

// Calls bounds what puts and restores keep on the heap while they are under way, and
// with it their number: a call that finds no room is refused at once, as Overloaded,
// before any of it is done. A lone call is always admitted. Where several
// tenants have namespaces, none has more than three times what is free (callShare). Make it with NewCalls.
type Calls struct {
	most  int64       // bytes that all calls may have
	alone func() bool // no two tenants have namespaces

	mu      locks.Mutex[locks.CallBytes]
	bytes   int64
	of      map[uint16]int64 // by tenant
	refused int64
}

// NewCalls is for calls that may have so many bytes; alone says that no two tenants have namespaces.
func NewCalls(most int64, alone func() bool) *Calls {
	return &Calls{most: most, alone: alone, of: map[uint16]int64{}}
}

// callShare is how many times what is free one tenant may have of what all calls may keep.
const callShare = 3

// Enter counts a call for its tenant, and gives the bytes it is counted as: a tenant's that is larger than its
// share, and the only one, is counted as that share, since others find the rest. Errors: Overloaded, with when to come
// back.
func (u *Calls) Enter(op string, tenant uint16, n int64) (int64, error) {
	most, alone := u.most, u.alone()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.bytes == 0 && !alone {
		n = min(n, most-most/(callShare+1))
	}
	has, left := u.of[tenant], most-u.bytes-n
	if u.bytes > 0 && (left < 0 || !alone && has+n > callShare*left) {
		u.refused++
		e := &skep.Error{Op: op, Kind: skep.Overloaded, Field: "state of calls under way in bytes", Value: u.bytes + n,
			Limit: fmt.Sprintf("at most %d", most), RetryAfter: overloadRest}
		if left >= 0 {
			e.Field, e.Value = "state of the tenant's calls under way in bytes", has+n
			e.Limit = fmt.Sprintf("at most %d times what is free then, %d", callShare, left)
		}
		return 0, e
	}
	u.bytes += n
	u.of[tenant] += n
	return n, nil
}

// overloadRest is when a refused caller should come back.
const overloadRest = 50 * time.Millisecond

// Leave ends a call that was counted as n bytes.
func (u *Calls) Leave(tenant uint16, n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes -= n
	if u.of[tenant] -= n; u.of[tenant] == 0 {
		delete(u.of, tenant)
	}
}

// Under is how many bytes calls under way are counted as, and how many calls were refused so far.
func (u *Calls) Under() (bytes, refused int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes, u.refused
}

// Tenants is how many tenants have calls under way.
func (u *Calls) Tenants() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.of)
}
