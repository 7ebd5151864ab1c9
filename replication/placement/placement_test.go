package placement

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/drawn"
)

// cluster is a map of nodes of these weights, with ids from 1 on.
func cluster(weights ...int) *clustermap.Map {
	m := &clustermap.Map{Seed: clustermap.Seed{1, 2, 3}, Group: 16}
	for i, w := range weights {
		m.Nodes = append(m.Nodes, clustermap.Node{ID: uint64(i + 1), Name: fmt.Sprint(i), Addr: fmt.Sprint(i), Weight: w})
	}
	return m
}

func equal(n int) []int {
	w := make([]int, n)
	for i := range w {
		w[i] = 1
	}
	return w
}

// What is computed here is part of what is stored: another version of this package, on whatever machine, must find
// it. The vectors agree with a second implementation, in Python with numbers of any length.
func TestGoldenVectors(t *testing.T) {
	t.Parallel()
	for _, v := range []struct{ h, want uint64 }{
		{0, 64 << fraction}, {1, 64 << fraction}, {2, 63 << fraction}, {3, 68626059478533},
		{1 << 62, 2 << fraction}, {1 << 63, 1 << fraction}, {3 << 62, 456338556421}, {math.MaxUint64, 1},
		{0x0123456789abcdef, 8591343321794},
	} {
		assert.Equal(t, v.want, nlog2(v.h), "nlog2(%#x)", v.h)
	}
	assert.Equal(t, uint64(0xe220a8397b1dcdaf), mix(0x9e3779b97f4a7c15), "the first of SplitMix64 from 0")
	tab := New(cluster(1, 2, 1))
	space := tab.Space("tenant", "name")
	assert.Equal(t, Space(0xfb252652c975738f), space)
	var got []string
	for i := range 8 {
		s := tab.Slot(space, Stored(skep.Salt([]string{"", "salt"}[i%2]), skep.KeyOf([]byte{byte(i)})))
		got = append(got, fmt.Sprintf("%04x:%d", s, tab.Node(s)))
	}
	assert.Equal(t, []string{"a6a1:1", "2531:0", "a819:1", "f190:2", "6bce:1", "3ace:0", "0436:2", "ca47:2"}, got)
	h := uint64(14695981039346656037) // FNV-1a of all owners
	for s := range Slots {
		h = (h ^ uint64(tab.Node(uint16(s)))) * 1099511628211
	}
	assert.Equal(t, uint64(0x3537ea067f30f38c), h, "the whole table")
}

// The straight lines between the table's entries are this close to the logarithm, and the function never grows.
func TestTheLogarithm(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(drawn.Seed(t), 0))
	worst := 0.0
	for range 200_000 {
		h := rnd.Uint64() >> rnd.IntN(64)
		if h == 0 {
			continue
		}
		got := float64(nlog2(h)) / (1 << fraction)
		worst = max(worst, math.Abs(got-(64-math.Log2(float64(h)))))
		if nlog2(h) > nlog2(h-1) {
			require.Failf(t, "it grows", "at %d", h)
		}
	}
	t.Logf("off by at most %.2g", worst)
	require.Less(t, worst, 2e-7)
}

// blocks is how many of n blocks, in groups of g behind random anchors, each node gets.
func blocks(m *clustermap.Map, n, g int) (of []int) {
	t := New(m)
	of = make([]int, len(m.Nodes))
	space := t.Space("t", "n")
	for i := range n / g {
		of[t.Node(t.Slot(space, skep.KeyOf(binary.LittleEndian.AppendUint64(nil, uint64(i)))))] += g
	}
	return of
}

func TestBlocksAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5, 10, 30, 100} {
		most := 0
		for _, b := range blocks(cluster(equal(n)...), 1_000_000, 16) {
			most = max(most, b)
		}
		busiest := float64(most) * float64(n) / 1_000_000
		t.Logf("%3d nodes: the busiest has %.3f of the mean", n, busiest)
		require.LessOrEqual(t, busiest, 1.1+float64(n/30)*0.05, "%d nodes", n)
	}
}

func TestWeightsAreKept(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]int{{1, 2, 4}, {1, 2, 4, 1, 2}, {100, 100, 50}, {1, clustermap.MaxWeight}, {1}} {
		sum := 0
		for _, w := range weights {
			sum += w
		}
		for i, b := range blocks(cluster(weights...), 1_000_000, 16) {
			share := float64(weights[i]) / float64(sum)
			require.InDelta(t, share, float64(b)/1_000_000, 0.1*share+0.001, "node %d of %v", i, weights)
		}
	}
}

// A node that is added takes its share and nothing moves between the others; one that goes gives its own and no
// other's.
func TestLittleMoves(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 4, 5, 10, 30} {
		before, after := New(cluster(equal(n-1)...)), New(cluster(equal(n)...))
		moved := 0
		for s := range Slots {
			if a, b := before.Node(uint16(s)), after.Node(uint16(s)); a != b {
				moved++
				if b != n-1 {
					require.Failf(t, "moved between others", "slot %d from %d to %d", s, a, b)
				}
			}
		}
		share := float64(moved) * float64(n) / Slots
		require.LessOrEqual(t, share, 1.05, "the %dth node", n)
	}
}

// The order of a map's nodes, their names and their addresses place nothing.
func TestOnlyIDsAndWeightsPlace(t *testing.T) {
	t.Parallel()
	m := cluster(1, 3, 2, 5)
	other := cluster(1, 3, 2, 5)
	for i := range other.Nodes {
		other.Nodes[i] = m.Nodes[len(m.Nodes)-1-i]
		other.Nodes[i].Name += "x"
	}
	a, b := New(m), New(other)
	for s := range Slots {
		if x, y := m.Nodes[a.Node(uint16(s))].ID, other.Nodes[b.Node(uint16(s))].ID; x != y {
			require.Failf(t, "another node", "slot %d: %d and %d", s, x, y)
		}
	}
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		b.Run(fmt.Sprintf("%d nodes", n), func(b *testing.B) {
			m := cluster(equal(n)...)
			for b.Loop() {
				New(m)
			}
		})
	}
}

// A node that is out gets nothing, and what it had goes as if it were not there.
func TestNothingIsPlacedOnANodeThatIsOut(t *testing.T) {
	t.Parallel()
	m := &clustermap.Map{Seed: clustermap.Seed{1}, Nodes: []clustermap.Node{
		{ID: 1, Weight: 1, State: clustermap.Out}, {ID: 2, Weight: 1}, {ID: 3, Weight: 3}}}
	out := New(m)
	m.Nodes = m.Nodes[1:]
	gone := New(m)
	for slot := range Slots {
		require.Equal(t, gone.Node(uint16(slot))+1, out.Node(uint16(slot)))
	}
}

// Replicas are on different nodes, the first of them where a block without replicas is, and in different domains as far
// as there are some: zones first, then racks. A node that is added moves nothing between the others.
func TestReplicasAreApart(t *testing.T) {
	t.Parallel()
	in := func(domains ...[]string) *clustermap.Map {
		m := cluster(equal(len(domains))...)
		for i := range m.Nodes {
			m.Nodes[i].Domain = domains[i]
		}
		return m
	}
	for _, c := range []struct {
		name     string
		m        *clustermap.Map
		replicas int
		copies   int
		common   int // domains that two nodes of a slot share at most
	}{
		{"no domains", cluster(equal(5)...), 3, 3, 0},
		{"more than nodes", cluster(equal(2)...), 4, 2, 0},
		{"zones", in([]string{"x", "1"}, []string{"x", "2"}, []string{"y", "1"}, []string{"y", "2"}), 2, 2, 0},
		{"racks of one zone", in([]string{"x", "1"}, []string{"x", "1"}, []string{"x", "2"}), 2, 2, 1},
		{"more than zones", in([]string{"x", "1"}, []string{"x", "2"}, []string{"y", "1"}, []string{"y", "1"}), 3, 3, 1},
	} {
		alone := New(c.m)
		c.m.Replicas = c.replicas
		table := New(c.m)
		require.Equal(t, c.copies, table.Copies(), c.name)
		for slot := range Slots {
			nodes := table.Nodes(uint16(slot))
			if len(nodes) != c.copies || int(nodes[0]) != alone.Node(uint16(slot)) {
				require.Failf(t, c.name, "slot %d: %v", slot, nodes)
			}
			for i, a := range nodes {
				for _, b := range nodes[:i] {
					if a == b || shared(c.m.Nodes[a].Domain, c.m.Nodes[b].Domain) > c.common {
						require.Failf(t, c.name, "slot %d: nodes %d and %d", slot, a, b)
					}
				}
			}
		}
	}
	before, after := cluster(equal(4)...), cluster(equal(5)...)
	before.Replicas, after.Replicas = 2, 2
	a, b := New(before), New(after)
	for slot := range Slots {
		kept := 0
		for _, n := range b.Nodes(uint16(slot)) {
			if n != 4 && !slices.Contains(a.Nodes(uint16(slot)), n) {
				require.Failf(t, "moved between others", "slot %d: %v and %v", slot, a.Nodes(uint16(slot)), b.Nodes(uint16(slot)))
			}
			if n != 4 {
				kept++
			}
		}
		require.GreaterOrEqual(t, kept, 1)
	}
}
