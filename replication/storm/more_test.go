package storm

import (
	"context"
	"slices"
	"time"

	"github.com/skepkv/skep"
)

// purge deletes much at once, while nobody else does anything: a namespace's blocks, those of a salt, or the namespace,
// which is opened again.
func (c *client) purge(ctx context.Context, calm bool) {
	b, space, what := c.w.books, spaces[c.r.IntN(len(spaces))], "purge"
	sc := c.scopes[space]
	hits := func(*chain) bool { return true }
	began := time.Now()
	var err error
	switch c.r.IntN(4) {
	case 0:
		what = "delete namespace"
		err = c.st.DeleteNamespace(ctx, sc.Namespace)
		for _, c := range c.w.clients {
			if again := c.openSpaces(ctx); calm && again != nil {
				c.w.broken("%s: a namespace is opened again while all is well: %v", c.m.name, again)
			}
		}
	case 1:
		what = "purge a salt of"
		if space == spaces[aloneSpace] {
			space = spaces[1]
			sc = c.scopes[space]
		}
		sc.Salt = skep.Salt(c.m.name)
		hits = func(x *chain) bool { return x.salt == sc.Salt }
		err = c.st.Purge(ctx, skep.Purge{Salt: &sc})
	default:
		err = c.st.Purge(ctx, skep.Purge{Namespace: sc.Namespace})
	}
	c.w.note("%s %s %s: %v", c.m.name, what, space, err)
	if calm && err != nil {
		c.w.broken("%s: %s while all is well: %v", c.m.name, what, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.spots {
		if x.space == space && hits(x) {
			x.deleted(0, began, calm, err)
		}
	}
	c.w.did(what)
}

// load restores a chain: what came, and why the rest did not.
func (c *client) load(ctx context.Context, part skep.Chain, got map[int][]byte, missed map[int]error) error {
	return skep.Load(ctx, c.st, &skep.RestoreRequest{Chains: []skep.Chain{part}}, func(ch *skep.Chunk) error {
		if missed[ch.Block] = ch.Err; ch.Err == nil {
			got[ch.Block] = ch.AppendTo(nil)
		}
		return nil
	})
}

// readAlone looks keys up that stand alone, and restores them all.
func (c *client) readAlone(ctx context.Context, x *chain, calm bool) {
	b := c.w.books
	b.mu.Lock()
	before := slices.Clone(x.blocks)
	b.mu.Unlock()
	r := &skep.RunsRequest{Scope: c.scope(x)}
	for i := range x.keys {
		r.Runs = append(r.Runs, x.keys[i:i+1])
	}
	found, err := c.st.LookupRuns(ctx, r)
	got, missed := map[int][]byte{}, map[int]error{}
	loaded := c.load(ctx, skep.Chain{Scope: c.scope(x), Keys: x.keys}, got, missed)
	c.w.note("%s read %s %x: %v, %d loaded, %v %v", c.m.name, x.space, x.keys[0][:2], found.Runs, len(got), err, loaded)
	if calm && (err != nil || loaded != nil) {
		c.w.broken("%s: a read while all is well: %v, %v", c.m.name, err, loaded)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range x.keys {
		text, there := got[i]
		if there && !slices.Equal(text, payload(x.keys[i])) {
			c.w.broken("%s: block %d of %x has wrong bytes", c.m.name, i, x.keys[0][:2])
		}
		there = there || err == nil && found.Runs[i].Blocks > 0
		if there && !before[i].maybe && !x.blocks[i].maybe && x.blocks[i].turn == before[i].turn {
			c.w.broken("%s: key %d of %x was deleted, and is found", c.m.name, i, x.keys[0][:2])
		}
	}
	c.w.did("read alone")
}
