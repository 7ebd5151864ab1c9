package coact

import (
	"container/heap"
	"container/list"
	"fmt"

	"github.com/skepkv/skep"
)

// Heat says which clusters are kept in memory: those with the greatest worth, eq. 6,
//
//	S(C) = f · (T_base + s·T_transfer) / s
//
// time saved each step per entry of memory. f goes up by one when a cluster is activated
// and down by Decay when it is not, in memory or outside, and never below 0. The paper's
// Decay is 1, with which the f of whatever is activated in less than half of the steps
// falls to 0 and stays there; small ones remember longer.
type Heat struct {
	o     HeatOptions
	size  []int32
	freq  []float64
	base  []float64 // eq. 6 without f
	seen  []int64   // step up to which freq has decayed
	step  int64
	in    []bool
	used  int
	cache worthHeap // in memory, least worth first
}

// HeatOptions are those of NewHeat.
type HeatOptions struct {
	Capacity int     // entries
	Base     float64 // T_base, seconds
	Transfer float64 // T_transfer, seconds an entry
	Decay    float64 // 0: 1, the paper's
}

// NewHeat makes one for clusters of the given sizes, with f as first (a profile's counts,
// say; nil: all 0), and takes in what is worth most.
func NewHeat(sizes []int, first []float64, o HeatOptions) (*Heat, error) {
	const op = "heat"
	if o.Capacity < 0 || o.Base < 0 || o.Transfer < 0 || o.Decay < 0 {
		return nil, skep.Invalidf(op, "capacity, times and decay", fmt.Sprintf("%+v", o), "0 or more")
	}
	if first != nil && len(first) != len(sizes) {
		return nil, skep.Invalidf(op, "first frequencies", len(first), len(sizes))
	}
	if o.Decay == 0 {
		o.Decay = 1
	}
	n := len(sizes)
	h := &Heat{o: o, size: make([]int32, n), freq: make([]float64, n), base: make([]float64, n), seen: make([]int64, n),
		in: make([]bool, n)}
	h.cache.h = h
	order := worthHeap{h: h}
	for c, s := range sizes {
		if s < 1 {
			return nil, skep.Invalidf(op, "cluster size", s, "1 or more")
		}
		h.size[c] = int32(s)
		h.base[c] = (o.Base + float64(s)*o.Transfer) / float64(s)
		if first != nil {
			h.freq[c] = max(first[c], 0)
		}
		order.ids = append(order.ids, c)
	}
	for _, c := range order.sorted() {
		h.offer(c)
	}
	return h, nil
}

// Frequency is f of a cluster now.
func (h *Heat) Frequency(c int) float64 {
	return max(h.freq[c]-h.o.Decay*float64(h.step-h.seen[c]), 0)
}

// worth is eq. 6 at the present step.
func (h *Heat) worth(c int) float64 { return h.Frequency(c) * h.base[c] }

// Has reports whether a cluster is in memory.
func (h *Heat) Has(c int) bool { return h.in[c] }

// Used is how many entries are in memory.
func (h *Heat) Used() int { return h.used }

// Step says which clusters a step activated, each named once, and returns those of them
// that were in memory. Clusters that are worth more than what is in memory, or for which
// there is room, go in; they had to be read anyway.
func (h *Heat) Step(activated []int) (hits []int) {
	h.step++
	for _, c := range activated {
		// Everything decayed by one step; these did not, and rise.
		f := max(h.freq[c]-h.o.Decay*float64(h.step-1-h.seen[c]), 0)
		h.freq[c], h.seen[c] = f+1, h.step
		if h.in[c] {
			hits = append(hits, c)
		}
	}
	// Decay moves all in the cache by the same amount in f but not in worth, and stops at
	// 0: the heap's order may have changed anywhere.
	heap.Init(&h.cache)
	for _, c := range activated {
		if !h.in[c] {
			h.offer(c)
		}
	}
	return hits
}

// offer takes c in if it fits in place of what is worth less.
func (h *Heat) offer(c int) {
	need := int(h.size[c])
	if need > h.o.Capacity || h.worth(c) <= 0 {
		return
	}
	var out []int
	free := h.o.Capacity - h.used
	for free < need && len(h.cache.ids) > 0 && h.worth(h.cache.ids[0]) < h.worth(c) {
		v := heap.Pop(&h.cache).(int)
		out = append(out, v)
		free += int(h.size[v])
	}
	if free < need {
		for _, v := range out {
			heap.Push(&h.cache, v)
		}
		return
	}
	for _, v := range out {
		h.in[v] = false
		h.used -= int(h.size[v])
	}
	h.in[c] = true
	h.used += need
	heap.Push(&h.cache, c)
}

// worthHeap orders clusters by worth, least first, and by number among equals.
type worthHeap struct {
	h   *Heat
	ids []int
}

func (w *worthHeap) Len() int { return len(w.ids) }
func (w *worthHeap) Less(i, j int) bool {
	a, b := w.h.worth(w.ids[i]), w.h.worth(w.ids[j])
	return a < b || a == b && w.ids[i] > w.ids[j]
}
func (w *worthHeap) Swap(i, j int) { w.ids[i], w.ids[j] = w.ids[j], w.ids[i] }
func (w *worthHeap) Push(x any)    { w.ids = append(w.ids, x.(int)) }
func (w *worthHeap) Pop() any {
	n := len(w.ids) - 1
	c := w.ids[n]
	w.ids = w.ids[:n]
	return c
}

// sorted empties the heap, most worth first.
func (w *worthHeap) sorted() []int {
	heap.Init(w)
	out := make([]int, len(w.ids))
	for i := len(out) - 1; i >= 0; i-- {
		out[i] = heap.Pop(w).(int)
	}
	return out
}

// LRU keeps the clusters used last, to compare Heat with.
type LRU struct {
	capacity, used int
	size           []int
	order          *list.List // most recent first
	at             map[int]*list.Element
}

// NewLRU makes an empty one for clusters of the given sizes and capacity entries.
func NewLRU(sizes []int, capacity int) *LRU {
	return &LRU{capacity: capacity, size: sizes, order: list.New(), at: map[int]*list.Element{}}
}

// Has reports whether a cluster is in memory.
func (l *LRU) Has(c int) bool { return l.at[c] != nil }

// Step says which clusters a step activated and returns those that were in memory.
func (l *LRU) Step(activated []int) (hits []int) {
	for _, c := range activated {
		if el := l.at[c]; el != nil {
			hits = append(hits, c)
			l.order.MoveToFront(el)
		}
	}
	for _, c := range activated {
		if l.at[c] != nil || l.size[c] > l.capacity {
			continue
		}
		l.at[c] = l.order.PushFront(c)
		l.used += l.size[c]
		for l.used > l.capacity {
			last := l.order.Back()
			v := l.order.Remove(last).(int)
			delete(l.at, v)
			l.used -= l.size[v]
		}
	}
	return hits
}
