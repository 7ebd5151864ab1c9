package pace

import (
	"sync"

	"github.com/skepkv/skep"
)

// Hedges is what may be asked for twice, and what was.
type Hedges struct {
	Calls *Bucket // of lookups: each call earns
	Bytes *Bucket // of restores

	mu    sync.Mutex
	stats skep.HedgeStats
}

// What may be asked for twice: a tenth of the calls, a twentieth of the bytes.
const (
	ofCalls, burstCalls = 10, 256
	ofBytes             = 20
)

// NewHedges has nothing asked for twice yet, and a burst of so many bytes to begin with.
func NewHedges(bytes int64) *Hedges {
	return &Hedges{Calls: NewBucket(burstCalls, ofCalls), Bytes: NewBucket(bytes, ofBytes)}
}

// Note has f count.
func (h *Hedges) Note(f func(st *skep.HedgeStats)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.stats)
}

// Bucket bounds what is asked for twice to a part of all, and a burst. It is safe for concurrent use.
type Bucket struct {
	mu              sync.Mutex
	have, most, per int64
}

// NewBucket makes a bucket of one in per of what is earned, and a burst to begin with.
func NewBucket(burst, per int64) *Bucket {
	return &Bucket{have: burst * per, most: burst * per, per: per}
}

// Earn tells of n that was asked for once.
func (b *Bucket) Earn(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.have = min(b.have+n, b.most)
}

// Take says whether n may be asked for again, and counts it.
func (b *Bucket) Take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n*b.per > b.have {
		return false
	}
	b.have -= n * b.per
	return true
}
