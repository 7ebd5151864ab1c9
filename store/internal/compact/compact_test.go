package compact

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/tools/drawn"
)

// Chains come out in the order they are read, forks after the longer branch, strangers and
// cycles at the end; nothing is lost.
func TestOrderChains(t *testing.T) {
	t.Parallel()
	fp := func(n int) (f index.Fingerprint) { f[0], f[1] = byte(n), byte(n>>8); return f }
	item := func(n, parent int) Item { return Item{fp(n), fp(parent), parent > 0} }
	for _, tt := range []struct {
		name string
		in   []Item
		want []int
	}{
		{"in order already", []Item{item(1, 0), item(2, 1), item(3, 2)}, []int{0, 1, 2}},
		{"backwards", []Item{item(3, 2), item(2, 1), item(1, 0)}, []int{2, 1, 0}},
		{"two in turns", []Item{item(1, 0), item(11, 0), item(2, 1), item(12, 11)}, []int{0, 2, 1, 3}},
		{"a fork", []Item{item(1, 0), item(2, 1), item(3, 1), item(4, 3), item(5, 4)}, []int{0, 2, 3, 4, 1}},
		{"a parent elsewhere", []Item{item(7, 6), item(8, 7)}, []int{0, 1}},
		{"its own parent", []Item{item(7, 7), item(8, 7)}, []int{0, 1}},
		{"a cycle", []Item{item(1, 2), item(2, 1), item(3, 0)}, []int{2, 0, 1}},
		{"none", nil, []int{}},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, Order(tt.in)) })
	}
	rng := rand.New(rand.NewPCG(drawn.Seed(t), 1))
	for range 200 {
		list := make([]Item, rng.IntN(60))
		for i := range list {
			list[i] = item(i+1, rng.IntN(len(list)+1))
		}
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		order := Order(list)
		seen := slices.Clone(order)
		slices.Sort(seen)
		for i, v := range seen {
			require.Equal(t, i, v)
		}
	}
}

// What compaction takes up, and in which order.
func TestCompactChoice(t *testing.T) {
	t.Parallel()
	g := func(num uint32, live int64, age float64, links, breaks int) Group {
		return Group{Num: num, Live: live, Capacity: 100, Age: age, Links: links, Breaks: breaks}
	}
	nums := func(list []Group) (out []uint32) {
		for _, c := range list {
			out = append(out, c.Num)
		}
		return out
	}
	for _, tt := range []struct {
		name string
		rule Choice
		in   []Group
		want []uint32
	}{
		{"full and in order: nothing", Asked, []Group{g(1, 100, 1, 50, 2), g(2, 98, 1, 50, 3)}, nil},
		{"Emptiest first", Asked, []Group{g(1, 80, 1, 0, 0), g(2, 20, 1, 0, 0), g(3, 50, 1, 0, 0)}, []uint32{2, 3, 1}},
		{"of equals the older", Asked, []Group{g(1, 40, 0.1, 0, 0), g(2, 40, 2, 0, 0)}, []uint32{2, 1}},
		{"one with holes frees nothing", Asked, []Group{g(1, 60, 1, 0, 0), g(2, 100, 1, 0, 0)}, nil},
		{"an empty one does", Asked, []Group{g(1, 0, 1, 0, 0)}, []uint32{1}},
		{"scattered chains are worth it by themselves", Asked, []Group{g(1, 100, 1, 50, 40)}, []uint32{1}},
		{"but not Unasked", Unasked, []Group{g(1, 100, 1, 50, 40), g(2, 100, 1, 50, 50)}, nil},
		{"small holes neither", Unasked,
			[]Group{g(1, 70, 1, 0, 0), g(2, 70, 1, 0, 0), g(3, 70, 1, 0, 0), g(4, 70, 1, 0, 0)}, nil},
		{"large ones are", Unasked, []Group{g(1, 40, 1, 0, 0), g(2, 50, 1, 0, 0), g(3, 95, 1, 0, 0)}, []uint32{1, 2}},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, nums(tt.rule.Choose(tt.in))) })
	}
}

func TestEmptiest(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		used []float64
		want int
	}{{nil, -1}, {[]float64{0.1}, -1}, {[]float64{0.5, 0.55}, -1}, {[]float64{0.9, 0.2, 0.5}, 1}, {[]float64{0, 1}, 0}} {
		require.Equal(t, tt.want, Emptiest(tt.used))
	}
}
