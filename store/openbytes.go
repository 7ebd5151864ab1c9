package store

import (
	"github.com/skepkv/skep/store/internal/locks"

	"github.com/skepkv/skep"
)

// openBytes is the memory of open block writers, by tenant.
type openBytes struct {
	mu  locks.Mutex[locks.OpenBytes]
	all int64
	of  map[uint16]int64
}

// openShare is how many times what is free one tenant may hold of it, as of leases.
const openShare = 3

func (b *openBytes) take(op string, tenant uint16, n, most int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch left := most - b.all; {
	case n > left:
		return &skep.Error{Op: op, Kind: skep.NoMemory, Field: "bytes of open blocks", Value: n, Limit: "at most " + itoa64(most) + " in all"}
	case b.of[tenant] > 0 && b.of[tenant]+n > openShare*(left-n): // its first fits where there is room
		return &skep.Error{Op: op, Kind: skep.Quota, Field: "bytes of open blocks of the tenant", Value: b.of[tenant] + n,
			Limit: "at most " + itoa(openShare) + " times what is free then, " + itoa64(left-n)}
	}
	if b.of == nil {
		b.of = map[uint16]int64{}
	}
	b.all += n
	b.of[tenant] += n
	return nil
}

func (b *openBytes) give(tenant uint16, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all -= n
	if b.of[tenant] -= n; b.of[tenant] == 0 {
		delete(b.of, tenant)
	}
}

func (b *openBytes) used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}
