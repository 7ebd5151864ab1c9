package bucket

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Two nodes and a bucket that fails now and then: chains are put, evicted, found, loaded, deleted and purged at
// random, and nodes lose all they have. Whatever happens no byte is wrong (load looks), and what was deleted at both
// nodes is found at none until it is put again.
func TestStorm(t *testing.T) {
	t.Parallel()
	for range 20 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			newStorm(t, seed).blow(200)
		})
	}
}

type storm struct {
	*testing.T
	rand  *rand.Rand
	shelf *shelf
	nodes []*node
	keys  [][]skep.Key
	gone  map[skep.Key]bool // deleted at all nodes, and not put since
	did   []string
}

func newStorm(t *testing.T, seed uint64) *storm {
	x := &storm{T: t, rand: rand.New(rand.NewPCG(seed, 1)), shelf: newShelf(), gone: map[skep.Key]bool{}}
	for i := range 4 {
		x.keys = append(x.keys, chain(i, 1+x.rand.IntN(30)))
	}
	for range 2 {
		x.nodes = append(x.nodes, newNode(t, x.options(), 0))
	}
	return x
}

func (x *storm) options() Options {
	o := options(x.shelf)
	o.ObjectBytes = int64(1+x.rand.IntN(12)) * blockSize
	return o
}

func (x *storm) blow(steps int) {
	for range steps {
		n := x.nodes[x.rand.IntN(len(x.nodes))]
		c := x.keys[x.rand.IntN(len(x.keys))]
		do := x.rand.IntN(12)
		x.did = append(x.did, fmt.Sprintf("%d of %d blocks", do, len(c)))
		switch do {
		case 0, 1:
			n.put(c)
			for _, k := range c {
				delete(x.gone, k)
			}
		case 2, 3:
			_ = n.turn()
		case 4:
			n.evict()
		case 5, 6:
			n.load(c)
		case 7:
			some := c[x.rand.IntN(len(c)):]
			x.remove(some, func(n *node) error { _, err := n.Delete(x.Context(), n.scope(), some); return err })
		case 8:
			x.remove(nil, func(n *node) error { return n.Purge(x.Context(), skep.Purge{Tenant: "t"}) })
		case 9: // its directory is lost
			i := x.rand.IntN(len(x.nodes))
			x.shelf.set(func() { x.shelf.away = false })
			x.nodes[i] = newNode(x.T, x.options(), 0)
		case 10:
			away := x.rand.IntN(2) == 0
			x.shelf.set(func() { x.shelf.away = away })
		case 11:
			lost := x.rand.IntN(2) == 0
			x.shelf.set(func() { x.shelf.lost = lost })
		}
		for _, n := range x.nodes {
			for _, c := range x.keys {
				for i, k := range c[:n.find(c)] {
					require.False(x, x.gone[k], "block %d of %d was deleted: %v", i, len(c), x.did)
				}
			}
		}
	}
}

// remove deletes at both nodes, as a cluster does, and both at one time. What fails is in doubt; nil is everything.
func (x *storm) remove(keys []skep.Key, at func(n *node) error) {
	failed := false
	for _, n := range x.nodes {
		failed = at(n) != nil || failed
	}
	if failed {
		return
	}
	if keys == nil {
		for _, c := range x.keys {
			keys = append(keys, c...)
		}
	}
	for _, k := range keys {
		x.gone[k] = true
	}
}
