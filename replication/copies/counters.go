package copies

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
)

// Counters are what a Store of many nodes did itself: a node counts what came to it.
type Counters struct {
	Lookups, Keys, Hits atomic.Int64
	mu                  sync.Mutex
	misses              map[string]int64
}

// Missed counts a chunk that did not come.
func (c *Counters) Missed(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.misses == nil {
		c.misses = map[string]int64{}
	}
	c.misses[skep.KindOf(why).Error()]++
}

// AddTo tells what was counted.
func (c *Counters) AddTo(st *skep.Stats) {
	st.Lookups, st.LookupKeys, st.LookupHits = c.Lookups.Load(), c.Keys.Load(), c.Hits.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	st.RestoreMisses = map[string]int64{}
	maps.Copy(st.RestoreMisses, c.misses)
}
