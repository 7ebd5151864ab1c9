package store

import (
	"cmp"
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/observe"
)

// Stats implements skep.Observer.
func (s *Store) Stats(ctx context.Context) (skep.Stats, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return skep.Stats{}, err
	}
	defer s.gate.Leave()
	st := skep.Stats{
		Opened: s.opened, Epoch: s.events.Epoch(), State: cmp.Or(s.gate.Why(), s.catalogRoom.Why(), "ok"),
		Blocks: int64(s.index.Stats().Blocks), CapacityBytes: s.options.CapacityBytes,
		RoomBytes: s.space.RoomBytes(),
	}
	_, st.Overloaded = s.calls.Under()
	s.count.Fill(&st)
	st.TwoPointers, st.Prefetch = s.restores.TwoPointers(), s.restores.Prefetch()
	st.TwoPointers.BoundaryPut = s.count.BoundaryPut.Load()
	st.Leases, st.LeasedBytes = s.lookups.Leases.Held(s.options.Clock())
	st.Groups, st.FreeGroups = s.space.Count()
	st.BlockBytes = s.names.Stored()
	for i, d := range s.members.All() {
		if d.Removed.Load() {
			continue
		}
		info, ds := d.Dev.Info(), d.Dev.Stats()
		if d.Absent == nil {
			st.Backend, st.BackendReason = info.Backend, info.Reason
		}
		st.Simulated = st.Simulated || info.Simulated
		allotted := info.Size
		if info.Raw { // a cap may give the store a part of it
			allotted = min(allotted, layout.SegmentOffset(int(s.space.RowOf(d).Segments), d.SegBytes))
		}
		st.DeviceBytes += allotted
		state := d.Condition().String()
		if err := s.space.Refusal(d); err != nil {
			state += ": " + err.Error()
		} else if why := d.Standing.Why(); why != "" {
			state += ": " + why
		}
		st.Devices = append(st.Devices, skep.DeviceStats{
			Index: int(d.Index), Path: d.Path, Backend: info.Backend, Simulated: info.Simulated, State: state, Size: info.Size,
			BytesRead: int64(ds.Reads.Bytes), BytesWritten: int64(ds.Writes.Bytes), Reads: int64(ds.Reads.Ops), Writes: int64(ds.Writes.Ops), Flushes: int64(ds.Flushes.Ops),
			Errors: int64(ds.Errors()), WrongReads: d.Standing.Wrong.Load(),
			Unannounced: int64(ds.Unannounced), Reissued: int64(ds.Reissued), InFlight: int(ds.InFlight), ReadLatencyUs: float64(ds.Reads.EWMA.Nanoseconds()) / 1e3,
			WriteLatencyUs: float64(ds.Writes.EWMA.Nanoseconds()) / 1e3, Wear: s.wear.Of(i),
		})
	}
	st.Admission = s.ingest.Filter.Stats()
	// Where the room for blocks is not known, it is what there is now.
	st.Reuse = s.profile.Stats(st.Blocks, st.BlockBytes, s.options.CacheBytes, cmp.Or(st.RoomBytes, st.DeviceBytes))
	st.Tenants, st.Programs, st.Work = s.lookups.Tenants(), s.lookups.Programs.Snapshot(), s.works.Snapshot()
	st.Memory, st.ToName = s.memoryTable(), s.opening.ToName()
	return st, nil
}

// catalogMemory is that of its memtables, see package catalog.
const catalogMemory = 4 * 32 << 20

// observed is a store as metrics see it.
type observed struct{ *Store }

// EachSpace calls f for every namespace.
func (o observed) EachSpace(f func(tenant, name string, c *observe.Spaces)) {
	for n := range o.names.All() {
		f(n.Info.Tenant, n.Info.Name, n.Count)
	}
}

// CatalogDisk is what was found when the catalog's file system was looked at last.
func (o observed) CatalogDisk() (observe.Disk, bool) { return o.catalogRoom.Disk() }
