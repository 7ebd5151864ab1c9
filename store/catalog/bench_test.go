package catalog

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout"
)

// benchRecord looks like a block record of n bytes: a header that repeats, a key
// and a parent (random), and granule checksums (random).
func benchRecord(rng *rand.Rand, n int, i uint64) []byte {
	rec := make([]byte, n)
	for k := 0; k+8 <= n*7/10; k += 8 {
		binary.LittleEndian.PutUint64(rec[k:], rng.Uint64())
	}
	binary.LittleEndian.PutUint64(rec[n-8:], i)
	return rec
}

func benchOpen(b *testing.B) *Catalog {
	c, err := Open(b.TempDir(), Options{Logger: quiet()})
	require.NoError(b, err)
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// benchFill puts rows of 180 bytes, 2,000 to a chain, 16,000 to a group.
func benchFill(b *testing.B, c *Catalog, n int) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < n; {
		batch := c.NewBatch()
		for range 256 {
			batch.PutBlock(at(uint32(i/16_000), uint32(i%16_000)*64, uint8(i%8), 0), benchRecord(rng, 180, uint64(i)))
			i++
		}
		require.NoError(b, c.Commit(bg, batch, false))
	}
	require.NoError(b, c.Commit(bg, c.NewBatch(), true))
}

func BenchmarkScanBlocks(b *testing.B) {
	const n = 1_000_000
	c := benchOpen(b)
	benchFill(b, c, n)
	for _, shards := range []int{1, 2, 4} {
		b.Run(fmt.Sprint(shards), func(b *testing.B) {
			for b.Loop() {
				var rows atomic.Int64
				perShard := make([]struct {
					n int64
					_ [56]byte
				}, shards)
				require.NoError(b, c.ScanBlocks(bg, shards, func(shard int, l layout.Location, rec []byte) error {
					perShard[shard].n++
					return nil
				}))
				for i := range perShard {
					rows.Add(perShard[i].n)
				}
				require.GreaterOrEqual(b, rows.Load(), int64(n))
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

func BenchmarkBlocks(b *testing.B) {
	c := benchOpen(b)
	benchFill(b, c, 200_000)
	adjacent, random := make([]layout.Location, 2000), make([]layout.Location, 2000)
	rng := rand.New(rand.NewPCG(3, 4))
	loc := func(i int) layout.Location { return at(uint32(i/16_000), uint32(i%16_000)*64, uint8(i%8), 0) }
	for i := range adjacent {
		adjacent[i], random[i] = loc(100_000+i), loc(rng.IntN(200_000))
	}
	for _, bc := range []struct {
		name string
		locs []layout.Location
	}{{"2000 adjacent", adjacent}, {"2000 random", random}} {
		b.Run(bc.name, func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, c.Blocks(bg, bc.locs, func(i int, rec []byte) error {
					if rec == nil {
						return fmt.Errorf("no row %d", i)
					}
					return nil
				}))
			}
		})
	}
	b.Run("one", func(b *testing.B) {
		buf := make([]byte, 0, 256)
		for i := 0; b.Loop(); i++ {
			_, err := c.Block(bg, adjacent[i%2000], buf)
			require.NoError(b, err)
		}
	})
}

func BenchmarkCommit(b *testing.B) {
	for _, sync := range []bool{false, true} {
		for _, rows := range []int{1, 16} {
			for _, parallel := range []int{1, 16} {
				b.Run(fmt.Sprintf("sync=%v/rows=%d/committers=%d", sync, rows, parallel), func(b *testing.B) {
					c := benchOpen(b)
					var seq atomic.Uint64
					b.SetParallelism(max(1, parallel/runtime.GOMAXPROCS(0)))
					one := func(rng *rand.Rand) {
						batch := c.NewBatch()
						for range rows {
							i := seq.Add(1)
							batch.PutBlock(at(uint32(i/16_000), uint32(i%16_000), 0, 0), benchRecord(rng, 180, i))
						}
						if err := c.Commit(bg, batch, sync); err != nil {
							b.Error(err)
						}
					}
					if parallel == 1 {
						rng := rand.New(rand.NewPCG(5, 6))
						for b.Loop() {
							one(rng)
						}
						return
					}
					b.RunParallel(func(pb *testing.PB) {
						rng := rand.New(rand.NewPCG(seq.Add(1), 6))
						for pb.Next() {
							one(rng)
						}
					})
				})
			}
		}
	}
}

// BenchmarkRowBytes is where the choice of compression and block size comes from: bytes
// on disk a row of 200, seven tenths random, and what a full scan of them costs.
func BenchmarkRowBytes(b *testing.B) {
	const n = 200_000
	for _, size := range []int{4 << 10, 16 << 10, 32 << 10} {
		for _, p := range []*sstable.CompressionProfile{sstable.NoCompression, sstable.SnappyCompression, sstable.ZstdCompression} {
			b.Run(fmt.Sprintf("block=%dK/%s", size>>10, p.Name), func(b *testing.B) {
				o := Options{Logger: quiet()}
				o.ensureDefaults()
				cache := pebble.NewCache(1 << 10) // none to speak of: scans decompress
				defer cache.Unref()
				po := pebbleOptions(&o, cache)
				for i := range po.Levels {
					po.Levels[i].BlockSize = size
					po.Levels[i].Compression = func() *sstable.CompressionProfile { return p }
				}
				po.Logger = pebbleLogger{newGuard(&o)}
				db, err := pebble.Open(b.TempDir(), po)
				require.NoError(b, err)
				defer db.Close()
				rng := rand.New(rand.NewPCG(7, 8))
				for i := range n {
					l := at(uint32(i/16_000), uint32(i%16_000)*64, uint8(i%8), 0)
					require.NoError(b, db.Set(appendBlockKey(nil, l), benchRecord(rng, 200, uint64(i)), pebble.NoSync))
				}
				require.NoError(b, db.Flush())
				require.NoError(b, db.Compact(bg, []byte{rowBlock}, []byte{rowBlock + 1}, false))
				for b.Loop() {
					rows := 0
					require.NoError(b, scan(db, rowRange(rowBlock), func(key, value []byte) error { rows++; return nil }))
					require.Equal(b, n, rows)
				}
				m := db.Metrics()
				total := m.Total()
				b.ReportMetric(float64(total.TablesSize)/n, "bytes/row")
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/row")
			})
		}
	}
}
