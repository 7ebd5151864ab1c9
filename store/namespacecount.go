package store

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
)

// spaceCount is what lookups and restores of one namespace came to since the store was
// opened, for metrics.
type spaceCount struct {
	keys, hits atomic.Int64
	tiers      [8]atomic.Int64 // bytes restored
	missed     kindCounts      // chunks
}

func (c *spaceCount) tier(t skep.Tier, n int64) {
	if int(t) < len(c.tiers) {
		c.tiers[t].Add(n)
	}
}

// stored is the payload of all namespaces, in bytes.
func (n *names) stored() (bytes int64) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for _, ns := range n.mu.byID {
		bytes += ns.stored.Load()
	}
	return bytes
}

// unstored notes that a block of so many bytes is gone. Those of a purged namespace went with it.
func (s *Store) unstored(instance uint32, bytes int64) {
	if ns := s.names.of(instance); ns != nil {
		ns.stored.Add(-bytes)
	}
}

var (
	descSpaceKeys     = desc("namespace_lookup_keys_total", "Keys asked for by lookups, by namespace and result.", "tenant", "namespace", "result")
	descSpaceRestored = desc("namespace_restored_bytes_total", "Bytes restored, by namespace and tier.", "tenant", "namespace", "tier")
	descSpaceMisses   = desc("namespace_restore_misses_total", "Chunks that were a miss, by namespace and reason.", "tenant", "namespace", "reason")
)

// collectSpaces shows the namespaces' counts. What a namespace has none of is left out.
func (s *Store) collectSpaces(t *tally) {
	s.names.mu.RLock()
	spaces := make([]*namespace, 0, len(s.names.mu.byID))
	for _, n := range s.names.mu.byID {
		spaces = append(spaces, n)
	}
	s.names.mu.RUnlock()
	for _, n := range spaces {
		count := func(d *prometheus.Desc, v int64, label string) {
			if v > 0 {
				t.count(d, v, n.info.Tenant, n.info.Name, label)
			}
		}
		keys, hits := n.count.keys.Load(), n.count.hits.Load()
		count(descSpaceKeys, hits, "hit")
		count(descSpaceKeys, keys-hits, "miss")
		for tier := range n.count.tiers {
			count(descSpaceRestored, n.count.tiers[tier].Load(), skep.Tier(tier).String())
		}
		for reason, v := range n.count.missed.snapshot() {
			count(descSpaceMisses, v, reason)
		}
	}
}
