package memory

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBitsetFindsItsLeastMember(t *testing.T) {
	t.Parallel()
	rng := newRand(t)
	for _, n := range []int{1, 63, 64, 65, 4096, 4097, 300_000} {
		s := newBitset(n)
		model := make([]bool, n)
		for range 2000 {
			i := rng.IntN(n)
			if rng.IntN(2) == 0 {
				i = rng.IntN(min(n, 70)) // meet the same words often
			}
			if model[i] = !model[i]; model[i] {
				s.add(i)
			} else {
				s.remove(i)
			}
			require.Equal(t, model[i], s.has(i))
		}
		for want := range model {
			if model[want] {
				require.Equal(t, want, s.first())
				s.remove(want)
			}
		}
		require.Equal(t, -1, s.first())
	}
}

func TestBuddyTakesTheTightestLowestBlock(t *testing.T) {
	t.Parallel()
	b := newBuddy(16, 3) // two blocks of 8
	page := func(n int) int {
		p, ok := b.alloc(n)
		require.True(t, ok)
		return p
	}
	assert.Equal(t, 0, page(1))
	assert.Equal(t, 8, page(5), "5 pages need an aligned 8, and give 3 back")
	assert.Equal(t, 2, page(2))
	assert.Equal(t, 1, page(1))
	assert.Equal(t, 13, page(1), "the tightest of what 5 left")
	assert.Equal(t, 14, page(2))
	_, ok := b.alloc(8)
	assert.False(t, ok)
	assert.Equal(t, 4, b.largest())
	b.release(0, 1)
	b.release(2, 2)
	b.release(1, 1)
	assert.Equal(t, 8, b.largest())
	order, ok := b.freeAt(0)
	assert.True(t, ok)
	assert.Equal(t, 3, order)
	_, ok = b.freeAt(4)
	assert.False(t, ok, "inside a free block, not at its start")
}

// Whatever is allocated and freed: runs are aligned and never overlap, the count
// of free pages is exact, an allocation fails only if no aligned window is free,
// and when everything is free again it has merged to what it was.
func TestBuddyProperties(t *testing.T) {
	t.Parallel()
	rng := newRand(t)
	for _, size := range []struct{ pages, maxOrder int }{{1, 0}, {64, 6}, {1024, 9}, {1000, 9}, {777, 4}, {5000, 14}} {
		b := newBuddy(size.pages, size.maxOrder)
		fresh := newBuddy(size.pages, size.maxOrder)
		type run struct{ page, n int }
		var runs []run
		taken := make([]bool, size.pages)
		release := func(i int) {
			r := runs[i]
			runs[i] = runs[len(runs)-1]
			runs = runs[:len(runs)-1]
			for p := r.page; p < r.page+r.n; p++ {
				taken[p] = false
			}
			b.release(r.page, r.n)
		}
		for range 4000 {
			if len(runs) > 0 && rng.IntN(100) < 48 {
				release(rng.IntN(len(runs)))
				continue
			}
			n := 1 + rng.IntN(1<<rng.IntN(size.maxOrder+1))
			align := 1 << orderFor(n)
			page, ok := b.alloc(n)
			if !ok {
				require.False(t, hasFreeWindow(taken, align), "%d pages refused with a window of %d free", n, align)
				continue
			}
			require.Zero(t, page%align, "alignment of %d pages", n)
			for p := page; p < page+n; p++ {
				require.False(t, taken[p], "page %d handed out twice", p)
				taken[p] = true
			}
			runs = append(runs, run{page, n})
			free := 0
			for _, is := range taken {
				if !is {
					free++
				}
			}
			require.Equal(t, free, b.freePages)
		}
		for len(runs) > 0 {
			release(rng.IntN(len(runs)))
		}
		require.Equal(t, fresh, b, "not merged back to the initial state")
	}
}

func hasFreeWindow(taken []bool, n int) bool {
next:
	for p := 0; p+n <= len(taken); p += n {
		for _, is := range taken[p : p+n] {
			if is {
				continue next
			}
		}
		return true
	}
	return false
}

func BenchmarkBuddy(b *testing.B) {
	bd := newBuddy(1<<18, 9) // 1 GiB
	rng := rand.New(rand.NewPCG(1, 2))
	type run struct{ page, n int }
	held := make([]run, 2048)
	b.ReportAllocs()
	for b.Loop() {
		r := &held[rng.IntN(len(held))]
		if r.n > 0 {
			bd.release(r.page, r.n)
		}
		r.n = 1 + rng.IntN(100)
		if p, ok := bd.alloc(r.n); ok {
			r.page = p
		} else {
			r.n = 0
		}
	}
}
