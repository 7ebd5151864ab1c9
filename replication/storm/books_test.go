package storm

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/placement"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire"
)

// doubtFor is how long a request may be on its way yet when its caller has given up: what the network keeps, and a node
// that waits for a map.
const doubtFor = stallGives + 10*time.Second

const (
	chainBlocks = 12
	chainsEach  = 3
)

// chain is a chain of blocks that one client puts and deletes, and everybody reads.
type chain struct {
	space   string
	salt    skep.Salt
	durable bool // what is acknowledged is kept: nobody repairs what is salted
	keys    []skep.Key
	blocks  []block
}

// block is what is known of one.
type block struct {
	acked bool      // it was acknowledged, and not asked to be deleted since
	maybe bool      // it may be there
	late  time.Time // until then a put that was not answered may come yet
	undo  time.Time // until then a deletion may
	turn  int       // of what was begun
}

// books are the chains of all clients.
type books struct {
	w     *world
	purge chan struct{} // has an element while somebody purges
	under chan struct{} // has one for each who does something: who purges has all
	mu    sync.Mutex
	spots []*chain

	lost     time.Time // what began to be put before may be lost
	contests int
}

func newBooks(w *world) *books {
	return &books{w: w, purge: make(chan struct{}, 1), under: make(chan struct{}, 3)}
}

// enter waits until nobody purges or, for who does, until nobody does anything. A mutex would keep the bubble's time
// from passing.
func (b *books) enter(purges bool) (leave func()) {
	n := 1
	if purges {
		n = cap(b.under)
		b.purge <- struct{}{}
		defer func() { <-b.purge }()
	}
	for range n {
		b.under <- struct{}{}
	}
	return func() {
		for range n {
			<-b.under
		}
	}
}

// client is who puts, reads and deletes.
type client struct {
	w      *world
	r      *rand.Rand
	m      *machine
	st     *replication.Store
	scopes map[string]skep.Scope
	mine   []*chain
}

const tenant = "default" // that of clients without credentials

// spaces are the namespaces. Keys of the last one stand alone.
var spaces = []string{"durable", "cache", "alone"}

const aloneSpace = 2

func newClient(w *world, i int, r *rand.Rand) *client {
	c := &client{w: w, r: r, m: w.n.boot(fmt.Sprint("c", i)), scopes: map[string]skep.Scope{}}
	c.connect(w.nodes[i].of.Addr)
	for _, name := range spaces {
		for n := range chainsEach {
			x := newChain(name, i, n)
			if n == chainsEach-1 && name != spaces[aloneSpace] {
				x.salt, x.durable = skep.Salt(c.m.name), false
			}
			c.mine = append(c.mine, x)
		}
	}
	w.books.mu.Lock()
	defer w.books.mu.Unlock()
	w.books.spots = append(w.books.spots, c.mine...)
	return c
}

func newChain(space string, of, number int) *chain {
	x := &chain{space: space, durable: space == spaces[0], blocks: make([]block, chainBlocks)}
	var parent *skep.Key
	for at := range chainBlocks {
		k := skep.ChainKey(parent, []uint32{uint32(of), uint32(number), uint32(at)})
		x.keys, parent = append(x.keys, k), &k
	}
	return x
}

// connect has the client begin anew, and know nothing.
func (c *client) connect(addr string) {
	if c.st != nil {
		if err := c.st.Close(); err != nil {
			c.w.broken("%s does not end: %v", c.m.name, err)
		}
	}
	var err error
	c.st, err = replication.Connect(wire.Options{Addr: addr, DialContext: c.m.connect, Conns: 2, Log: c.w.log})
	if err != nil {
		c.w.broken("connect: %v", err)
	}
	if err := c.openSpaces(context.Background()); err != nil {
		c.w.broken("open namespace: %v", err)
	}
}

// openSpaces opens the namespaces, which somebody may have deleted.
func (c *client) openSpaces(ctx context.Context) error {
	for _, name := range spaces {
		spec := skep.NamespaceSpec{Tenant: tenant, Name: name, Chained: name != spaces[aloneSpace],
			Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}}
		if name == spaces[0] {
			spec.Class = skep.Durable
		}
		ns, err := skep.OpenNamespace(ctx, c.st, spec)
		if err != nil {
			return err
		}
		c.scopes[name] = ns.Scope()
	}
	return nil
}

func (c *client) scope(x *chain) skep.Scope {
	return skep.Scope{Namespace: c.scopes[x.space].Namespace, Salt: x.salt}
}

func payload(k skep.Key) []byte { return storetest.Payload(k, skep.PartKV, 40+int(k[0])) }

// step does one thing. calm says that nothing is wrong.
func (c *client) step(calm bool) {
	b := c.w.books
	purges := c.r.IntN(40) == 0
	defer b.enter(purges)()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	began := time.Now()
	x := c.mine[c.r.IntN(len(c.mine))]
	switch op := c.r.IntN(20); {
	case purges:
		c.purge(ctx, calm)
	case op < 8:
		c.put(ctx, x, calm)
	case op < 11:
		c.remove(ctx, x, calm)
	default:
		c.w.books.mu.Lock()
		x = c.w.books.spots[c.r.IntN(len(c.w.books.spots))]
		c.w.books.mu.Unlock()
		c.read(ctx, x, calm)
	}
	if took := time.Since(began); took > 35*time.Second {
		c.w.broken("%s: a call of thirty seconds took %v", c.m.name, took)
	}
}

func (c *client) put(ctx context.Context, x *chain, calm bool) {
	b := c.w.books
	b.mu.Lock()
	from := c.r.IntN(chainBlocks)
	if sure := slices.IndexFunc(x.blocks, func(b block) bool { return !b.acked }); sure >= 0 && from > sure {
		from = sure
	}
	to := min(chainBlocks, from+1+c.r.IntN(6))
	for i := from; i < to; i++ {
		x.blocks[i].maybe = true
		x.blocks[i].turn++
	}
	b.mu.Unlock()
	q := &skep.PutRequest{Scope: c.scope(x)}
	if from > 0 && x.space != spaces[aloneSpace] {
		q.Depth = from
		q.Parent, q.Ancestors = &x.keys[from-1], x.keys[:from-1]
	}
	for _, k := range x.keys[from:to] {
		q.Blocks = append(q.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: payload(k)}}})
	}
	began := time.Now()
	res, err := c.st.Put(ctx, q)
	c.w.note("%s put %s %x [%d, %d): %v %v", c.m.name, x.space, x.keys[0][:2], from, to, res, err)
	if calm && err != nil {
		c.w.broken("%s: a put while all is well: %v", c.m.name, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for i := from; i < to; i++ {
		k := &x.blocks[i]
		if !calm {
			k.late = now.Add(doubtFor)
		}
		switch {
		case err == nil && res[i-from].Outcome == skep.Declined && calm:
			c.w.broken("%s: block %d is declined while all is well: %v", c.m.name, i, res[i-from].Reason)
		case err == nil && res[i-from].Differs:
			c.w.broken("%s: block %d has other bytes", c.m.name, i)
		case err == nil && res[i-from].Outcome != skep.Declined:
			// With one replica, what follows on blocks of a node that is down goes elsewhere, and stays there when that node is
			// back: of a block without its group's beginning nobody knows where it should be.
			k.acked = now.After(k.undo) && began.After(b.lost) && (calm || c.w.first.Replicas > 1)
			c.w.did("put")
		default:
			c.w.did("put declined")
		}
	}
}

// remove deletes the rest of a chain, from a block on.
func (c *client) remove(ctx context.Context, x *chain, calm bool) {
	b := c.w.books
	from := c.r.IntN(chainBlocks)
	b.mu.Lock()
	for i := from; i < chainBlocks; i++ {
		x.blocks[i].acked = false
		x.blocks[i].turn++
	}
	b.mu.Unlock()
	began := time.Now()
	n, err := c.st.Delete(ctx, c.scope(x), x.keys[from:])
	c.w.note("%s delete %s %x [%d, ]: %d %v", c.m.name, x.space, x.keys[0][:2], from, n, err)
	if calm && err != nil {
		c.w.broken("%s: a deletion while all is well: %v", c.m.name, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	x.deleted(from, began, calm, err)
	if err == nil {
		c.w.did("delete")
	} else {
		c.w.did("delete refused")
	}
}

// deleted notes that the blocks from one on were asked to be deleted.
func (x *chain) deleted(from int, began time.Time, calm bool, err error) {
	for i := from; i < chainBlocks; i++ {
		k := &x.blocks[i]
		k.acked = false
		k.turn++
		if err == nil && began.After(k.late) {
			k.maybe = false
		}
		if !calm {
			k.undo = time.Now().Add(doubtFor)
		}
	}
}

// unsure notes that drives were lost, of which there may be no copy.
func (b *books) unsure() {
	if cmp.Or(b.w.first.Acks, b.w.first.Replicas) == 1 {
		b.anything()
	}
}

// read looks a chain up and restores what is found.
func (c *client) read(ctx context.Context, x *chain, calm bool) {
	if x.space == spaces[aloneSpace] {
		c.readAlone(ctx, x, calm)
		return
	}
	b := c.w.books
	b.mu.Lock()
	before := slices.Clone(x.blocks)
	b.mu.Unlock()
	sure := 0
	for sure < chainBlocks && before[sure].acked && x.durable {
		sure++
	}
	found, err := c.st.Lookup(ctx, &skep.LookupRequest{Scope: c.scope(x), Keys: x.keys})
	got := map[int][]byte{}
	missed := map[int]error{}
	var loaded error
	if err == nil && found.Blocks > 0 {
		part := skep.Chain{Scope: c.scope(x), Keys: x.keys[:found.Blocks], Lease: found.Lease.ID}
		loaded = c.load(ctx, part, got, missed)
		_ = c.st.Release(ctx, found.Lease.ID)
	}
	c.w.note("%s read %s %x: %d of %d, %d loaded, %v %v", c.m.name, x.space, x.keys[0][:2], found.Blocks, sure, len(got),
		err, loaded)
	b.mu.Lock()
	defer b.mu.Unlock()
	same := func(i int) bool { return x.blocks[i].turn == before[i].turn }
	for i, text := range got {
		c.w.did("read")
		if !slices.Equal(text, payload(x.keys[i])) {
			c.w.broken("%s: block %d of %x has wrong bytes", c.m.name, i, x.keys[0][:2])
		}
	}
	for i := range found.Blocks {
		if !before[i].maybe && !x.blocks[i].maybe && same(i) {
			c.w.broken("%s: block %d of %x was deleted, and is found", c.m.name, i, x.keys[0][:2])
		}
	}
	if !calm {
		return
	}
	if err != nil || loaded != nil {
		c.w.broken("%s: a read while all is well: %v, %v", c.m.name, err, loaded)
	}
	for i := range sure {
		if !same(i) || !x.blocks[i].acked {
			break
		}
		if i >= found.Blocks {
			c.w.broken("%s: block %d of %x was acknowledged and is not found", c.m.name, i, x.keys[0][:2])
			break
		}
		if got[i] == nil {
			c.w.broken("%s: block %d of %x was acknowledged and is not read: %v", c.m.name, i, x.keys[0][:2], missed[i])
		}
	}
}

// has says which keys of a namespace a node has on its drives.
func (n *node) has(space string) map[skep.Key]bool {
	out := map[skep.Key]bool{}
	ctx := context.Background()
	list, _ := n.run.own.Namespaces(ctx)
	for _, info := range list {
		if info.Name != space {
			continue
		}
		for from := uint64(0); ; {
			keys, next, err := n.run.own.ListKeys(ctx, info.ID, from, 1000)
			for _, k := range keys {
				out[k] = true
			}
			if err != nil || next == 0 {
				break
			}
			from = next
		}
	}
	return out
}

// whole looks at a cluster in which nothing is wrong: each client reads every chain, and the drives are looked at.
func (b *books) whole() {
	for _, c := range b.w.clients {
		for _, x := range b.spots {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			c.read(ctx, x, true)
			cancel()
		}
	}
	m := b.w.nodes[0].run.member.Map()
	table := placement.New(m.Public())
	for _, space := range spaces {
		var has []map[skep.Key]bool
		for _, n := range b.w.nodes {
			has = append(has, n.has(space))
		}
		for _, x := range b.spots {
			if x.space != space || x.salt != "" { // of salted ones drives do not tell
				continue
			}
			for i, k := range x.blocks {
				for at, n := range b.w.nodes {
					if has[at][x.keys[i]] && !k.maybe {
						b.w.broken("block %d of %x was deleted, and is on the drives of %s", i, x.keys[0][:2], n.of.Name)
					}
				}
				if !x.durable || !k.acked {
					continue
				}
				for _, at := range b.w.holders(m, table, x, i) {
					if !has[at][x.keys[i]] {
						b.w.broken("block %d of %x was acknowledged, and %s has no copy", i, x.keys[0][:2], b.w.nodes[at].of.Name)
					}
				}
			}
		}
	}
}
