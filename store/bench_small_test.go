package store

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// countingFS counts the bytes that are written to files.
type countingFS struct {
	vfs.FS
	bytes *atomic.Int64
}

type countingFile struct {
	vfs.File
	bytes *atomic.Int64
}

func (f countingFile) Write(p []byte) (int, error) {
	f.bytes.Add(int64(len(p)))
	return f.File.Write(p)
}

func (c countingFS) counted(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return countingFile{f, c.bytes}, nil
}

func (c countingFS) Create(name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	return c.counted(c.FS.Create(name, k))
}

func (c countingFS) ReuseForWrite(from, to string, k vfs.DiskWriteCategory) (vfs.File, error) {
	return c.counted(c.FS.ReuseForWrite(from, to, k))
}

// BenchmarkSmallValues puts 8,192 values on one device, and says how many bytes of the
// device and of the catalog's files each one costs: docs/notebook/architecture.md has the table. Run it
// with -benchtime=1x.
func BenchmarkSmallValues(b *testing.B) {
	const values = 8192
	for _, batch := range []int{64, 1} {
		for _, size := range []int{1 << 10, 2 << 10, 3 << 10} {
			b.Run(fmt.Sprintf("bytes=%d/at-a-time=%d", size, batch), func(b *testing.B) {
				for range b.N {
					var catalog atomic.Int64
					s, err := Open(context.Background(), Options{Dir: b.TempDir(), DeviceCount: 1, CapacityBytes: 4 << 30, CacheBytes: -1,
						CatalogFS: countingFS{vfs.Default, &catalog}})
					require.NoError(b, err)
					sc := openSpace(b, s, "values", skep.Cache, 1, false)
					before, at := s.members.Written(), catalog.Load()
					for i := 0; i < values; i += batch {
						r := &skep.PutRequest{Scope: sc}
						for k := range batch {
							key := keyOf(uint32(i + k))
							r.Blocks = append(r.Blocks, skep.Block{Key: key, Parts: []skep.Part{{Bytes: content(key, "", 1, size)}}})
						}
						res, err := s.Put(context.Background(), r)
						require.NoError(b, err)
						requireOutcome(b, skep.Committed, res)
					}
					require.NoError(b, s.Flush(context.Background()))
					device, moved := s.members.Written()-before, s.count.MovedBytes.Load()
					require.NoError(b, s.Close())
					b.ReportMetric(float64(device)/values, "device-B/value")
					b.ReportMetric(float64(moved)/values, "moved-B/value")
					b.ReportMetric(float64(catalog.Load()-at)/values, "catalog-B/value")
				}
			})
		}
	}
}
