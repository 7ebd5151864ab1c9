package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skepkv/skep"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// put caches n bytes of value under id(name), read through the I/O budget.
func put(t testing.TB, c *Cache, name, n int, value byte) Version {
	t.Helper()
	v, err := tryPut(c, Item{ID: id(name), Length: int64(n)}, value)
	require.NoError(t, err)
	return v
}

func tryPut(c *Cache, item Item, value byte) (Version, error) {
	bufs, err := c.arena.TryAllocVec(c.arena.Split(int(item.Length)), BudgetIO)
	if err != nil {
		return 0, err
	}
	for _, b := range bufs {
		filled(b, value)
	}
	item.Bufs = bufs
	v, err := c.Put(item)
	if err != nil {
		for _, b := range bufs {
			b.Release()
		}
	}
	return v, err
}

func read(h *Handle) ([]byte, error) {
	var all []byte
	err := h.Read(func(bufs [][]byte) error {
		all = bytes.Join(bufs, nil)
		return nil
	})
	return all, err
}

func mustGet(t testing.TB, c *Cache, name int) *Handle {
	t.Helper()
	h, ok := c.Get(id(name))
	require.True(t, ok, "%d is not cached", name)
	return h
}

func cached(c *Cache, names ...int) (found []int) {
	for _, name := range names {
		if c.Has(id(name)) {
			found = append(found, name)
		}
	}
	return found
}

func TestCacheHoldsValuesOfSeveralBuffers(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 64 * kib, Cache: 64 * kib, MaxBlock: 8 * kib})
	c := newCache(t, a, CacheOptions{})
	put(t, c, 1, 20_000, 'a')
	assert.EqualValues(t, 0, a.Stats().IOUsed, "the charge has moved")
	assert.EqualValues(t, 20*kib, a.Stats().CacheUsed)

	h := mustGet(t, c, 1)
	assert.Equal(t, id(1), h.ID())
	assert.EqualValues(t, 20_000, h.Len())
	got, err := read(h)
	require.NoError(t, err)
	assert.Equal(t, bytes.Repeat([]byte{'a'}, 20_000), got)
	boom := errors.New("boom")
	assert.ErrorIs(t, h.Read(func([][]byte) error { return boom }), boom)
	h.Release()
	_, err = read(h)
	assert.ErrorIs(t, err, ErrReleased)
	_, err = h.Share()
	assert.ErrorIs(t, err, ErrReleased)
	if !invariants {
		h.Release()
		assert.EqualValues(t, 1, a.Stats().Misuse)
	}
	_, ok := c.Get(id(2))
	assert.False(t, ok)
	assert.Equal(t, CacheStats{Budget: 64 * kib, Bytes: 20 * kib, Entries: 1, Hits: 1, Misses: 1}, c.Stats())
}

func TestPutShowsNothingBeyondLength(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 64 * kib, Cache: 64 * kib})
	c := newCache(t, a, CacheOptions{})
	bufs := []*Buffer{mustAlloc(t, a, 100, BudgetIO), mustAlloc(t, a, 100, BudgetIO), mustAlloc(t, a, 100, BudgetIO)}
	_, err := c.Put(Item{ID: id(1), Bufs: bufs, Length: 150})
	require.NoError(t, err)
	h := mustGet(t, c, 1)
	defer h.Release()
	require.NoError(t, h.Read(func(views [][]byte) error {
		require.Len(t, views, 2)
		assert.Len(t, views[0], 100)
		assert.Len(t, views[1], 50)
		assert.Equal(t, 50, cap(views[1]))
		return nil
	}))
}

func TestPutRefusesAndLeavesOwnershipWithTheCaller(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 128 * kib, Cache: 16 * kib})
	other := newArena(t, Options{IO: 16 * kib})
	c := newCache(t, a, CacheOptions{})
	_, err := NewCache(a, CacheOptions{})
	assert.ErrorIs(t, err, skep.Invalid, "an arena has one cache")
	_, err = NewCache(other, CacheOptions{Policy: 9})
	assert.ErrorIs(t, err, skep.Invalid)

	put(t, c, 1, 100, 'x')
	h := mustGet(t, c, 1)
	shared, err := h.Share()
	require.NoError(t, err)
	h.Release()
	good, large, foreign := mustAlloc(t, a, 100, BudgetIO), mustAlloc(t, a, 17*kib, BudgetIO), mustAlloc(t, other, 100, BudgetIO)
	stale := mustAlloc(t, a, 100, BudgetIO)
	stale.Release()
	for name, item := range map[string]Item{
		"no buffers":      {Length: 1},
		"nil buffer":      {Bufs: []*Buffer{nil}, Length: 1},
		"no length":       {Bufs: []*Buffer{good}},
		"length too long": {Bufs: []*Buffer{good}, Length: 101},
		"buffer twice":    {Bufs: []*Buffer{good, good}, Length: 101},
		"foreign buffer":  {Bufs: []*Buffer{good, foreign}, Length: 101},
		"cached buffer":   {Bufs: []*Buffer{good, shared[0]}, Length: 101},
		"above budget":    {Bufs: []*Buffer{large}, Length: 100},
		"negative cost":   {Bufs: []*Buffer{good}, Length: 100, Cost: -1},
	} {
		item.ID = id(7)
		_, err := c.Put(item)
		assert.ErrorIs(t, err, skep.Invalid, name)
	}
	_, err = c.Put(Item{ID: id(7), Bufs: []*Buffer{good, stale}, Length: 100})
	assert.ErrorIs(t, err, ErrReleased)
	_, err = c.Put(Item{ID: id(1), Bufs: []*Buffer{good}, Length: 100})
	assert.ErrorIs(t, err, ErrExists)
	assert.Equal(t, BudgetIO, good.Budget())
	assert.NotNil(t, good.Bytes())
	assert.EqualValues(t, 1, c.Stats().Entries)

	c.Close()
	_, err = c.Put(Item{ID: id(7), Bufs: []*Buffer{good}, Length: 100})
	assert.ErrorIs(t, err, skep.Closed)
	for _, b := range []*Buffer{good, large, foreign, shared[0]} {
		b.Release()
	}
}

func TestPutEvictsTheLeastCostEffective(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 64 * kib, Cache: 16 * kib})
	c := newCache(t, a, CacheOptions{})
	for name, cost := range []time.Duration{4, 1, 3, 2} {
		_, err := tryPut(c, Item{ID: id(name), Length: 4 * kib, Cost: cost * time.Millisecond}, 'x')
		require.NoError(t, err)
	}
	mustGet(t, c, 1).Release() // 2 uses × 1 ms: as good as 1 × 2 ms, and used later
	put(t, c, 10, 4*kib, 'y')
	assert.Equal(t, []int{0, 1, 2, 10}, cached(c, 0, 1, 2, 3, 10))
	assert.EqualValues(t, 1, c.Stats().Evictions)

	// A hint of past uses counts as if they had happened here.
	_, err := tryPut(c, Item{ID: id(11), Length: 4 * kib, Cost: time.Millisecond, Uses: 50}, 'z')
	require.NoError(t, err)
	put(t, c, 12, 4*kib, 'y')
	assert.Contains(t, cached(c, 11), 11)
}

// The cache as a whole evicts what a simulation of the policy evicts.
func TestEvictionOrderAgainstASimulation(t *testing.T) {
	t.Parallel()
	for _, policy := range []Policy{CostAware, LRU} {
		rng := newRand(t)
		const slots = 64
		a := newArena(t, Options{IO: 64 * kib, Cache: slots * 4 * kib})
		c := newCache(t, a, CacheOptions{Policy: policy})
		slow := slowRanking{policy: policy, items: map[int]*slowItem{}}
		for range 5000 {
			name := int(rng.ExpFloat64() * 60)
			if h, ok := c.Get(id(name)); ok {
				h.Release()
				require.Contains(t, slow.items, name)
				slow.items[name].uses++
				slow.use(name)
				continue
			}
			require.NotContains(t, slow.items, name)
			cost := time.Duration(1+name%7) * time.Millisecond
			_, err := tryPut(c, Item{ID: id(name), Length: 1, Cost: cost}, 'x')
			require.NoError(t, err)
			if len(slow.items) == slots {
				slow.evict()
			}
			slow.items[name] = &slowItem{uses: 1, cost: cost, bytes: 4 * kib}
			slow.use(name)
			require.EqualValues(t, len(slow.items), c.Stats().Entries)
		}
	}
}

func TestDirtyEntriesStayUntilTheirVersionIsClean(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 64 * kib, Cache: 8 * kib})
	c := newCache(t, a, CacheOptions{})
	first, err := tryPut(c, Item{ID: id(1), Length: 8 * kib, Dirty: true}, 'a')
	require.NoError(t, err)
	_, err = tryPut(c, Item{ID: id(2), Length: 1}, 'b')
	assert.ErrorIs(t, err, skep.NoMemory)

	// A newer value of the same name takes the place of the dirty one, although
	// the budget has no room for both.
	second, err := tryPut(c, Item{ID: id(1), Length: 8 * kib, Dirty: true, Replace: true}, 'c')
	require.NoError(t, err)
	assert.NotEqual(t, first, second)
	assert.False(t, c.MarkClean(id(1), first), "the commit of the old value says nothing of the new")
	assert.False(t, c.Discard(id(1), first))
	_, err = tryPut(c, Item{ID: id(2), Length: 1}, 'b')
	assert.ErrorIs(t, err, skep.NoMemory)
	assert.EqualValues(t, 8*kib, c.Stats().DirtyBytes)

	assert.True(t, c.MarkClean(id(1), second))
	assert.False(t, c.MarkClean(id(1), second))
	assert.Zero(t, c.Stats().DirtyBytes)
	put(t, c, 2, 1, 'b')
	assert.Equal(t, []int{2}, cached(c, 1, 2))

	third, err := tryPut(c, Item{ID: id(3), Length: 1, Dirty: true}, 'd')
	require.NoError(t, err)
	assert.True(t, c.Discard(id(3), third))
	assert.Zero(t, c.Stats().DirtyBytes)
}

func TestPinnedAndSharedEntriesStay(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 64 * kib, Cache: 8 * kib})
	c := newCache(t, a, CacheOptions{})
	put(t, c, 1, 8*kib, 'a')
	h := mustGet(t, c, 1)
	assert.EqualValues(t, 8*kib, c.Stats().PinnedBytes)
	_, err := tryPut(c, Item{ID: id(2), Length: 1}, 'b')
	assert.ErrorIs(t, err, skep.NoMemory)
	shared, err := h.Share()
	require.NoError(t, err)
	h.Release()
	assert.Zero(t, c.Stats().PinnedBytes)
	_, err = tryPut(c, Item{ID: id(2), Length: 1}, 'b')
	assert.ErrorIs(t, err, skep.NoMemory, "still in a transfer")
	assert.True(t, c.Has(id(1)), "eviction would have freed nothing")
	assert.EqualValues(t, 'a', shared[0].Bytes()[0])
	shared[0].Release()
	put(t, c, 2, 1, 'b')
	assert.Equal(t, []int{2}, cached(c, 1, 2))
}

func TestRemovedEntriesLiveAsLongAsTheirPins(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 64 * kib, Cache: 64 * kib})
	c := newCache(t, a, CacheOptions{})
	for name := range 6 {
		put(t, c, name, 100, byte(name))
	}
	h := mustGet(t, c, 3)
	assert.True(t, c.Remove(id(3)))
	assert.False(t, c.Remove(id(3)))
	_, ok := c.Get(id(3))
	assert.False(t, ok)
	got, err := read(h)
	require.NoError(t, err)
	assert.Equal(t, bytes.Repeat([]byte{3}, 100), got)
	assert.EqualValues(t, 6*4*kib, a.Stats().CacheUsed)
	h.Release()
	assert.EqualValues(t, 5*4*kib, a.Stats().CacheUsed)

	assert.Equal(t, 2, c.Drop(func(i ID) bool { return i.Part == 1 }), "1 and 4")
	assert.Equal(t, []int{0, 2, 5}, cached(c, 0, 1, 2, 3, 4, 5))

	// Release inside Read takes effect when Read returns.
	h = mustGet(t, c, 5)
	require.NoError(t, h.Read(func(bufs [][]byte) error {
		h.Release()
		c.Remove(id(5))
		assert.EqualValues(t, 5, bufs[0][0])
		assert.EqualValues(t, 3*4*kib, a.Stats().CacheUsed)
		return nil
	}))
	assert.EqualValues(t, 2*4*kib, a.Stats().CacheUsed)
}

func TestHandlesPastTheirDeadlineYieldUnderPressure(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 64 * kib, Cache: 8 * kib})
	now := time.Unix(1000, 0)
	c := newCache(t, a, CacheOptions{HandleLife: time.Second, Now: func() time.Time { return now }})
	put(t, c, 1, 4*kib, 'a')
	put(t, c, 2, 4*kib, 'b')
	plain := mustGet(t, c, 1)
	spilling, ok := c.GetWith(id(1), GetOptions{Spill: make([]byte, 5*kib)})
	require.True(t, ok)
	keeping, ok := c.GetWith(id(2), GetOptions{Deadline: now.Add(time.Hour)})
	require.True(t, ok)
	assert.Equal(t, now.Add(time.Second), plain.Deadline())

	_, err := tryPut(c, Item{ID: id(3), Length: 1}, 'c')
	assert.ErrorIs(t, err, skep.NoMemory, "protected")
	now = now.Add(time.Second)
	got, err := read(plain)
	require.NoError(t, err, "without pressure a deadline means nothing")
	assert.EqualValues(t, 'a', got[0])

	require.NoError(t, plain.Read(func(bufs [][]byte) error {
		_, err := tryPut(c, Item{ID: id(3), Length: 1}, 'c')
		assert.ErrorIs(t, err, skep.NoMemory, "a read in progress is not interrupted")
		return nil
	}))
	put(t, c, 3, 1, 'c')
	assert.Equal(t, []int{2, 3}, cached(c, 1, 2, 3))
	_, err = read(plain)
	assert.ErrorIs(t, err, ErrRevoked)
	assert.ErrorIs(t, err, skep.Evicted, "which is a miss")
	_, err = plain.Share()
	assert.ErrorIs(t, err, ErrRevoked)
	got, err = read(spilling)
	require.NoError(t, err)
	assert.Equal(t, bytes.Repeat([]byte{'a'}, 4*kib), got, "moved to where the holder wanted")
	s := c.Stats()
	assert.EqualValues(t, 1, s.Revocations)
	assert.EqualValues(t, 1, s.Spills)
	assert.EqualValues(t, 4*kib, s.PinnedBytes, "of 2, whose deadline is far")
	for _, h := range []*Handle{plain, spilling, keeping} {
		h.Release()
	}
	assert.Zero(t, c.Stats().PinnedBytes)
}

// With the cache spread in small entries over all of the mapping, an allocation
// for I/O gets its window, and the cache loses what stood there and little else.
func TestIOClearsAWindowInAFragmentedMapping(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 1 * mib, Cache: 3 * mib, MaxBlock: 1 * mib})
	c := newCache(t, a, CacheOptions{})
	// Fill the mapping with single pages of which every fourth, spread evenly,
	// is given back: 1 MiB is free, and never two pages together.
	var pages []*Buffer
	for name := range 1024 {
		budget := BudgetCache
		if name%4 == 3 {
			budget = BudgetIO
		}
		pages = append(pages, mustAlloc(t, a, 4*kib, budget))
	}
	for name, b := range pages {
		if b.Budget() == BudgetIO {
			b.Release()
			continue
		}
		_, err := c.Put(Item{ID: id(name), Bufs: []*Buffer{b}, Length: 1})
		require.NoError(t, err)
	}
	require.EqualValues(t, 4*kib, a.Stats().LargestFree)
	require.EqualValues(t, 768, c.Stats().Entries)

	b := mustAlloc(t, a, 64*kib, BudgetIO)
	assert.EqualValues(t, 768-12, c.Stats().Entries, "one window of 16 pages, 12 of them taken")

	// Something that cannot move bars its window, and only that.
	pin := mustGet(t, c, 1000)
	big := mustAlloc(t, a, 512*kib, BudgetIO)
	assert.True(t, c.Has(id(1000)))
	assert.GreaterOrEqual(t, c.Stats().Entries, int64(768-12-96))
	for name := range 1024 {
		if c.Has(id(name)) {
			defer mustGet(t, c, name).Release()
		}
	}
	_, err := a.TryAlloc(8*kib, BudgetIO)
	var short *NoMemoryError
	require.ErrorAs(t, err, &short)
	assert.Equal(t, "mapping", short.Field)
	pin.Release()
	b.Release()
	big.Release()
}

func TestAWaitForIOIsServedWhenTheCacheCanYield(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(c *Cache, h *Handle, v Version){
		"a release":                        func(c *Cache, h *Handle, v Version) { c.MarkClean(id(1), v); h.Release() },
		"clean":                            func(c *Cache, h *Handle, v Version) { h.Release(); c.MarkClean(id(1), v) },
		"a deadline":                       func(c *Cache, h *Handle, v Version) { c.MarkClean(id(1), v) },
		"a deadline of what was discarded": func(c *Cache, h *Handle, v Version) { c.Discard(id(1), v) },
		"removal":                          func(c *Cache, h *Handle, v Version) { h.Release(); c.Remove(id(1)) },
		"the end of a read": func(c *Cache, h *Handle, v Version) {
			c.MarkClean(id(1), v)
			_ = h.Read(func([][]byte) error { time.Sleep(time.Minute); return nil })
		},
		"the end of a share": func(c *Cache, h *Handle, v Version) {
			c.MarkClean(id(1), v)
			bufs, _ := h.Share()
			h.Release()
			time.Sleep(time.Minute)
			for _, b := range bufs {
				b.Release()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newArena(t, Options{IO: 16 * kib, Cache: 16 * kib, MaxBlock: 16 * kib})
				c := newCache(t, a, CacheOptions{})
				// The dirty entry takes a page of each of the two windows.
				bufs := make([]*Buffer, 8)
				for i := range bufs {
					bufs[i] = mustAlloc(t, a, 4*kib, Budget(i%2))
				}
				for _, i := range []int{0, 2, 4, 6} {
					bufs[i].Release()
				}
				for _, i := range []int{3, 7} {
					bufs[i].Release()
				}
				v, err := c.Put(Item{ID: id(1), Bufs: []*Buffer{bufs[1], bufs[5]}, Length: 8 * kib, Dirty: true})
				require.NoError(t, err)
				h := mustGet(t, c, 1)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				got := make(chan error, 1)
				go func() {
					b, err := a.Alloc(ctx, 16*kib, BudgetIO)
					if err == nil {
						b.Release()
					}
					got <- err
				}()
				synctest.Wait()
				require.EqualValues(t, 1, a.Stats().Waiters)
				_, err = a.TryAlloc(4*kib, BudgetCache)
				assert.ErrorIs(t, err, skep.NoMemory, "the cache takes nothing while I/O waits for a window")
				free(c, h, v)
				require.NoError(t, <-got)
				if strings.HasPrefix(name, "a deadline") || name == "the end of a read" {
					h.Release()
				}
			})
		})
	}
}

// No two parts that a block may have are taken for each other: their names have numbers of 64 bits, by a hash that is the
// process's own.
func TestNamesOfPartsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[uint64]string{}
	for i := range 1 << 16 {
		name := fmt.Sprintf("part-%d", i)
		require.Empty(t, seen[PartID(name)], name)
		seen[PartID(name)] = name
	}
}

// Forgetting a block takes all of its parts, and no other block's.
func TestForgetTakesAllPartsOfABlock(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 1 << 20, Cache: 1 << 20})
	c := newCache(t, a, CacheOptions{})
	at := func(block byte, part uint64) ID { return ID{Key: Key{block}, Part: part} }
	put := func(id ID) {
		b, err := a.TryAlloc(4096, BudgetCache)
		require.NoError(t, err)
		_, err = c.Put(Item{ID: id, Bufs: []*Buffer{b}, Length: 4096, Dirty: id.Part == 2})
		require.NoError(t, err)
	}
	for _, last := range []uint64{1, 2, 3} { // whichever of them went alone before
		for part := range uint64(3) {
			put(at(1, part+1))
		}
		put(at(2, 1))
		require.True(t, c.Remove(at(1, last)))
		checkCache(t, c)
		c.Forget(Key{1}, func() bool { return false })
		for part := range uint64(3) {
			require.False(t, c.Has(at(1, part+1)))
		}
		require.True(t, c.Remove(at(2, 1)))
		checkCache(t, c)
		require.Zero(t, c.Stats().Entries)
	}
	c.Forget(Key{9}, func() bool { return false })
}

// Whoever removes a block may come to forget it only after the next put of it was accepted: that one's parts are dirty,
// and stay. Nothing is shown in between, either.
func TestForgetSparesWhatWasAcceptedSince(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 4096, Cache: 64 * kib})
	c := newCache(t, a, CacheOptions{})
	var list []Held
	for part, dirty := range []bool{false, true, false, true} {
		b := mustAlloc(t, a, 4096, BudgetCache)
		id := ID{Key: Key{1}, Part: uint64(part)}
		v, err := c.Put(Item{ID: id, Bufs: []*Buffer{b}, Length: 4096, Dirty: dirty})
		require.NoError(t, err)
		list = append(list, Held{id, v})
	}
	require.True(t, c.While(list, func() {}))
	c.Forget(Key{1}, func() bool { return true })
	checkCache(t, c)
	for _, h := range list {
		require.Equal(t, h.Part%2 == 1, c.Has(h.ID))
	}
	calls := 0
	require.False(t, c.While(list, func() { calls++ }))
	list[1].Version++
	require.False(t, c.While(list[1:2], func() { calls++ }))
	require.True(t, c.While(list[3:], func() { calls++ }))
	require.Equal(t, 1, calls)
}

// Whether a value is out of date is asked while nobody else can find it, or forget it.
func TestPutOfWhatIsOutOfDate(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 4096, Cache: 64 * kib})
	c := newCache(t, a, CacheOptions{})
	b := mustAlloc(t, a, 4096, BudgetCache)
	item := Item{ID: ID{Key: Key{1}}, Bufs: []*Buffer{b}, Length: 4096}
	for _, current := range []bool{false, true} {
		locked := false
		item.Current = func() bool {
			if locked = !c.mu.TryLock(); !locked {
				c.mu.Unlock()
			}
			return current
		}
		_, err := c.Put(item)
		require.True(t, locked)
		if !current {
			require.ErrorIs(t, err, ErrStale)
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, current, c.Has(item.ID))
		checkCache(t, c)
	}
}
