package storetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// RandomOptions says what Random does. The zero value is a run of DefaultOps from a
// seed that is drawn and printed.
type RandomOptions struct {
	Seed uint64 // 0: drawn; printed either way
	Ops  int    // 0: DefaultOps

	// Config is given to open.
	Config Config
	// Lossy says that the Store may decline and evict, and so have fewer blocks than
	// the model. Then nothing may be found that the model has not, and what is found
	// must have the model's bytes. Without it everything must be equal.
	Lossy bool
	// Copied says that the Store has several copies of blocks, and counts each.
	Copied bool
	// Faults makes operations fail now and then: nil: none do. The Store is Lossy then.
	// What fails is done again once all is healthy, and must succeed.
	Faults *Faults
	// Reopen opens again what Random has just flushed and closed; nil: no restarts.
	Reopen func(t *testing.T) skep.Store
}

// Faults breaks what a Store stands on, and mends it.
type Faults struct {
	// Break makes something fail from now on, chosen by rnd, and says what.
	Break func(rnd *rand.Rand) string
	// Heal mends everything.
	Heal func()
}

// DefaultOps is how many operations Random does unless told otherwise.
const DefaultOps = 500

// Random does the same random operations with a Store and with the in-memory model
// (package memstore) and requires the same answers: results of puts, lengths of
// prefixes, counts, and every restored byte. When it fails it logs the seed and all
// operations up to the failure.
func Random(t *testing.T, open func(t *testing.T, c Config) skep.Store, o RandomOptions) {
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if o.Ops == 0 {
		o.Ops = DefaultOps
	}
	t.Logf("seed %d, %d operations", o.Seed, o.Ops)
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	d := &driver{
		T: t, RandomOptions: o, ctx: ctx,
		rnd:   rand.New(rand.NewPCG(o.Seed, 0)),
		real:  open(t, o.Config),
		model: memstore.New(memstore.Options{PoisonReleased: true}),
	}
	t.Cleanup(func() {
		_ = d.real.Close()
		_ = d.model.Close()
		if t.Failed() {
			t.Logf("failed with seed %d after %d operations:", o.Seed, len(d.log))
			for i, op := range d.log {
				t.Logf("%4d  %s", i, op)
			}
		}
	})
	d.populate()
	for range o.Ops {
		d.trouble()
		d.step()
	}
	d.heal()
	d.verify()
	d.heal()
	st, err := d.model.Stats(ctx)
	require.NoError(t, err)
	t.Logf("%d operations failed and were done again", d.retries)
	t.Logf("blocks put %d, looked up %d, found %d, restored %d; pieces missed %d", st.PutBlocks, st.LookupKeys, st.LookupHits, st.RestoredBlocks, sum(st.RestoreMisses))
	err = d.real.Close()
	if err != nil && d.Faults != nil && d.Reopen != nil { // what failed behind everybody's back shows now
		d.note("close: %v", err)
		d.real = d.Reopen(t)
		d.endLeases()
		d.verify()
		err = d.real.Close()
	}
	require.NoError(t, err)
}

// driver holds the two Stores and what it knows of them.
type driver struct {
	*testing.T
	RandomOptions
	ctx    context.Context
	rnd    *rand.Rand
	real   skep.Store
	model  *memstore.Store
	spaces []*space
	leases []*leasePair
	purged bool
	log    []string

	broken  bool
	retries int
}

// space is a namespace in both Stores with the tree of keys that may be put into it.
type space struct {
	spec        skep.NamespaceSpec
	real, model skep.NamespaceID
	nodes       []*node
}

// node is one key: of a tree in chained namespaces, alone in others.
type node struct {
	key    skep.Key
	parent *node
	depth  int
	valid  int // of a partial tail, which has no children; 0: a whole block
	id     int
}

// leasePair is a lease both Stores gave on the same blocks.
type leasePair struct {
	real, model skep.LeaseID
	sp          *space
	salt        skep.Salt
	keys        []skep.Key
	void        bool // some of its blocks may have been deleted or purged
}

const nodesPerSpace = 30

// salts are the rooms keys are put into.
var salts = []skep.Salt{"", "", "anna", "bert"}

func (d *driver) note(format string, args ...any) {
	d.log = append(d.log, fmt.Sprintf(format, args...))
}

func (d *driver) chance(of int) bool { return d.rnd.IntN(of) == 0 }

// populate opens the namespaces, a few of one tenant or model, and grows their trees.
func (d *driver) populate() {
	for i, s := range shapes {
		spec := skep.NamespaceSpec{
			Tenant: fmt.Sprintf("t%d", i%3), Name: fmt.Sprintf("n%d", i), Model: fmt.Sprintf("m%d", i%4),
			Shape: s.shape, Class: skep.Class(d.rnd.IntN(2)), Copies: 1, Chained: !d.chance(4),
		}
		sp := &space{spec: spec}
		for _, st := range []struct {
			store skep.Store
			id    *skep.NamespaceID
		}{{d.real, &sp.real}, {d.model, &sp.model}} {
			n, err := st.store.OpenNamespace(d.ctx, spec)
			require.NoError(d, err)
			*st.id = n.ID
		}
		for id := range nodesPerSpace {
			sp.grow(d.rnd, id)
		}
		d.spaces = append(d.spaces, sp)
		d.note("namespace %d: %+v", i, spec)
	}
}

// grow adds a node, most often below a recent one so that the tree gets deep.
func (sp *space) grow(rnd *rand.Rand, id int) {
	n := &node{id: id}
	if sp.spec.Chained && id > 0 && rnd.IntN(8) > 0 {
		p := sp.nodes[max(0, id-1-rnd.IntN(min(id, 5)))]
		for p.valid != 0 {
			p = p.parent
		}
		n.parent = p
	}
	tokens := []uint32{uint32(id), uint32(rnd.IntN(100))}
	if n.parent != nil {
		n.depth = n.parent.depth + 1
		n.key = skep.ChainKey(&n.parent.key, tokens)
		if b := sp.spec.Shape.BlockTokens; b > 1 && rnd.IntN(5) == 0 {
			n.valid = 1 + rnd.IntN(b-1)
		}
	} else {
		n.key = skep.ChainKey(nil, tokens)
	}
	sp.nodes = append(sp.nodes, n)
}

// path is the chain that ends in n.
func (n *node) path() []*node {
	p := make([]*node, n.depth+1)
	for x := n; x != nil; x = x.parent {
		p[x.depth] = x
	}
	return p
}

func keysOf(nodes []*node) []skep.Key {
	keys := make([]skep.Key, len(nodes))
	for i, n := range nodes {
		keys[i] = n.key
	}
	return keys
}

// chain is a random chain of sp: a path, or unrelated keys where there are no chains.
func (d *driver) chain(sp *space) []*node {
	if sp.spec.Chained {
		return sp.nodes[d.rnd.IntN(len(sp.nodes))].path()
	}
	var nodes []*node
	for _, i := range d.rnd.Perm(len(sp.nodes))[:1+d.rnd.IntN(6)] {
		nodes = append(nodes, sp.nodes[i])
	}
	return nodes
}

// version is which of two contents a writer has. Where the Store may evict, the first
// writer of a chain is not the model's first writer, so all agree there.
func (d *driver) version(sp *space) int {
	if d.Lossy && sp.spec.Chained || d.Faults != nil {
		return 0 // and what failed may have left the one or the other
	}
	return d.rnd.IntN(4) / 3
}

const extraPart = "state"

// parts is a node's content in a room and version.
func (sp *space) parts(n *node, salt skep.Salt, version int) []skep.Part {
	b := binary.LittleEndian.AppendUint32(n.key[:len(n.key):len(n.key)], uint32(version))
	b = append(b, sp.spec.Name...)
	seed := skep.KeyOf(append(b, salt...))
	parts := []skep.Part{{Bytes: Payload(seed, skep.PartKV, sizeOf(sp.spec.Shape, 200*n.id*(1+version)))}}
	if n.id%7 == 3 {
		parts = append(parts, skep.Part{Name: extraPart, Bytes: Payload(seed, extraPart, 50*n.id)})
	}
	return parts
}

func (d *driver) step() {
	sp := d.spaces[d.rnd.IntN(len(d.spaces))]
	salt := salts[d.rnd.IntN(len(salts))]
	switch k := d.rnd.IntN(100); {
	case k < 28:
		d.put(sp, salt)
	case k < 38:
		d.write(sp, salt)
	case k < 55:
		d.lookup(sp, salt)
	case k < 78:
		d.restore()
	case k < 85:
		d.remove(sp, salt)
	case k < 88:
		d.want(sp, salt)
	case k < 91:
		d.hint(sp, salt)
	case k < 94:
		d.endLease()
	case k < 96:
		d.compareStats()
	case k < 97:
		d.note("flush")
		d.try(func() error { return d.real.Flush(d.ctx) })
	case k < 98:
		if d.chance(4) {
			d.purge(sp, salt)
		} else if d.chance(4) {
			d.deleteSpace(sp)
		}
	default:
		d.reopen()
	}
}

// reopen closes the Store and opens it again. Leases end with a Store's run.
func (d *driver) reopen() {
	if d.Reopen == nil {
		return
	}
	d.note("reopen")
	d.try(func() error { return d.real.Flush(d.ctx) })
	d.heal()
	if err := d.real.Close(); d.Faults == nil {
		require.NoError(d, err) // otherwise what failed may show now
	}
	d.real = d.Reopen(d.T)
	d.endLeases()
	list, err := d.real.Namespaces(d.ctx)
	require.NoError(d, err)
	require.Len(d, list, len(d.spaces))
	d.verify()
}

// endLeases follows the end of a Store's run, with which its leases end.
func (d *driver) endLeases() {
	for _, l := range d.leases {
		require.NoError(d, d.model.Release(d.ctx, l.model))
		_, err := d.real.Renew(d.ctx, l.real, time.Minute)
		requireKind(d, skep.LeaseExpired, err)
	}
	d.leases = nil
}

// trouble breaks something now and then, or mends everything.
func (d *driver) trouble() {
	switch {
	case d.Faults == nil:
	case d.chance(12):
		d.broken = true
		d.note("BREAK %s", d.Faults.Break(d.rnd))
	case d.broken && d.chance(6):
		d.heal()
	}
}

func (d *driver) heal() {
	if d.Faults != nil && d.broken {
		d.note("HEAL")
		d.Faults.Heal()
		d.broken = false
	}
}

// try does what must succeed: at once or, where things may break, when they are mended.
// again says that it was done a second time: the first may have had an effect.
func (d *driver) try(f func() error) (again bool) {
	d.Helper()
	err := f()
	if d.Faults == nil || err == nil {
		require.NoError(d, err)
		return false
	}
	d.note("  failed: %v", err)
	d.retries++
	d.heal()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err = f(); err == nil {
			return true
		}
		if errors.Is(err, skep.Failed) && d.Reopen != nil {
			d.reopenFailed()
		}
	}
	require.NoError(d, err, "although all is healthy again")
	return true
}

// reopenFailed opens a Store again that has failed for good.
func (d *driver) reopenFailed() {
	d.note("  failed for good: reopen")
	_ = d.real.Close() // says what failed
	d.real = d.Reopen(d.T)
	d.endLeases()
}

// verify compares everything that may be stored.
func (d *driver) verify() {
	d.note("verify")
	for _, sp := range d.spaces {
		for _, salt := range salts[1:] {
			for _, n := range sp.nodes {
				nodes := []*node{n}
				if sp.spec.Chained {
					nodes = n.path()
				}
				found := d.compareLookup(sp, salt, keysOf(nodes), skep.NoLease)
				if found > 0 {
					d.compareRestore([]request{{sp: sp, salt: salt, nodes: nodes[:found]}})
				}
			}
		}
	}
	d.compareStats()
}
