package memory

import "math/bits"

// buddy decides which pages of the mapping are free. It is pure bookkeeping:
// page numbers in, page numbers out, no memory and no lock.
//
// A free block of order k is 2^k pages and starts at a multiple of 2^k. Two
// invariants: a page is covered by at most one free block, and no two buddies
// of an order below the highest are free at once (they would be one block).
type buddy struct {
	pages     int
	maxOrder  int
	freePages int
	free      []bitset // free[k] holds block numbers: first page >> k
}

func newBuddy(pages, maxOrder int) *buddy {
	b := &buddy{pages: pages, maxOrder: maxOrder}
	for k := 0; k <= maxOrder; k++ {
		b.free = append(b.free, newBitset((pages+1<<k-1)>>k))
	}
	b.release(0, pages)
	return b
}

// orderFor returns the least order whose block holds that many pages.
func orderFor(pages int) int { return bits.Len(uint(pages - 1)) }

// alloc takes n pages (1 ≤ n ≤ 2^maxOrder) that lie together and start at a
// multiple of n rounded up to a power of two. It prefers the tightest order and
// then the lowest address, and gives the part of the block beyond n back.
func (b *buddy) alloc(n int) (page int, ok bool) {
	want := orderFor(n)
	for k := want; k <= b.maxOrder; k++ {
		i := b.free[k].first()
		if i < 0 {
			continue
		}
		b.free[k].remove(i)
		b.freePages -= 1 << k
		page = i << k
		if rest := 1<<k - n; rest > 0 {
			b.release(page+n, rest)
		}
		return page, true
	}
	return 0, false
}

// release frees any run of taken pages, whether or not it was allocated as one:
// the run is cut into aligned blocks and each is merged with its buddies.
func (b *buddy) release(page, n int) {
	b.freePages += n
	for n > 0 {
		k := min(bits.TrailingZeros(uint(page)), bits.Len(uint(n))-1, b.maxOrder)
		b.releaseBlock(page>>k, k)
		page += 1 << k
		n -= 1 << k
	}
}

func (b *buddy) releaseBlock(i, k int) {
	for ; k < b.maxOrder; k++ {
		// The buddy of a block at the ragged end of the mapping was never
		// released, so it is never found free and nothing merges past the end.
		if other := i ^ 1; other<<k >= b.pages || !b.free[k].has(other) {
			break
		}
		b.free[k].remove(i ^ 1)
		i >>= 1
	}
	b.free[k].add(i)
}

// freeAt returns the order of the free block that starts at page.
func (b *buddy) freeAt(page int) (order int, ok bool) {
	for k := 0; k <= b.maxOrder && page&(1<<k-1) == 0; k++ {
		if b.free[k].has(page >> k) {
			return k, true
		}
	}
	return 0, false
}

// largest returns the pages of the largest free block, 0 when all are taken.
func (b *buddy) largest() int {
	for k := b.maxOrder; k >= 0; k-- {
		if b.free[k].first() >= 0 {
			return 1 << k
		}
	}
	return 0
}
