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
	movedBytes, damaged, repaired   atomic.Int64
	readAround                      atomic.Int64 // reads sent to another drive because one took too long
	tiers                           [8]atomic.Int64
	declined, missed                kindCounts
	boundaryPut, boundaryRestored   atomic.Int64
	joined, kept                    atomic.Int64
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
		CopiedBytes: c.copied.Load(), JoinedBytes: c.joined.Load(), KeptBytes: c.kept.Load(), BrokenPromises: c.broken.Load(),
		Overloaded: s.overloaded(), Evicted: c.evicted.Load(), MovedBytes: c.movedBytes.Load(), Damaged: c.damaged.Load(),
	}
	st.TwoPointers, st.Prefetch = s.twoPointerStats(), s.prefetch.snapshot()
	for t := range c.tiers {
		if n := c.tiers[t].Load(); n > 0 {
			st.RestoreTiers[skep.Tier(t).String()] = n
		}
	}
	st.Leases, st.LeasedBytes = s.leaseStats()
	s.space.mu.Lock()
	st.Groups = len(s.space.mu.groups)
	st.FreeGroups = s.freeGroupsLocked()
	drives := s.allDrives()
	failed := make([]error, len(drives))
	for i, d := range drives {
		failed[i] = d.failed
	}
	s.space.mu.Unlock()
	st.BlockBytes = s.names.stored()
	for i, d := range drives {
		if d.removed.Load() {
			continue
		}
		info, ds := d.dev.Info(), d.dev.Stats()
		if d.absent == nil {
			st.Backend, st.BackendReason = info.Backend, info.Reason
		}
		st.Simulated = st.Simulated || info.Simulated
		st.DeviceBytes += info.Size
		state := d.condition().String()
		if failed[i] != nil {
			state += ": " + failed[i].Error()
		} else if why := d.why.Load(); why != nil && *why != "" {
			state += ": " + *why
		}
		st.Devices = append(st.Devices, skep.DeviceStats{
			Index: int(d.index), Path: d.path, Backend: info.Backend, Simulated: info.Simulated, State: state, Size: info.Size,
			BytesRead: int64(ds.Reads.Bytes), BytesWritten: int64(ds.Writes.Bytes), Reads: int64(ds.Reads.Ops), Writes: int64(ds.Writes.Ops), Flushes: int64(ds.Flushes.Ops),
			Errors: int64(ds.Errors()), InFlight: int(ds.InFlight), ReadLatencyUs: float64(ds.Reads.EWMA.Nanoseconds()) / 1e3,
			WriteLatencyUs: float64(ds.Writes.EWMA.Nanoseconds()) / 1e3, Wear: s.wear.of(i),
		})
	}
	st.Admission = s.writeback.snapshot()
	st.Reuse = s.reuseStats(st.Blocks, st.BlockBytes, st.DeviceBytes)
	st.Tenants, st.Programs, st.Work = s.tenantStats(), s.programs.snapshot(), s.works.snapshot()
	st.Memory = s.memoryTable()
	return st, nil
}

const (
	catalogMemory = 4 * 32 << 20 // memtables, see package catalog
	eventSize     = 160
)

func (s *Store) overloaded() int64 {
	_, refused := s.calls.snapshot()
	return refused
}
