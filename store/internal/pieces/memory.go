package pieces

import (
	"strconv"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/locks"
)

// Memory is that of blocks that are open, by tenant.
type Memory struct {
	mu  locks.Mutex[locks.OpenBytes]
	all int64
	of  map[uint16]int64
}

// Share is how many times what is free one tenant may hold of it, as of leases.
const Share = 3

// Take counts n bytes of a tenant's, of most in all. Errors: NoMemory, and Quota where its share would be passed.
func (b *Memory) Take(op string, tenant uint16, n, most int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch left := most - b.all; {
	case n > left:
		return &skep.Error{Op: op, Kind: skep.NoMemory, Field: "bytes of open blocks", Value: n, Limit: "at most " + strconv.FormatInt(most, 10) + " in all"}
	case b.of[tenant] > 0 && b.of[tenant]+n > Share*(left-n): // its first fits where there is room
		return &skep.Error{Op: op, Kind: skep.Quota, Field: "bytes of open blocks of the tenant", Value: b.of[tenant] + n,
			Limit: "at most " + strconv.Itoa(Share) + " times what is free then, " + strconv.FormatInt(left-n, 10)}
	}
	if b.of == nil {
		b.of = map[uint16]int64{}
	}
	b.all += n
	b.of[tenant] += n
	return nil
}

// Give counts them no more.
func (b *Memory) Give(tenant uint16, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all -= n
	if b.of[tenant] -= n; b.of[tenant] == 0 {
		delete(b.of, tenant)
	}
}

// Used is how many bytes are counted, of all tenants.
func (b *Memory) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}
