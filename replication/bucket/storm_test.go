package bucket

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// Two nodes and a bucket that fails: it is away, answers no more, refuses single objects, and what is put in it comes
// later. Chains are put, evicted, found, loaded, deleted and purged at random; nodes lose all they have; one is killed,
// and comes back as a node of a cluster does: it loses what was deleted meanwhile. Whatever happens no byte is wrong
// (load looks), what was deleted at all nodes that run is found at none until it is put again, and what is durable is
// there. SKEP_STORM_SEED=7 has one seed, SKEP_STORM_SEEDS=500 so many.
func TestStorm(t *testing.T) {
	t.Parallel()
	seeds := make([]uint64, 20)
	if n, err := strconv.Atoi(os.Getenv("SKEP_STORM_SEEDS")); err == nil {
		seeds = make([]uint64, n)
	}
	for i := range seeds {
		seeds[i] = rand.Uint64()
	}
	if n, err := strconv.ParseUint(os.Getenv("SKEP_STORM_SEED"), 10, 64); err == nil {
		seeds = []uint64{n}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			newStorm(t, seed).blow(250)
		})
	}
}

type storm struct {
	*testing.T
	rand  *rand.Rand
	shelf *shelf
	nodes []*member
	keys  [][]skep.Key
	gone  map[skep.Key]bool // deleted at all nodes that run, and not put since
	did   []string
}

// member is a node of a cluster.
type member struct {
	*node          // nil: it does not run
	own            kept
	serves         atomic.Bool
	missed         bool // others have deleted without it
	durable, cache skep.NamespaceID
	has            int // blocks of the durable chain
}

// kept is drives that outlive who uses them.
type kept struct{ *memstore.Store }

func (kept) Close() error { return nil }

func newStorm(t *testing.T, seed uint64) *storm {
	x := &storm{T: t, rand: rand.New(rand.NewPCG(seed, 1)), shelf: newShelf(), gone: map[skep.Key]bool{}}
	for i := range 4 {
		x.keys = append(x.keys, chain(i, 1+x.rand.IntN(30)))
	}
	for range 2 {
		m := &member{}
		x.nodes = append(x.nodes, m)
		x.begin(m, true)
	}
	t.Cleanup(func() {
		for _, m := range x.nodes {
			x.kill(m)
		}
	})
	return x
}

// begin has a node run, with the drives that it had, or empty ones.
func (x *storm) begin(m *member, empty bool) {
	if empty {
		m.own, m.has, m.missed = kept{memstore.New(memstore.Options{PoisonReleased: true})}, 0, false
	}
	o := options(x.shelf)
	o.ObjectBytes = int64(1+x.rand.IntN(12)) * blockSize
	o.Serves = m.serves.Load
	s, err := New(m.own, o)
	require.NoError(x, err)
	m.node = &node{Store: s, t: x.T, own: m.own.Store}
	_ = m.turn() // before it knows what it missed
	if m.missed {
		m.Relearn()
		require.NoError(x, m.LoseNamespace(x.Context(), m.cache))
	}
	m.missed = false
	m.serves.Store(true)
	m.open("n")
	m.cache = m.ns
	info, err := m.OpenNamespace(x.Context(),
		skep.NamespaceSpec{Tenant: "d", Name: "d", Model: "d", Shape: shape, Chained: true, Class: skep.Durable})
	require.NoError(x, err)
	m.durable = info.ID
}

// kill ends a node's process.
func (x *storm) kill(m *member) {
	if m.node == nil {
		return
	}
	m.serves.Store(false)
	assert.NoError(x, m.Close())
	m.node = nil
}

func (x *storm) blow(steps int) {
	for range steps {
		m := x.nodes[x.rand.IntN(len(x.nodes))]
		c := x.keys[x.rand.IntN(len(x.keys))]
		do := x.rand.IntN(17)
		x.did = append(x.did, fmt.Sprintf("%d of %d blocks", do, len(c)))
		if m.node == nil && do < 9 {
			continue
		}
		x.step(m, do, c)
		x.look()
	}
	for _, m := range x.nodes { // all is well again
		if m.node == nil {
			x.begin(m, false)
		}
	}
	x.shelf.set(func() { x.shelf.away, x.shelf.lost, x.shelf.denies = false, false, nil })
	x.shelf.arrive()
	for range 3 {
		for _, m := range x.nodes {
			m.look()
		}
	}
	x.look()
}

func (x *storm) step(m *member, do int, c []skep.Key) {
	b, coin := x.shelf, x.rand.IntN(2) == 0
	switch do {
	case 0, 1:
		m.put(c)
		for _, k := range c {
			delete(x.gone, k)
		}
		m.keep(chain(99, m.has+1))
	case 2, 3:
		_ = m.turn()
	case 4:
		m.evict()
	case 5, 6:
		m.load(c)
	case 7:
		some := c[x.rand.IntN(len(c)):]
		x.remove(some, func(n *node) error { _, err := n.Delete(x.Context(), n.scope(), some); return err })
	case 8:
		x.remove(nil, func(n *node) error { return n.Purge(x.Context(), skep.Purge{Tenant: "t"}) })
	case 9: // its directory is lost
		x.kill(m)
		x.begin(m, true)
	case 10:
		b.set(func() { b.away = coin })
	case 11:
		b.set(func() { b.lost = coin })
	case 12:
		b.set(func() { b.late = coin })
	case 13:
		b.arrive()
	case 14: // some object is refused
		names := b.named("/")
		b.set(func() { b.denies = nil })
		if coin && len(names) > 0 {
			name := names[x.rand.IntN(len(names))]
			b.deny([]string{"get", "delete"}[x.rand.IntN(2)], name)
		}
	default:
		if m.node == nil {
			x.begin(m, false)
			return
		}
		if slices.ContainsFunc(x.nodes, func(m *member) bool { return m.node == nil }) {
			return
		}
		x.kill(m)
	}
}

// keep puts one more block of a chain that is durable.
func (m *member) keep(keys []skep.Key) {
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: m.durable}, Depth: m.has}
	if m.has > 0 {
		r.Parent = &keys[m.has-1]
	}
	part := skep.Part{Name: skep.PartKV, Bytes: storetest.Payload(keys[m.has], skep.PartKV, blockSize)}
	r.Blocks = []skep.Block{{Key: keys[m.has], Parts: []skep.Part{part}}}
	_, err := m.Put(m.t.Context(), r)
	require.NoError(m.t, err)
	m.has++
}

// look looks whether something is found that was deleted, or what is durable is not.
func (x *storm) look() {
	for at, m := range x.nodes {
		if m.node == nil {
			continue
		}
		for _, c := range x.keys {
			for i, k := range c[:m.find(c)] {
				require.False(x, x.gone[k], "block %d of %d was deleted, and node %d finds it: %v", i, len(c), at, x.did)
			}
		}
		keys := chain(99, m.has)
		r, err := m.Lookup(x.Context(), &skep.LookupRequest{Scope: skep.Scope{Namespace: m.durable}, Keys: keys})
		require.NoError(x, err)
		require.Equal(x, m.has, r.Blocks)
	}
}

// remove deletes at all nodes that run, as a cluster does, at one time. What fails is in doubt; nil is everything.
func (x *storm) remove(keys []skep.Key, at func(n *node) error) {
	failed := false
	for _, m := range x.nodes {
		if m.node == nil {
			m.missed = true
			continue
		}
		failed = at(m.node) != nil || failed
		for _, sp := range m.all() { // they send again at once
			sp.mu.Lock()
			sp.paused = time.Time{}
			sp.mu.Unlock()
		}
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
