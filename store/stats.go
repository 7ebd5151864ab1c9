package store

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
)

// counters are what Stats counts.
type counters struct {
	lookups, lookupKeys, lookupHits atomic.Int64
	putBlocks, putBytes             atomic.Int64
	putExists, putDiffers           atomic.Int64
	restored, restoredBlocks        atomic.Int64
	copied, broken, evicted         atomic.Int64
	movedBytes, damaged             atomic.Int64
	blockBytes                      atomic.Int64 // payload of what is stored
	tiers                           [8]atomic.Int64
	declined, missed                kindCounts
}

// kindCounts counts by reason.
type kindCounts struct {
	mu sync.Mutex
	n  map[skep.Kind]int64
}

func (k *kindCounts) add(kind skep.Kind) {
	k.mu.Lock()
	if k.n == nil {
		k.n = map[skep.Kind]int64{}
	}
	k.n[kind]++
	k.mu.Unlock()
}

func (k *kindCounts) snapshot() map[string]int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make(map[string]int64, len(k.n))
	for kind, n := range k.n {
		out[kind.Error()] = n
	}
	return out
}

func (c *counters) decline(kind skep.Kind) { c.declined.add(kind) }
func (c *counters) miss(kind skep.Kind)    { c.missed.add(kind) }
func (c *counters) tier(t skep.Tier, n int64) {
	if int(t) < len(c.tiers) {
		c.tiers[t].Add(n)
	}
}

// Stats implements skep.Observer.
func (s *Store) Stats(ctx context.Context) (skep.Stats, error) {
	if err := s.enter(ctx); err != nil {
		return skep.Stats{}, err
	}
	defer s.leave()
	c := &s.count
	ix := s.index.Stats()
	st := skep.Stats{
		Opened: s.opened, Epoch: s.events.epoch, State: s.state(),
		Blocks: int64(ix.Blocks), CapacityBytes: s.options.CapacityBytes,
		Lookups: c.lookups.Load(), LookupKeys: c.lookupKeys.Load(), LookupHits: c.lookupHits.Load(),
		PutBlocks: c.putBlocks.Load(), PutBytes: c.putBytes.Load(),
		PutExists: c.putExists.Load(), PutDiffers: c.putDiffers.Load(), PutDeclined: c.declined.snapshot(),
		RestoredBlocks: c.restoredBlocks.Load(), RestoredBytes: c.restored.Load(),
		RestoreTiers: map[string]int64{}, RestoreMisses: c.missed.snapshot(),
		CopiedBytes: c.copied.Load(), BrokenPromises: c.broken.Load(),
		Evicted: c.evicted.Load(), MovedBytes: c.movedBytes.Load(), Damaged: c.damaged.Load(),
	}
	for t := range c.tiers {
		if n := c.tiers[t].Load(); n > 0 {
			st.RestoreTiers[skep.Tier(t).String()] = n
		}
	}
	st.Leases, st.LeasedBytes = s.leaseStats()
	s.space.mu.Lock()
	st.Groups = len(s.space.mu.groups)
	st.FreeGroups = s.freeGroupsLocked()
	failed := make([]error, len(s.drives))
	for i, d := range s.drives {
		failed[i] = d.failed
	}
	s.space.mu.Unlock()
	st.BlockBytes = c.blockBytes.Load()
	for i, d := range s.drives {
		info, ds := d.dev.Info(), d.dev.Stats()
		st.Backend, st.BackendReason = info.Backend, info.Reason
		st.Simulated = st.Simulated || info.Simulated
		st.DeviceBytes += info.Size
		state := "ok"
		if failed[i] != nil {
			state = "failed: " + failed[i].Error()
		}
		st.Devices = append(st.Devices, skep.DeviceStats{
			Index: int(d.index), Path: d.path, Backend: info.Backend, Simulated: info.Simulated, State: state, Size: info.Size,
			BytesRead: int64(ds.Reads.Bytes), BytesWritten: int64(ds.Writes.Bytes), Reads: int64(ds.Reads.Ops), Writes: int64(ds.Writes.Ops), Flushes: int64(ds.Flushes.Ops),
			Errors: int64(ds.Errors()), InFlight: int(ds.InFlight), ReadLatencyUs: float64(ds.Reads.EWMA.Nanoseconds()) / 1e3,
		})
	}
	st.Memory = s.memoryTable()
	return st, nil
}

// memoryTable is every byte of memory the store may hold, and its cap.
func (s *Store) memoryTable() []skep.MemoryStats {
	a := s.arena.Stats()
	ix := s.index.Stats()
	return []skep.MemoryStats{
		{Name: "I/O buffers", Used: a.IOUsed, Cap: s.options.IOBytes},
		{Name: "DRAM tier", Used: a.CacheUsed, Cap: s.options.CacheBytes},
		{Name: "index, at most 64 bytes a block", Used: ix.Bytes, Cap: 0},
		{Name: "catalog: block cache and memtables", Used: s.options.CatalogCacheBytes, Cap: s.options.CatalogCacheBytes + catalogMemory},
		{Name: "events", Used: int64(len(s.events.ring)) * eventSize, Cap: int64(len(s.events.ring)) * eventSize},
	}
}

const (
	catalogMemory = 4 * 32 << 20 // memtables, see package catalog
	eventSize     = 160
)
