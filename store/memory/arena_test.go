package memory

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skepkv/skep"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const kib, mib = 1 << 10, 1 << 20

func TestNewRefusesBadOptions(t *testing.T) {
	t.Parallel()
	for field, opts := range map[string]Options{
		"Options.IO":       {IO: 5000, Cache: 4 * kib},
		"Options.Cache":    {IO: 4 * kib, Cache: -4 * kib},
		"Options.MaxBlock": {IO: 4 * kib, MaxBlock: 3 * mib},
	} {
		_, err := New(opts)
		var invalid *skep.Error
		require.ErrorAs(t, err, &invalid)
		assert.Equal(t, field, invalid.Field)
		assert.ErrorIs(t, err, skep.Invalid)
	}
	for _, opts := range []Options{{}, {IO: 1 << 62}, {IO: 4 * kib, Cache: 1 << 62}, {IO: 4 * kib, MaxBlock: 2 * kib}, {IO: 4 * kib, MaxBlock: 128 * mib}} {
		_, err := New(opts)
		assert.ErrorIs(t, err, skep.Invalid, "%+v", opts)
	}
}

func TestBuffersLieInTheMapping(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 3 * mib, Cache: 1 * mib})
	whole := a.Bytes()
	require.Len(t, whole, 4*mib)
	assert.Zero(t, address(whole)%hugePage, "2 MiB-aligned")

	b := mustAlloc(t, a, 5000, BudgetIO)
	defer b.Release()
	assert.Equal(t, 5000, b.Len())
	assert.Equal(t, 8*kib, b.Charged())
	assert.Len(t, b.Padded(), 8*kib)
	b.Bytes()[17] = 42
	assert.EqualValues(t, 42, whole[b.Offset()+17])
	grown := append(b.Bytes(), 99)
	assert.NotEqual(t, address(whole[b.Offset():]), address(grown), "append does not run into the padding")

	off, ok := a.Offset(b.Bytes()[10:20])
	assert.True(t, ok)
	assert.Equal(t, b.Offset()+10, off)
	assert.True(t, a.Contains(whole))
	assert.False(t, a.Contains(make([]byte, 10)))
	assert.False(t, a.Contains(make([]byte, 5*mib)))
	assert.False(t, a.Contains(nil))
}

func TestAllocRefusesWhatCanNeverBe(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 64 * kib, Cache: 16 * kib, MaxBlock: 32 * kib})
	for name, c := range map[string]struct {
		lens   []int
		budget Budget
	}{
		"nothing":           {nil, BudgetIO},
		"zero":              {[]int{0}, BudgetIO},
		"negative":          {[]int{4096, -1}, BudgetIO},
		"above MaxBlock":    {[]int{32*kib + 1}, BudgetIO},
		"above the budget":  {[]int{16*kib + 1}, BudgetCache},
		"all above budget":  {[]int{32 * kib, 32 * kib, 1}, BudgetIO},
		"no such budget":    {[]int{1}, numBudgets},
		"overflowing total": {[]int{1 << 62, 1 << 62}, BudgetIO},
	} {
		_, err := a.TryAllocVec(c.lens, c.budget)
		assert.ErrorIs(t, err, skep.Invalid, name)
		_, err = a.AllocVec(context.Background(), c.lens, c.budget)
		assert.ErrorIs(t, err, skep.Invalid, name)
	}
	assert.Zero(t, a.Stats().Buffers)
	assert.Equal(t, []int{32 * kib, 32 * kib, 1}, a.Split(64*kib+1))
	assert.Equal(t, []int{32 * kib}, a.Split(32*kib))
	assert.Empty(t, a.Split(0))
}

func TestBudgetsAreHardAndSeparate(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 8 * kib, Cache: 8 * kib})
	io := mustAlloc(t, a, 8*kib, BudgetIO)
	_, err := a.TryAlloc(1, BudgetIO)
	var short *NoMemoryError
	require.ErrorAs(t, err, &short)
	assert.ErrorIs(t, err, skep.NoMemory)
	assert.Equal(t, &NoMemoryError{Field: "io budget", Wanted: 4096, Used: 8192, Limit: 8192}, short)

	cached := mustAlloc(t, a, 1, BudgetCache)
	assert.ErrorIs(t, io.TransferToCache(), skep.NoMemory, "4 KiB are left, 8 wanted")
	assert.Equal(t, BudgetIO, io.Budget())
	cached.Release()
	before := io.Offset()
	require.NoError(t, io.TransferToCache())
	require.NoError(t, io.TransferToCache(), "again changes nothing")
	assert.Equal(t, BudgetCache, io.Budget())
	assert.Equal(t, before, io.Offset(), "not copied")
	assert.EqualValues(t, 0, a.Stats().IOUsed)
	assert.EqualValues(t, 8*kib, a.Stats().CacheUsed)
	io.Release()
	assert.ErrorIs(t, io.TransferToCache(), ErrReleased)
}

func TestAllocVecIsAllOrNothing(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 16 * kib})
	one := mustAlloc(t, a, 1, BudgetIO)
	_, err := a.TryAllocVec([]int{8 * kib, 4 * kib, 4 * kib}, BudgetIO)
	assert.ErrorIs(t, err, skep.NoMemory)
	assert.EqualValues(t, 4*kib, a.Stats().IOUsed)
	bufs, err := a.TryAllocVec([]int{8 * kib, 4 * kib}, BudgetIO)
	require.NoError(t, err)
	for _, b := range append(bufs, one) {
		b.Release()
	}
	assert.EqualValues(t, 16*kib, a.Stats().LargestFree)
}

// Random allocations, loans, transfers and releases, each seen from the outside:
// charges match what is alive, budgets hold, no two live buffers share a byte.
func TestArenaProperties(t *testing.T) {
	t.Parallel()
	rng := newRand(t)
	a := newArena(t, Options{IO: 1 * mib, Cache: 512 * kib, MaxBlock: 256 * kib})
	type use struct {
		*Buffer
		refs, loans int
		mark        byte
	}
	var uses []*use
	check := func(u *use) {
		t.Helper()
		require.Equal(t, bytes.Repeat([]byte{u.mark}, u.Len()), u.mem, "bytes of a live buffer changed")
	}
	for step := range 6000 {
		switch op := rng.IntN(10); {
		case op < 4 || len(uses) == 0:
			b, err := a.TryAlloc(1+rng.IntN(1<<(8+rng.IntN(11))), Budget(rng.IntN(2)))
			if err != nil {
				require.ErrorIs(t, err, skep.NoMemory)
				continue
			}
			u := &use{Buffer: filled(b, byte(step)), refs: 1, mark: byte(step)}
			uses = append(uses, u)
		default:
			i := rng.IntN(len(uses))
			u := uses[i]
			check(u)
			switch {
			case op == 4 && u.refs > 0:
				require.NoError(t, u.Retain())
				u.refs++
			case op == 5 && u.refs > 0:
				require.NoError(t, u.Lend())
				u.loans++
			case op == 6 && u.refs > 0:
				if err := u.TransferToCache(); err != nil {
					require.ErrorIs(t, err, skep.NoMemory)
				}
			case op == 7 && u.loans > 0:
				u.Return()
				u.loans--
			case op >= 8 && u.refs > 0:
				u.Release()
				u.refs--
			}
			if u.refs+u.loans == 0 {
				uses[i] = uses[len(uses)-1]
				uses = uses[:len(uses)-1]
			}
		}
		var charged, quarantined, lent int64
		for _, u := range uses {
			charged += int64(u.Charged())
			if u.loans > 0 {
				lent++
				if u.refs == 0 {
					quarantined++
				}
			}
		}
		s := a.Stats()
		require.LessOrEqual(t, s.IOUsed, s.IOBudget)
		require.LessOrEqual(t, s.CacheUsed, s.CacheBudget)
		require.Equal(t, charged, s.IOUsed+s.CacheUsed)
		require.EqualValues(t, len(uses), s.Buffers)
		require.Equal(t, lent, s.Lent)
		require.Equal(t, quarantined, s.Quarantined)
	}
	for _, u := range uses {
		check(u)
		for ; u.refs > 0; u.refs-- {
			u.Release()
		}
		for ; u.loans > 0; u.loans-- {
			u.Return()
		}
	}
	s := a.Stats()
	assert.Zero(t, s.IOUsed+s.CacheUsed+s.Buffers+s.Lent+s.Quarantined+s.Misuse)
	assert.EqualValues(t, 256*kib, s.LargestFree)
}

func TestWaitersAreServedInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{IO: 64 * kib})
		all := mustAlloc(t, a, 64*kib, BudgetIO)
		var mu sync.Mutex
		var order []int
		// The first wants everything: the small ones behind it would fit sooner.
		for i, n := range []int{64 * kib, 4 * kib, 32 * kib, 4 * kib, 64 * kib} {
			go func() {
				b, err := a.Alloc(t.Context(), n, BudgetIO)
				if assert.NoError(t, err) {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					time.Sleep(time.Second)
					b.Release()
				}
			}()
			synctest.Wait()
		}
		assert.EqualValues(t, 5, a.Stats().Waiters)
		all.Release()
		synctest.Wait()
		_, err := a.TryAlloc(1, BudgetIO)
		assert.ErrorIs(t, err, skep.NoMemory, "no overtaking")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, order, 5)
		assert.Equal(t, 0, order[0])
		assert.ElementsMatch(t, []int{1, 2, 3}, order[1:4], "these fit together")
		assert.Equal(t, 4, order[4])
		assert.Zero(t, a.Stats().Waiters)
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Options{IO: 8 * kib})
		held := mustAlloc(t, a, 4*kib, BudgetIO)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := make(chan error, 2)
		go func() {
			_, err := a.Alloc(ctx, 8*kib, BudgetIO)
			got <- err
		}()
		synctest.Wait()
		// Behind the large one waits a small one that could be served already.
		go func() {
			b, err := a.Alloc(t.Context(), 4*kib, BudgetIO)
			if err == nil {
				b.Release()
			}
			got <- err
		}()
		err := <-got
		require.ErrorIs(t, err, skep.NoMemory)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, <-got, "the departure of the first lets the second through")
		held.Release()
	})
}

// A drive completes a read long after its caller has given up and released the
// buffer. Until then nobody else may be given the memory.
func TestLentMemoryIsQuarantined(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 64 * kib, MaxBlock: 16 * kib})
	const late = 0xee
	lent := mustAlloc(t, a, 16*kib, BudgetIO)
	target := lent.Bytes() // what the drive was given
	require.NoError(t, lent.Lend())
	lent.Release()
	require.EqualValues(t, 1, a.Stats().Quarantined)
	require.ErrorIs(t, lent.TransferToCache(), ErrReleased)

	stop := make(chan struct{})
	var drive sync.WaitGroup
	drive.Go(func() {
		for {
			for i := range target {
				target[i] = late
			}
			select {
			case <-stop:
				lent.Return()
				return
			default:
			}
		}
	})
	var users sync.WaitGroup
	for u := range 3 {
		users.Go(func() {
			for range 300 {
				b, err := a.Alloc(context.Background(), 16*kib, BudgetIO)
				if !assert.NoError(t, err) {
					return
				}
				filled(b, byte(u))
				assert.NotEqual(t, lent.Offset(), b.Offset())
				assert.Equal(t, -1, bytes.IndexByte(b.Bytes(), late))
				b.Release()
			}
		})
	}
	users.Wait()
	close(stop)
	drive.Wait()
	assert.Zero(t, a.Stats().Quarantined)
	whole, err := a.TryAllocVec([]int{16 * kib, 16 * kib, 16 * kib, 16 * kib}, BudgetIO)
	require.NoError(t, err, "after Return all memory is back")
	for _, b := range whole {
		b.Release()
	}
}

func TestMisuseIsCountedAndHarmless(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 8 * kib})
	stale := mustAlloc(t, a, 4*kib, BudgetIO)
	stale.Release()
	next := mustAlloc(t, a, 4*kib, BudgetIO)
	require.Equal(t, stale.Offset(), next.Offset(), "the same memory, somebody else's now")
	misuses := []func(){
		stale.Release,
		stale.Return,
		func() { assert.ErrorIs(t, stale.Retain(), ErrReleased) },
		func() { assert.ErrorIs(t, stale.Lend(), ErrReleased) },
		func() { assert.Nil(t, stale.Bytes()) },
		func() { assert.Nil(t, stale.Padded()) },
		next.Return,
	}
	for i, misuse := range misuses {
		if invariants {
			assert.Panics(t, misuse)
			continue
		}
		misuse()
		assert.EqualValues(t, i+1, a.Stats().Misuse)
	}
	assert.EqualValues(t, 1, a.Stats().Buffers)
	assert.NotNil(t, next.Bytes())
	next.Release()
}

func TestFreedMemoryIsPoisoned(t *testing.T) {
	t.Parallel()
	if !invariants {
		t.Skip("needs the build tag invariants")
	}
	a := newArena(t, Options{IO: 8 * kib, MaxBlock: 4 * kib})
	b := filled(mustAlloc(t, a, 100, BudgetIO), 1)
	mem := b.Padded()
	b.Release()
	assert.Equal(t, bytes.Repeat([]byte{0xdb}, 4*kib), mem)
	mem[7] = 0
	assert.PanicsWithValue(t, "memory: free memory was written to", func() { checkPoison(mem) })
	mem[7] = poison
}

func TestCloseWaitsForBuffersOrLeaks(t *testing.T) {
	t.Parallel()
	a, err := New(Options{IO: 64 * kib})
	require.NoError(t, err)
	lent, held := mustAlloc(t, a, 1, BudgetIO), mustAlloc(t, a, 1, BudgetIO)
	mem := lent.Bytes()
	require.NoError(t, lent.Lend())
	lent.Release()

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	err = a.Close(ended)
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	assert.Equal(t, LeakError{Lent: 1, Held: 1, cause: context.Canceled}, *leak)
	assert.ErrorIs(t, err, context.Canceled)
	mem[0] = 1 // the drive may still write: the mapping is there
	_, err = a.TryAlloc(1, BudgetIO)
	assert.ErrorIs(t, err, skep.Closed)
	_, err = a.Alloc(context.Background(), 1, BudgetIO)
	assert.ErrorIs(t, err, skep.Closed)

	closed := make(chan error)
	go func() { closed <- a.Close(context.Background()) }()
	held.Release()
	lent.Return()
	require.NoError(t, <-closed, "a later Close finishes the work")
	assert.Nil(t, a.Bytes())
	assert.NoError(t, a.Close(ended))
}

func TestCloseFailsTheWaiting(t *testing.T) {
	t.Parallel()
	a, err := New(Options{IO: 4 * kib})
	require.NoError(t, err)
	b := mustAlloc(t, a, 1, BudgetIO)
	failed := make(chan error)
	for range 3 {
		go func() {
			_, err := a.Alloc(context.Background(), 1, BudgetIO)
			failed <- err
		}()
	}
	require.Eventually(t, func() bool { return a.Stats().Waiters == 3 }, time.Minute, time.Millisecond)
	closed := make(chan error)
	go func() { closed <- a.Close(context.Background()) }()
	for range 3 {
		assert.ErrorIs(t, <-failed, skep.Closed)
	}
	b.Release()
	require.NoError(t, <-closed)
}

func TestArenaUnderContention(t *testing.T) {
	t.Parallel()
	a := newArena(t, Options{IO: 256 * kib, MaxBlock: 64 * kib})
	seed := newRand(t).Uint64()
	var users sync.WaitGroup
	for u := range 8 {
		users.Go(func() {
			rng := seededRand(seed + uint64(u))
			for range 500 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(1000))*time.Microsecond)
				b, err := a.Alloc(ctx, 1+rng.IntN(64*kib), BudgetIO)
				cancel()
				if err != nil {
					assert.True(t, errors.Is(err, context.DeadlineExceeded), err)
					continue
				}
				filled(b, byte(u))
				assert.Equal(t, bytes.Repeat([]byte{byte(u)}, b.Len()), b.Bytes())
				b.Release()
			}
		})
	}
	users.Wait()
	assert.EqualValues(t, 64*kib, a.Stats().LargestFree)
	assert.Zero(t, a.Stats().Waiters)
}

func BenchmarkAllocRelease(b *testing.B) {
	a := newArena(b, Options{IO: 256 * mib, SmallPages: true})
	for _, n := range []int{4 * kib, 100 * kib, 2 * mib} {
		b.Run(sizeName(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf, err := a.TryAlloc(n, BudgetIO)
				if err != nil {
					b.Fatal(err)
				}
				buf.Release()
			}
		})
	}
}
