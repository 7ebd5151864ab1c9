package catalog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/drawn"
)

// history is what was committed, batch by batch. Batch i leaves Store().NextSeq at
// i, so that a catalog says itself how many batches it holds.
type history struct {
	mu      sync.Mutex
	batches [][]change

	begun  atomic.Uint64 // batches given to Commit
	synced atomic.Uint64 // batches a returned synced commit covers
}

// change is one of: put a row, delete it (rec empty), delete its group (all).
type change struct {
	loc layout.Location
	rec string // empty: delete
	all bool
}

func (h *history) draw(rng *rand.Rand) []change {
	var batch []change
	for range 1 + rng.IntN(30) {
		c := change{loc: at(rng.Uint32N(8), rng.Uint32N(200), uint8(rng.IntN(2)), 0)}
		switch p := rng.IntN(100); {
		case p < 3:
			c.all = true
		case p < 20:
		default:
			rec := make([]byte, 1+rng.IntN(400))
			for i := range rec {
				rec[i] = byte(rng.Uint32())
			}
			c.rec = string(rec)
		}
		batch = append(batch, c)
	}
	return batch
}

func (h *history) fill(b *Batch, batch []change, i uint64) {
	for _, c := range batch {
		switch {
		case c.all:
			b.DeleteGroupBlocks(c.loc.Group)
		case c.rec == "":
			b.DeleteBlock(c.loc)
		default:
			b.PutBlock(c.loc, []byte(c.rec))
		}
	}
	b.PutStore(StoreState{NextSeq: i})
}

// after is the rows there are when the first n batches have happened.
func (h *history) after(n uint64) map[layout.Location]string {
	h.mu.Lock()
	batches := h.batches[:n]
	h.mu.Unlock()
	m := map[layout.Location]string{}
	for _, batch := range batches {
		for _, c := range batch {
			switch {
			case c.all:
				maps.DeleteFunc(m, func(l layout.Location, _ string) bool { return l.Group == c.loc.Group })
			case c.rec == "":
				delete(m, c.loc)
			default:
				m[c.loc] = c.rec
			}
		}
	}
	return m
}

// held is how many batches a catalog says it holds.
func held(t *testing.T, c *Catalog) uint64 {
	names, err := c.Groups(bg) // none, but the call must work
	require.NoError(t, err)
	require.Empty(t, names)
	s, err := c.Store(bg)
	if err != nil {
		return 0
	}
	return s.NextSeq
}

// crash is a filesystem as a crash might leave it, and which batches it may hold.
type crash struct {
	fs       *vfs.MemFS
	at       string
	min, max uint64
}

// crasher takes crashes at random operations of Pebble.
type crasher struct {
	mem     *vfs.MemFS
	h       *history
	percent int // chance of an operation to be one, in 10,000

	mu      sync.Mutex
	rng     *rand.Rand
	crashes []crash
}

func (c *crasher) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rng.IntN(10_000) >= c.percent {
		return nil
	}
	low := c.h.synced.Load()
	fs := c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 10, 50, 90, 100}[c.rng.IntN(5)], RNG: c.rng})
	c.crashes = append(c.crashes, crash{fs, fmt.Sprintf("%v %s", op.Kind, op.Path), low, c.h.begun.Load()})
	return nil
}

func (c *crasher) String() string { return "crasher" }

// Every crash leaves all synced batches, none that was not begun, no batch in part,
// and no gap: what is there is the first n batches for some n.
func TestACrashLeavesAPrefixOfTheCommitsAndAllSyncedOnes(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	const rounds, batchesPerRound, wanted = 10, 250, 200
	rng := rand.New(rand.NewPCG(seed, 3))
	h := &history{}
	mem := vfs.NewCrashableMem()
	small := func(o *Options) { o.memtableBytes = 128 << 10 }
	crashes, flushed, lost := 0, false, 0
	for range rounds {
		cr := &crasher{mem: mem, h: h, percent: 1600, rng: rand.New(rand.NewPCG(rng.Uint64(), 4))}
		c := open(t, faulty(storetest.CrashFS(mem), cr), small)
		require.Equal(t, h.begun.Load(), held(t, c))
		for range batchesPerRound {
			batch := h.draw(rng)
			h.mu.Lock()
			h.batches = append(h.batches, batch)
			i := uint64(len(h.batches))
			h.mu.Unlock()
			sync := rng.IntN(4) == 0
			h.begun.Store(i)
			commit(t, c, sync, func(b *Batch) { h.fill(b, batch, i) })
			if sync {
				h.synced.Store(i)
			}
		}
		u, err := c.Usage(bg)
		require.NoError(t, err)
		flushed = flushed || u.Tables > 0
		cr.mu.Lock()
		cr.percent = 0
		cr.mu.Unlock()
		require.NoError(t, c.Close())

		next := cr.mem
		for _, crash := range cr.crashes {
			c := open(t, crash.fs, small)
			n := held(t, c)
			require.GreaterOrEqual(t, n, crash.min, "synced batches are lost: crash at %s", crash.at)
			require.LessOrEqual(t, n, crash.max, "batches out of nowhere: crash at %s", crash.at)
			require.Equal(t, h.after(n), rows(t, c, 2), "after %d batches: crash at %s", n, crash.at)
			require.NoError(t, c.Close())
			if n < crash.max {
				lost++
			}
			next = crash.fs
		}
		crashes += len(cr.crashes)
		// Go on from the last crash, so that crashes happen to what crashes left.
		c = open(t, next, small)
		n := held(t, c)
		require.NoError(t, c.Close())
		mem = next
		h.mu.Lock()
		h.batches = slices.Clip(h.batches[:n])
		h.mu.Unlock()
		h.begun.Store(n)
		h.synced.Store(n)
	}
	t.Logf("%d crashes, %d of them lost unsynced batches", crashes, lost)
	require.GreaterOrEqual(t, crashes, wanted)
	require.True(t, flushed, "the test is about flushes too")
	require.Positive(t, lost, "the test must lose what may be lost")
}

// A crash at any operation of the creation leaves something that opens.
func TestACrashDuringCreationIsNotForEver(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	h := &history{}
	total := 0
	for _, percent := range []int{0, 50, 100} {
		mem := vfs.NewCrashableMem()
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(seed, uint64(percent)))
		var crashes []crash
		inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				mu.Lock()
				defer mu.Unlock()
				low := h.synced.Load()
				fs := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
				crashes = append(crashes, crash{fs, fmt.Sprintf("%v %s", op.Kind, op.Path), low, h.begun.Load()})
			}
			return nil
		})
		h.begun.Store(0)
		h.synced.Store(0)
		c := open(t, faulty(storetest.CrashFS(mem), inj))
		h.begun.Store(1)
		commit(t, c, true, func(b *Batch) { h.fill(b, nil, 1) })
		h.synced.Store(1)
		require.NoError(t, c.Close())
		for _, crash := range crashes {
			c, err := Open(testDir, Options{FS: crash.fs, Logger: quiet()})
			require.NoError(t, err, "crash at %s", crash.at)
			n := held(t, c)
			require.True(t, crash.min <= n && n <= crash.max, "%d batches, want %d to %d: crash at %s", n, crash.min, crash.max, crash.at)
			require.NoError(t, c.Close())
		}
		total += len(crashes)
	}
	t.Logf("%d crashes", total)
	require.Greater(t, total, 30)
}

// A marker names a manifest. A crash may keep any of the names made since the directory was synced: it never keeps the
// marker and loses the manifest, or the catalog would not open again.
func TestACrashKeepsNoMarkerWithoutItsManifest(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 5))
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex
	var crashes []*vfs.MemFS
	before := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSync && op.Path == testDir { // names are made, and not sure yet
			mu.Lock()
			defer mu.Unlock()
			for range 12 {
				crashes = append(crashes, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng}))
			}
		}
		return nil
	})
	for i := range uint64(3) { // each open makes a manifest
		c := open(t, faulty(mem, before))
		commit(t, c, true, func(b *Batch) { b.PutStore(StoreState{NextSeq: i + 1}) })
		require.NoError(t, c.Close())
	}
	for _, fs := range crashes {
		c, err := Open(testDir, Options{FS: fs, Logger: quiet()})
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	require.Greater(t, len(crashes), 50)
}
