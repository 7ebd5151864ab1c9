package routing

// hot counts how many requests pass through a block, of late. It holds a bounded number of counters.
type hot struct {
	counts map[uint64]int
	total  int
}

// Requests are counted until there are so many; then all counts are halved, and those of one go.
const halvedAt = 4096

// A block is hot when so many requests passed through it, and more than an engine's share of all.
const leastHot = 32

func newHot() hot { return hot{counts: map[uint64]int{}} }

// anchor is where the first block of a chain is that is not hot, looking at ever fewer of them: the 1st, 2nd, 4th,
// 8th, …; or the last one that was looked at.
func (h *hot) anchor(chain []uint64, engines int) (last int) {
	h.total++
	for at := 1; at <= len(chain); at *= 2 {
		last = at - 1
		h.counts[chain[last]]++
		if n := h.counts[chain[last]]; n < leastHot || n*engines <= h.total {
			break
		}
	}
	if h.total >= halvedAt {
		h.halve()
	}
	return last
}

func (h *hot) halve() {
	h.total /= 2
	for k, n := range h.counts {
		if n /= 2; n == 0 {
			delete(h.counts, k)
		} else {
			h.counts[k] = n
		}
	}
}
