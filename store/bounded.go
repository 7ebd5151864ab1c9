package store

import (
	"fmt"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/restore"
)

// putBlockState is what a put is reckoned to keep on the heap for a block, besides restore.CallState. Payload is the
// caller's, or in the arena under its own budget.
const putBlockState = 1 << 10

func putState(blocks int) int64 { return restore.CallState + int64(blocks)*putBlockState }

// Reckoned sizes of what the index and the store keep for promises and hints, each of
// which the index caps in number.
const (
	promiseBytes = 65536*(160+128+96) + 65536*64
)

// memoryTable is every byte of memory the store may hold, and its cap. Options.MemoryBytes
// is held against the sum of the caps.
func (s *Store) memoryTable() []skep.MemoryStats {
	o := &s.options
	rows := o.memoryCaps()
	a := s.arena.Stats()
	filter := s.ingest.Filter.Memory()
	calls, _ := s.calls.Under()
	used := map[string]int64{
		rowIO: a.IOUsed, rowDRAM: a.CacheUsed, rowIndex: s.index.Stats().Bytes, rowCatalog: o.CatalogCacheBytes,
		rowFilter: filter, rowReuse: s.profile.Bytes(), rowEvents: int64(o.EventBuffer) * observe.EventBytes,
		rowCalls: calls, rowWriters: s.ingest.Open.Used(),
	}
	for i := range rows {
		rows[i].Used = used[rows[i].Name]
	}
	if idle := s.arena.Idle(a.IOUsed + a.CacheUsed); idle > 0 { // within the caps of both
		rows = append(rows, skep.MemoryStats{Name: rowPinned, Used: idle})
	}
	return rows
}

const (
	rowIO       = "I/O buffers"
	rowDRAM     = "DRAM tier"
	rowPinned   = "of both, registered with drives and idle"
	rowIndex    = "index"
	rowCatalog  = "catalog: block cache and memtables"
	rowFilter   = "admission: refused keys, records of waiting blocks"
	rowReuse    = "reuse profile"
	rowEvents   = "events"
	rowCalls    = "calls under way: puts and restores"
	rowWriters  = "open block writers"
	rowPromises = "leases, pins, hints, programs"
	rowCleaning = "buffers of cleaning, and the log's end"
)

// memoryCaps is what each holder of memory may take at most.
func (o *Options) memoryCaps() []skep.MemoryStats {
	var filter, reuse int64
	if o.Admission != admission.All {
		filter = admission.Cap(o.AdmissionGhosts, o.CacheBytes)
	}
	if o.ReuseSamples > 0 {
		if r, err := index.NewReuse(o.ReuseSamples); err == nil {
			reuse = r.Bytes() + observe.ProfileBytes
		}
	}
	return []skep.MemoryStats{
		{Name: rowIO, Cap: o.IOBytes},
		{Name: rowDRAM, Cap: o.CacheBytes},
		{Name: rowIndex, Cap: o.IndexBytes},
		{Name: rowCatalog, Cap: o.CatalogCacheBytes + catalogMemory},
		{Name: rowFilter, Cap: filter},
		{Name: rowReuse, Cap: reuse},
		{Name: rowEvents, Cap: int64(o.EventBuffer) * observe.EventBytes},
		{Name: rowCalls, Cap: o.CallBytes},
		{Name: rowWriters, Cap: o.WriterBytes},
		{Name: rowPromises, Cap: promiseBytes + observe.ProgramBytes + restore.PrefetchState},
		{Name: rowCleaning, Cap: 2*appender.MaxBytes + observe.LogTailBytes},
	}
}

// capIndex sets how much the index may take: what MemoryBytes leaves for it. It refuses a
// cap that the rest passes already, and one under which the index could not hold what
// the devices can, at BlockBytes a block.
func (o *Options) capIndex(capacityPages int64) error {
	const op = "open store"
	if o.MemoryBytes > 0 {
		var rest int64
		for _, row := range o.memoryCaps() {
			if row.Name != rowIndex {
				rest += row.Cap
			}
		}
		left := o.MemoryBytes - rest
		if least := int64(1 << 20); left < least {
			return skep.Invalidf(op, "memory bytes", o.MemoryBytes, fmt.Sprintf("at least %d: %d for buffers, tiers, catalog and calls, and an index", rest+least, rest))
		}
		if o.IndexBytes == 0 || o.IndexBytes > left {
			if o.IndexBytes > left {
				return skep.Invalidf(op, "index bytes", o.IndexBytes, fmt.Sprintf("at most %d, what memory bytes leaves", left))
			}
			o.IndexBytes = left
		}
	}
	if o.IndexBytes == 0 {
		return nil
	}
	each := index.BytesPerBlock(o.Policy)
	if blocks := capacityPages * layout.PageSize / max(o.BlockBytes, 1); blocks*each > o.IndexBytes {
		return skep.Invalidf(op, "index bytes", o.IndexBytes, fmt.Sprintf("at least %d: the devices hold %d blocks of %d bytes, at %d bytes a block",
			blocks*each, blocks, o.BlockBytes, each))
	}
	return nil
}

// indexTight says that an index of at most IndexBytes is nearly full: cleaning then makes room in it, as it
// does on the devices.
func (o *Options) indexTight(x *index.Index) bool {
	most := o.IndexBytes / index.BytesPerBlock(o.Policy)
	if most == 0 {
		return false
	}
	st := x.Stats()
	return int64(st.Blocks+st.Stubs) > most-most/16
}
