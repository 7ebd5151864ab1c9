package catalog

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Inspect while a writer flushes, compacts and recycles logs all the time: every view
// holds whole batches, all that were synced before it, and does not change.
//
// Alone: goroutines of the whole process are counted.
func TestInspectSeesOneMomentOfALiveCatalog(t *testing.T) {
	noLeaks(t)
	for name, where := range map[string]struct {
		fs  vfs.FS
		dir string
	}{"memory": {vfs.NewMem(), "/live"}, "disk": {vfs.Default, t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			o := Options{FS: where.fs, Logger: quiet(), memtableBytes: 128 << 10}
			c, err := Open(where.dir, o)
			require.NoError(t, err)
			var begun, synced atomic.Uint64
			stop, done := make(chan struct{}), make(chan error, 1)
			go func() { // batch i sets every row of a group to i
				for i := uint64(1); ; i++ {
					select {
					case <-stop:
						done <- nil
						return
					default:
					}
					b := c.NewBatch()
					for page := range uint32(20) {
						rec := make([]byte, 200)
						rec[0], rec[1], rec[2] = byte(i), byte(i>>8), byte(i>>16)
						for k := 3; k < len(rec); k++ {
							rec[k] = byte(uint64(k+1) * (i*31 + uint64(page)*7) >> 3)
						}
						b.PutBlock(at(1, page, 0, 0), rec)
						b.PutBlock(at(2+uint32(i%200), page, 0, 0), rec)
					}
					b.PutStore(StoreState{NextSeq: i})
					begun.Store(i)
					if err := c.Commit(bg, b, i%5 == 0); err != nil {
						done <- err
						return
					}
					if i%5 == 0 {
						synced.Store(i)
					}
				}
			}()
			views := 0
			for begun.Load() < 1500 {
				low := synced.Load()
				if low == 0 {
					continue
				}
				v, err := Inspect(where.dir, o)
				require.NoError(t, err)
				n := held(t, v)
				assert.LessOrEqual(t, low, n, "synced before")
				assert.LessOrEqual(t, n, begun.Load())
				count := 0
				require.NoError(t, v.ScanGroup(bg, 1, func(l layout.Location, rec []byte) error {
					count++
					assert.Equal(t, n&0xffffff, uint64(rec[0])|uint64(rec[1])<<8|uint64(rec[2])<<16, "row %v", l)
					return nil
				}))
				assert.Equal(t, 20, count)
				assert.Len(t, rows(t, v, 2), 20+20*int(min(n, 200)))
				b := v.NewBatch()
				b.DeleteGroupBlocks(1)
				assert.ErrorIs(t, v.Commit(bg, b, true), skep.ReadOnly)
				assert.Equal(t, n, held(t, v), "the view stands still")
				require.NoError(t, v.Close())
				views++
			}
			close(stop)
			require.NoError(t, <-done)
			u, err := c.Usage(bg)
			require.NoError(t, err)
			t.Logf("%d views, %d commits, %d tables", views, begun.Load(), u.Tables)
			require.Positive(t, views)
			before, err := where.fs.List(where.dir)
			require.NoError(t, err)
			require.NoError(t, c.Close())
			require.NotEmpty(t, before)
			v, err := Inspect(where.dir, o)
			require.NoError(t, err, "a closed catalog")
			require.Equal(t, begun.Load(), held(t, v))
			require.NoError(t, v.Close())
			c, err = Open(where.dir, o)
			require.NoError(t, err, "inspecting leaves nothing behind")
			require.NoError(t, c.Close())
		})
	}
}

// A flush between the reading of the manifest and the copying of the logs takes away
// a log that the manifest read still needs: without a second look the view would
// have a hole.
//
// Alone: goroutines of the whole process are counted.
func TestInspectNoticesThatItsLogsWereFlushed(t *testing.T) {
	noLeaks(t)
	mem := vfs.NewMem()
	small := func(o *Options) { o.memtableBytes = 64 << 10 }
	c := open(t, mem, small)
	i := uint32(0)
	put := func() {
		i++
		commit(t, c, true, func(b *Batch) {
			b.PutBlock(at(1, i, 0, 0), bytes.Repeat([]byte{byte(i)}, 500))
			b.PutStore(StoreState{NextSeq: uint64(i)})
		})
	}
	for range 20 {
		put()
	}
	manifest := func() []byte {
		names, err := mem.List(testDir)
		require.NoError(t, err)
		_, content, err := readManifest(mem, testDir, names)
		if err != nil { // it is being changed
			return nil
		}
		return content
	}
	lists := 0
	hook := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpList {
			return nil
		}
		if lists++; lists == 3 { // of examine, of freeze, of freeze with the manifest read
			for before := manifest(); before == nil || bytes.Equal(before, manifest()); {
				put()
			}
			for range 400 { // and the next log, so that the first is recycled or deleted
				put()
			}
		}
		return nil
	})
	v, err := Inspect(testDir, Options{FS: errorfs.Wrap(mem, hook), Logger: quiet()})
	require.NoError(t, err)
	n := held(t, v)
	assert.Equal(t, int(n), len(rows(t, v, 1)), "every batch up to the last one it shows")
	assert.Greater(t, n, uint64(400), "another view was taken")
	require.NoError(t, v.Close())
}
