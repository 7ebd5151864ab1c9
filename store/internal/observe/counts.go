package observe

import (
	"github.com/skepkv/skep/store/internal/locks"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
)

// Counts are what Stats counts.
type Counts struct {
	Lookups, LookupKeys, LookupHits atomic.Int64
	PutBlocks, PutBytes             atomic.Int64
	PutExists, PutDiffers           atomic.Int64
	Restored, RestoredBlocks        atomic.Int64
	Copied, Broken                  atomic.Int64
	Evicted, EvictedUnread          atomic.Int64
	MovedBytes, Damaged, Repaired   atomic.Int64
	ReadAround                      atomic.Int64 // reads sent to another drive because one took too long
	Tiers                           Tiers
	Declined, Missed                Kinds
	BoundaryPut, BoundaryRestored   atomic.Int64
	Joined, Kept                    atomic.Int64
}

// Spaces are the same of one namespace, for metrics: what its lookups and restores came to since the
// store was opened.
type Spaces struct {
	Keys, Hits atomic.Int64
	Tiers      Tiers
	Missed     Kinds // chunks
}

// Evict counts a block that was dropped to make room.
func (c *Counts) Evict(e index.Entry) {
	c.Evicted.Add(1)
	if e.Uses == 0 {
		c.EvictedUnread.Add(1)
	}
}

// Fill writes the counts to st.
func (c *Counts) Fill(st *skep.Stats) {
	st.Lookups, st.LookupKeys, st.LookupHits = c.Lookups.Load(), c.LookupKeys.Load(), c.LookupHits.Load()
	st.PutBlocks, st.PutBytes = c.PutBlocks.Load(), c.PutBytes.Load()
	st.PutExists, st.PutDiffers, st.PutDeclined = c.PutExists.Load(), c.PutDiffers.Load(), c.Declined.Snapshot()
	st.RestoredBlocks, st.RestoredBytes = c.RestoredBlocks.Load(), c.Restored.Load()
	st.RestoreTiers, st.RestoreMisses = c.Tiers.Snapshot(), c.Missed.Snapshot()
	st.CopiedBytes, st.JoinedBytes, st.KeptBytes = c.Copied.Load(), c.Joined.Load(), c.Kept.Load()
	st.BrokenPromises, st.Damaged = c.Broken.Load(), c.Damaged.Load()
	st.Evicted, st.EvictedUnread, st.MovedBytes = c.Evicted.Load(), c.EvictedUnread.Load(), c.MovedBytes.Load()
}

// Kinds counts by reason.
type Kinds struct {
	mu locks.Mutex[locks.KindCounts]
	n  map[skep.Kind]int64
}

func (k *Kinds) Add(kind skep.Kind) {
	k.mu.Lock()
	if k.n == nil {
		k.n = map[skep.Kind]int64{}
	}
	k.n[kind]++
	k.mu.Unlock()
}

// Snapshot gives the counts by the reasons' names.
func (k *Kinds) Snapshot() map[string]int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make(map[string]int64, len(k.n))
	for kind, n := range k.n {
		out[kind.Error()] = n
	}
	return out
}

// Tiers counts bytes by tier.
type Tiers [8]atomic.Int64

func (c *Tiers) Add(t skep.Tier, n int64) {
	if int(t) < len(c) {
		c[t].Add(n)
	}
}

// Snapshot gives the bytes of tiers that have some, by their names.
func (c *Tiers) Snapshot() map[string]int64 {
	out := map[string]int64{}
	for t := range c {
		if n := c[t].Load(); n > 0 {
			out[skep.Tier(t).String()] = n
		}
	}
	return out
}
