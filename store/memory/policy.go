package memory

import (
	"cmp"
	"math"
	"time"
)

// Policy orders entries for eviction.
type Policy uint8

const (
	// CostAware evicts the entry with the least cost-effectiveness (SWARM eq. 6),
	//
	//	S = f · (T_base + s · T_transfer) / s
	//
	// f uses since it was cached, s bytes, plus the inflation L of GreedyDual: L
	// rises to the score of whatever is evicted, and a score is S + L as of the
	// entry's last use, so that what was popular once does not stay for ever.
	// Among equal scores the least recently used goes first.
	CostAware Policy = iota
	// LRU evicts exactly the least recently used entry.
	LRU
)

// CostModel estimates what bringing an entry back costs, for entries whose owner
// does not say. The defaults are those of one NVMe drive.
type CostModel struct {
	Base           time.Duration // T_base: addressing, whatever the size. Default 80 µs
	BytesPerSecond float64       // 1 / T_transfer. Default 3.5e9
}

func (m *CostModel) ensureDefaults() {
	if m.Base == 0 {
		m.Base = 80 * time.Microsecond
	}
	if m.BytesPerSecond == 0 {
		m.BytesPerSecond = 3.5e9
	}
}

// Cost returns T_base + bytes · T_transfer.
func (m CostModel) Cost(bytes int64) time.Duration {
	return m.Base + time.Duration(float64(bytes)/m.BytesPerSecond*float64(time.Second))
}

// Effectiveness returns eq. 6 in seconds saved per byte held: uses × cost ÷ bytes.
func Effectiveness(uses uint32, cost time.Duration, bytes int64) float64 {
	return float64(uses) * cost.Seconds() / float64(bytes)
}

// rank orders entries: the smaller one is evicted first. Sequence numbers are
// unique, so the order is total and every run of it is the same.
type rank struct {
	score float64
	seq   uint64 // of the last use
}

func (r rank) less(o rank) bool {
	return r.score < o.score || r.score == o.score && r.seq < o.seq
}

func (r rank) compare(o rank) int {
	return cmp.Or(cmp.Compare(r.score, o.score), cmp.Compare(r.seq, o.seq))
}

// node is what the ranking knows of an entry.
type node struct {
	uses  uint32
	cost  time.Duration
	bytes int64

	rank  rank
	filed rank // the rank under which the heap holds it; never more than rank
	pos   int  // in the heap, or −1
	entry *entry
}

// ranking is the eviction order: a min-heap that a use does not touch. Uses only
// ever raise a rank, so it is enough to raise the one in the node and to sift the
// filed one down when it surfaces; a hit then costs a few stores, not log n swaps.
// It is pure: no memory, no locks, no clock but its own count of uses.
type ranking struct {
	policy    Policy
	inflation float64 // L
	clock     uint64
	heap      []*node
}

// admit ranks a new node as of now, without filing it. uses is at least 1.
func (r *ranking) admit(n *node) {
	n.pos = -1
	n.uses = max(n.uses, 1)
	r.rerank(n)
}

// touch counts a use.
func (r *ranking) touch(n *node) {
	if n.uses < math.MaxUint32 {
		n.uses++
	}
	r.rerank(n)
}

func (r *ranking) rerank(n *node) {
	r.clock++
	n.rank.seq = r.clock
	if r.policy == CostAware {
		n.rank.score = r.inflation + Effectiveness(n.uses, n.cost, n.bytes)
	}
}

// evicted records that n left to make room, which ages all that stay.
func (r *ranking) evicted(n *node) {
	if r.policy == CostAware {
		r.inflation = max(r.inflation, n.rank.score)
	}
}

// worth returns what losing n costs, to compare sets of entries that would leave
// out of order: seconds under CostAware, recency under LRU.
func (r *ranking) worth(n *node) float64 {
	if r.policy == CostAware {
		return max(n.rank.score-r.inflation, 0) * float64(n.bytes)
	}
	return float64(n.rank.seq)
}

// file puts n, which must not be filed, among the candidates for eviction.
func (r *ranking) file(n *node) {
	n.filed = n.rank
	n.pos = len(r.heap)
	r.heap = append(r.heap, n)
	r.up(n.pos)
}

// unfile takes n out, if it is in.
func (r *ranking) unfile(n *node) {
	i := n.pos
	if i < 0 {
		return
	}
	last := len(r.heap) - 1
	r.swap(i, last)
	r.heap[last] = nil
	r.heap = r.heap[:last]
	n.pos = -1
	if i < last {
		r.down(i)
		r.up(i)
	}
}

// coldest returns the candidate with the least rank, or nil.
func (r *ranking) coldest() *node {
	for len(r.heap) > 0 {
		n := r.heap[0]
		if n.filed == n.rank {
			return n
		}
		n.filed = n.rank
		r.down(0)
	}
	return nil
}

func (r *ranking) swap(i, j int) {
	h := r.heap
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (r *ranking) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !r.heap[i].filed.less(r.heap[parent].filed) {
			return
		}
		r.swap(i, parent)
		i = parent
	}
}

func (r *ranking) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(r.heap); c++ {
			if r.heap[c].filed.less(r.heap[least].filed) {
				least = c
			}
		}
		if least == i {
			return
		}
		r.swap(i, least)
		i = least
	}
}
