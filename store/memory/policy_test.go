package memory

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEffectivenessIsEquationSix(t *testing.T) {
	t.Parallel()
	m := CostModel{Base: 100 * time.Microsecond, BytesPerSecond: 1e9}
	assert.Equal(t, 1100*time.Microsecond, m.Cost(1e6))
	for _, c := range []struct {
		uses  uint32
		bytes int64
		want  float64
	}{
		{1, 1e6, 1.1e-9},
		{3, 1e6, 3.3e-9},
		{1, 1e4, 11e-9}, // small values cost a seek each: worth more per byte
	} {
		assert.InEpsilon(t, c.want, Effectiveness(c.uses, m.Cost(c.bytes), c.bytes), 1e-9)
	}
}

// slowRanking is the policy as the papers write it: a list and a search.
type slowRanking struct {
	policy    Policy
	inflation float64
	clock     uint64
	items     map[int]*slowItem
}

type slowItem struct {
	uses  uint32
	cost  time.Duration
	bytes int64
	score float64
	last  uint64
}

func (s *slowRanking) use(i int) {
	it := s.items[i]
	s.clock++
	it.last = s.clock
	it.score = s.inflation + float64(it.uses)*it.cost.Seconds()/float64(it.bytes)
}

func (s *slowRanking) evict() int {
	victim := -1
	for i, it := range s.items {
		if victim < 0 {
			victim = i
			continue
		}
		v := s.items[victim]
		if s.policy == LRU && it.last < v.last ||
			s.policy == CostAware && (it.score < v.score || it.score == v.score && it.last < v.last) {
			victim = i
		}
	}
	s.inflation = max(s.inflation, s.items[victim].score)
	delete(s.items, victim)
	return victim
}

func TestRankingAgreesWithTheSlowOne(t *testing.T) {
	t.Parallel()
	for _, policy := range []Policy{CostAware, LRU} {
		rng := newRand(t)
		slow := slowRanking{policy: policy, items: map[int]*slowItem{}}
		fast := ranking{policy: policy}
		nodes := map[int]*node{}
		for range 30_000 {
			i := rng.IntN(300)
			switch n := nodes[i]; {
			case n == nil:
				n = &node{uses: uint32(rng.IntN(3)), cost: time.Duration(1 + rng.IntN(4)), bytes: int64(1 + rng.IntN(4))}
				slow.items[i] = &slowItem{uses: max(n.uses, 1), cost: n.cost, bytes: n.bytes}
				nodes[i] = n
				slow.use(i)
				fast.admit(n)
				fast.file(n)
			case rng.IntN(10) == 0: // removed, and not for room
				delete(slow.items, i)
				delete(nodes, i)
				fast.unfile(n)
			case rng.IntN(10) == 0: // out of the order for a while and back
				fast.unfile(n)
				fast.file(n)
			default:
				slow.items[i].uses++
				slow.use(i)
				fast.touch(n)
			}
			for len(nodes) > 200 || len(nodes) > 0 && rng.IntN(20) == 0 {
				want := slow.evict()
				got := fast.coldest()
				require.Same(t, nodes[want], got)
				fast.unfile(got)
				fast.evicted(got)
				delete(nodes, want)
			}
			require.Len(t, fast.heap, len(nodes))
		}
		for len(nodes) > 0 {
			want := slow.evict()
			require.Same(t, nodes[want], fast.coldest())
			fast.unfile(nodes[want])
			fast.evicted(nodes[want])
			delete(nodes, want)
		}
		require.Nil(t, fast.coldest())
	}
}

// Without aging, eq. 6 would keep for ever what was popular once.
func TestInflationLetsThePastGo(t *testing.T) {
	t.Parallel()
	r := ranking{}
	star := &node{cost: time.Second, bytes: 1}
	r.admit(star)
	for range 99 {
		r.touch(star)
	}
	r.file(star)
	others := 0
	for ; star.pos >= 0; others++ {
		n := &node{cost: time.Second, bytes: 1}
		r.admit(n)
		r.file(n)
		cold := r.coldest()
		r.unfile(cold)
		r.evicted(cold)
		require.Less(t, others, 1000, "never evicted")
	}
	assert.Equal(t, 100, others, "a score of 100 outlives 99 that were used once, each raising L by one")
}

func BenchmarkRanking(b *testing.B) {
	for _, size := range []int{1e3, 1e6} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			r := ranking{}
			rng := seededRand(7)
			nodes := make([]*node, size)
			for i := range nodes {
				nodes[i] = &node{cost: time.Duration(1 + rng.IntN(1000)), bytes: 4096}
				r.admit(nodes[i])
				r.file(nodes[i])
			}
			b.ReportAllocs()
			for b.Loop() { // four hits, then one eviction and one arrival
				for range 4 {
					r.touch(nodes[rng.IntN(size)])
				}
				n := r.coldest()
				r.unfile(n)
				r.evicted(n)
				n.uses = 1
				r.admit(n)
				r.file(n)
			}
		})
	}
}
