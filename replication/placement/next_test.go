package placement

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/drawn"
)

// Whatever is changed of a map, the next table is what is computed from the map alone.
func TestTheNextTableIsThatOfTheMap(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	last := uint64(0)
	node := func() clustermap.Node {
		last++
		n := clustermap.Node{ID: last, Name: fmt.Sprint(last), Weight: 1 + rng.IntN(3)}
		if rng.IntN(4) > 0 {
			n.Domain = []string{fmt.Sprint("z", rng.IntN(3)), fmt.Sprint("r", rng.IntN(6))}
		}
		return n
	}
	for range 3 {
		m := &clustermap.Map{Seed: clustermap.Seed{byte(rng.Uint32())}, Group: 16, Replicas: 1 + rng.IntN(4)}
		for range 2 + rng.IntN(24) {
			m.Nodes = append(m.Nodes, node())
		}
		table := New(m)
		for range 4 {
			next := *m
			next.Nodes = nil
			for _, n := range m.Nodes {
				switch rng.IntN(12) {
				case 0: // it is removed
					continue
				case 1:
					n.State = []clustermap.State{clustermap.Up, clustermap.Out, clustermap.Down}[rng.IntN(3)]
				case 2:
					n.Weight = 1 + rng.IntN(3)
				case 3:
					n.Domain = nil
				}
				next.Nodes = append(next.Nodes, n)
			}
			if rng.IntN(2) == 0 || len(next.Nodes) == 0 {
				next.Nodes = append(next.Nodes, node())
			}
			rng.Shuffle(len(next.Nodes), func(i, j int) { next.Nodes[i], next.Nodes[j] = next.Nodes[j], next.Nodes[i] })
			got := table.Next(m, &next)
			require.Equal(t, New(&next), got, "seed %d", seed)
			m, table = &next, got
		}
	}
}

func BenchmarkOneOfAThousandNodesIsGone(b *testing.B) {
	m := &clustermap.Map{Seed: clustermap.Seed{1}, Group: 16, Replicas: 2}
	for i := range 1000 {
		m.Nodes = append(m.Nodes, clustermap.Node{ID: uint64(i + 1), Name: fmt.Sprint(i), Weight: 1,
			Domain: []string{fmt.Sprint("z", i%4), fmt.Sprint("r", i%50)}})
	}
	next := *m
	next.Nodes = append(append([]clustermap.Node{}, m.Nodes[:500]...), m.Nodes[501:]...)
	table := New(m)
	b.Run("anew", func(b *testing.B) {
		for b.Loop() {
			New(&next)
		}
	})
	b.Run("from the last", func(b *testing.B) {
		for b.Loop() {
			table.Next(m, &next)
		}
	})
}
