package catalog

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options says how a catalog is opened. The zero value is good.
type Options struct {
	// FS is the filesystem; nil is the operating system's.
	FS vfs.FS
	// ReadOnly opens for reading only: commits return skep.ReadOnly and nothing is
	// written. It still takes the lock; Inspect does not.
	ReadOnly bool
	// MustExist makes Open return skep.NotFound rather than create.
	MustExist bool
	// MustNotExist makes Open return skep.Conflict rather than open one that is there.
	MustNotExist bool
	// CacheBytes is the memory for table blocks; 0 is 64 MiB. See the package's memory table.
	CacheBytes int64
	// Timeout bounds every wait whose context does not end sooner; a scan may take
	// longer as long as rows keep coming. 0 is 30 s.
	Timeout time.Duration
	// Patience bounds how long a change waits for a descriptor or for space, before the catalog fails, or the commit with
	// Deadline where it is a table that finds none. 0 is 10 Timeouts.
	Patience time.Duration
	// OpenTimeout bounds Open, which replays the log. 0 is 2 min.
	OpenTimeout time.Duration
	// Logger takes what Pebble has to say; nil is slog.Default().
	Logger *slog.Logger
	// OnFailure is called once, on a goroutine of its own, when the catalog fails.
	OnFailure func(error)
	// MakeRoom is called where a change finds no space; it says whether there is some now. It must not block.
	MakeRoom func() bool
	// Refuse, for tests, is asked before each commit: with an error that commit is refused, and
	// nothing of it happens.
	Refuse func() error

	memtableBytes int // tests make it small so that flushes come soon
}

func (o *Options) ensureDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.CacheBytes <= 0 {
		o.CacheBytes = 64 << 20
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Patience <= 0 {
		o.Patience = 10 * o.Timeout
	}
	if o.OpenTimeout <= 0 {
		o.OpenTimeout = 2 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.memtableBytes <= 0 {
		o.memtableBytes = memtableBytes
	}
}

const (
	// 32 MiB holds some 130,000 rows of 200 bytes: over ten seconds of puts of 2 MiB
	// blocks at 20 GB/s. Smaller ones would flush more and smaller tables, larger ones
	// would make the log to be replayed at an unclean open longer than its budget.
	memtableBytes  = 32 << 20
	memtablesQueue = 3
	// A write that takes longer is logged, again and again.
	slowDisk = 5 * time.Second
)

// pebbleOptions are the same for every user of a catalog:
//
//   - One pinned format. Programs that can read a newer one must say so here.
//   - Blocks of 16 KiB: rows are read by the chain, so a block is mostly wanted whole.
//   - Snappy above the last level and zstd in it. Of rows of 200 bytes, seven tenths
//     random (BenchmarkRowBytes): 210 bytes a row uncompressed, 160 with snappy, 149 with
//     zstd, 154 with zstd in blocks of 4 KiB; zstd costs a scan some 25 ns a row more.
//   - No bloom filters: rows are looked up by a location the index holds, so a
//     lookup that finds nothing is a rarity, and a scan has no use for them.
//   - At most two compactions at a time: the catalog's drive is shared and its
//     write rate is a few MB/s.
//   - Writes stall at 24 tables deep in level 0: bounded reads, bounded disk.
func pebbleOptions(o *Options, cache *pebble.Cache) *pebble.Options {
	p := &pebble.Options{
		Cache:                       cache,
		FormatMajorVersion:          pebble.FormatTableFormatV6,
		ReadOnly:                    o.ReadOnly,
		MemTableSize:                uint64(o.memtableBytes),
		MemTableStopWritesThreshold: memtablesQueue,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       24,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                openTables(),
		BytesPerSync:                1 << 20, // spread table writes out: no stall behind one large flush
		WALBytesPerSync:             0,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
	}
	for i := range p.TargetFileSizes {
		p.TargetFileSizes[i] = 16 << 20 // enough tables for a parallel scan to share
	}
	for i := range p.Levels {
		p.Levels[i].BlockSize = 16 << 10
		p.Levels[i].IndexBlockSize = 64 << 10
		p.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.SnappyCompression }
	}
	p.Levels[len(p.Levels)-1].Compression = func() *sstable.CompressionProfile { return sstable.ZstdCompression }
	return p
}
