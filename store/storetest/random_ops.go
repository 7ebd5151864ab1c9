package storetest

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func (sp *space) scopes(salt skep.Salt) (real, model skep.Scope) {
	return skep.Scope{Namespace: sp.real, Salt: salt}, skep.Scope{Namespace: sp.model, Salt: salt}
}

// same is a put's result without the difference between its two events.
func same(r skep.PutResult) skep.PutResult {
	if r.Outcome == skep.Accepted {
		r.Outcome = skep.Committed
	}
	return r
}

// agree compares results of puts of a block, real and model's.
func (d *driver) agree(real, model skep.PutResult) {
	d.Helper()
	if !d.Lossy {
		require.Equal(d, same(model), same(real))
		return
	}
	require.False(d, real.Outcome == skep.Exists && model.Outcome != skep.Exists, "exists here and not in the model")
	require.False(d, real.Differs, "every writer had the same bytes")
}

// replaced is a partial tail that n may replace: a sibling, while what replacing does
// is beyond doubt: n is new and nothing is leased.
func (d *driver) replaced(sp *space, salt skep.Salt, n *node) *skep.Key {
	if !sp.spec.Chained || n.valid != 0 || len(d.leases) > 0 || d.Faults != nil {
		return nil
	}
	_, sc := sp.scopes(salt)
	w, err := d.model.Want(d.ctx, &skep.WantRequest{Scope: sc, Keys: []skep.Key{n.key}})
	require.NoError(d, err)
	for _, x := range sp.nodes {
		if w[0].Wanted && x.valid != 0 && x.parent == n.parent && d.chance(2) {
			return &x.key
		}
	}
	return nil
}

func (d *driver) put(sp *space, salt skep.Salt) {
	nodes := d.chain(sp)
	from := 0
	if sp.spec.Chained && d.chance(2) {
		from = d.rnd.IntN(len(nodes))
	}
	to := from + 1 + d.rnd.IntN(len(nodes)-from)
	real, model := sp.scopes(salt)
	r := &skep.PutRequest{Scope: real, Ack: skep.Ack(d.rnd.IntN(2))}
	if sp.spec.Chained && from > 0 {
		r.Parent, r.Depth = &nodes[from-1].key, from
	}
	for _, n := range nodes[from:to] {
		r.Blocks = append(r.Blocks, skep.Block{Key: n.key, ValidTokens: n.valid, Parts: sp.parts(n, salt, d.version(sp))})
	}
	last := &r.Blocks[len(r.Blocks)-1]
	last.Replaces = d.replaced(sp, salt, nodes[to-1])
	d.note("put %s salt %q nodes %v ack %d replaces %v", sp.spec.Name, string(salt), ids(nodes[from:to]), r.Ack, last.Replaces)
	var got []skep.PutResult
	again := d.try(func() (err error) {
		got, err = d.real.Put(d.ctx, r)
		return err
	})
	require.Len(d, got, len(r.Blocks))
	// One by one into the model: a declined block is not put there.
	for i, b := range r.Blocks {
		if got[i].Outcome == skep.Declined {
			require.True(d, d.Lossy, "declined: %v", got[i].Reason)
			continue
		}
		m := &skep.PutRequest{Scope: model, Blocks: []skep.Block{b}}
		if n := nodes[from+i]; n.parent != nil {
			m.Parent, m.Depth = &n.parent.key, n.depth
		}
		want, err := d.model.Put(d.ctx, m)
		require.NoError(d, err)
		if !again { // what was there the second time is the first time's
			d.agree(got[i], want[0])
		}
	}
}

func ids(nodes []*node) []int {
	out := make([]int, len(nodes))
	for i, n := range nodes {
		out[i] = n.id
	}
	return out
}

// write puts a block part by part, in pieces, in any order, and perhaps gives up.
func (d *driver) write(sp *space, salt skep.Salt) {
	n := sp.nodes[d.rnd.IntN(len(sp.nodes))]
	real, model := sp.scopes(salt)
	r := &skep.BeginRequest{Scope: real, Key: n.key, Depth: n.depth, ValidTokens: n.valid, Replaces: d.replaced(sp, salt, n)}
	if n.parent != nil {
		r.Parent = &n.parent.key
	}
	parts := sp.parts(n, salt, d.version(sp))
	parts[0].Name = skep.PartKV
	for _, p := range parts {
		r.Manifest = append(r.Manifest, skep.PartSpec{Name: p.Name, Size: int64(len(p.Bytes))})
	}
	abort := d.chance(6)
	d.note("write %s salt %q node %d abort %v replaces %v", sp.spec.Name, string(salt), n.id, abort, r.Replaces)
	d.heal() // a writer does not survive a failed Store
	var w skep.BlockWriter
	d.try(func() (err error) {
		w, err = d.real.Begin(d.ctx, r)
		return err
	})
	type cut struct {
		part     string
		from, to int
		p        []byte
	}
	var cuts []cut
	for _, p := range parts {
		for from := 0; from < len(p.Bytes); {
			to := min(len(p.Bytes), from+1+d.rnd.IntN(len(p.Bytes)))
			cuts = append(cuts, cut{p.Name, from, to, p.Bytes})
			from = to
		}
	}
	d.rnd.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })
	// What broke earlier may show only now.
	failed := func(err error) bool {
		return d.Faults != nil && d.Reopen != nil && errors.Is(err, skep.Failed)
	}
	for i, c := range cuts {
		if i == len(cuts)-1 {
			_, err := w.Commit(d.ctx, skep.AckCommitted)
			if failed(err) {
				d.reopenFailed()
				return
			}
			requireKind(d, skep.Invalid, err, "a piece is missing")
		}
		err := w.Write(d.ctx, c.part, int64(c.from), c.p[c.from:c.to])
		if failed(err) {
			d.reopenFailed()
			return
		}
		require.NoError(d, err)
	}
	if abort {
		require.NoError(d, w.Abort(d.ctx))
		return
	}
	got, err := w.Commit(d.ctx, skep.Ack(d.rnd.IntN(2)))
	if err != nil && skep.KindOf(err) == skep.Full && d.Faults != nil {
		return // the catalog has no space now: it did not happen
	}
	if failed(err) { // The block is stored or not; the model, of a Store that may have less, has it.
		d.reopenFailed()
		got, err = skep.PutResult{Outcome: skep.Committed}, nil
	}
	require.NoError(d, err)
	if got.Outcome == skep.Declined {
		require.True(d, d.Lossy, "declined: %v", got.Reason)
		return
	}
	want, err := d.model.Put(d.ctx, &skep.PutRequest{
		Scope: model, Parent: r.Parent, Depth: n.depth,
		Blocks: []skep.Block{{Key: n.key, ValidTokens: n.valid, Replaces: r.Replaces, Parts: parts}},
	})
	require.NoError(d, err)
	d.agree(got, want[0])
}

func (d *driver) lookup(sp *space, salt skep.Salt) {
	keys := keysOf(d.chain(sp))
	if d.chance(3) {
		keys = append(keys, skep.KeyOf([]byte("never put")))
	}
	lease := skep.NoLease
	if d.chance(3) {
		lease = skep.MaxLease
	}
	d.note("lookup %s salt %q %d keys lease %v", sp.spec.Name, string(salt), len(keys), lease)
	d.compareLookup(sp, salt, keys, lease)
}

// compareLookup gives how many blocks both find.
func (d *driver) compareLookup(sp *space, salt skep.Salt, keys []skep.Key, lease time.Duration) int {
	real, model := sp.scopes(salt)
	var got skep.LookupResult
	d.try(func() (err error) {
		got, err = d.real.Lookup(d.ctx, &skep.LookupRequest{Scope: real, Keys: keys, Lease: lease, Tiers: true})
		return err
	})
	if d.Lossy {
		require.LessOrEqual(d, got.Blocks, len(keys))
		keys = keys[:got.Blocks]
	}
	want, err := d.model.Lookup(d.ctx, &skep.LookupRequest{Scope: model, Keys: keys, Lease: lease})
	require.NoError(d, err)
	require.Equal(d, want.Blocks, got.Blocks, "blocks found")
	if d.Faults == nil { // while the catalog cannot be read, a block's size is reckoned
		require.Equal(d, want.Tokens, got.Tokens, "tokens found")
		require.Equal(d, want.Bytes, got.Bytes, "bytes found")
	}
	require.Len(d, got.Tiers, got.Blocks)
	if got.Lease.ID != 0 && want.Lease.ID != 0 {
		d.leases = append(d.leases, &leasePair{real: got.Lease.ID, model: want.Lease.ID, sp: sp, salt: salt, keys: keys[:got.Blocks]})
	}
	return got.Blocks
}

// endLease renews or releases a random lease.
func (d *driver) endLease() {
	if len(d.leases) == 0 {
		return
	}
	i := d.rnd.IntN(len(d.leases))
	l := d.leases[i]
	if !l.void {
		found := d.compareLookup(l.sp, l.salt, l.keys, skep.NoLease)
		if d.Faults == nil { // otherwise it may have been found damaged
			require.Equal(d, len(l.keys), found, "what is leased is kept")
		}
	}
	if len(d.leases) == 0 {
		return // a failed Store was opened again
	}
	if d.chance(4) {
		d.note("renew")
		_, err := d.real.Renew(d.ctx, l.real, skep.MaxLease)
		require.NoError(d, err)
		return
	}
	d.note("release")
	require.NoError(d, d.real.Release(d.ctx, l.real))
	require.NoError(d, d.model.Release(d.ctx, l.model))
	d.leases = append(d.leases[:i], d.leases[i+1:]...)
}

func (d *driver) remove(sp *space, salt skep.Salt) {
	nodes := d.chain(sp)
	if len(nodes) > 1 {
		nodes = nodes[d.rnd.IntN(len(nodes)-1):]
	}
	nodes = nodes[:1+d.rnd.IntN(min(3, len(nodes)))]
	real, model := sp.scopes(salt)
	d.note("delete %s salt %q nodes %v", sp.spec.Name, string(salt), ids(nodes))
	var got int
	d.try(func() (err error) {
		got, err = d.real.Delete(d.ctx, real, keysOf(nodes))
		return err
	})
	want, err := d.model.Delete(d.ctx, model, keysOf(nodes))
	require.NoError(d, err)
	d.sameCount(want, got, "deleted")
	d.voidLeases(func(l *leasePair) bool { return l.sp == sp && l.salt == salt })
}

// voidLeases marks leases that promise no more.
func (d *driver) voidLeases(which func(*leasePair) bool) {
	for _, l := range d.leases {
		l.void = l.void || which(l)
	}
}

// sameCount compares how many blocks were there.
func (d *driver) sameCount(want, got int, what string) {
	d.Helper()
	if d.Lossy {
		require.LessOrEqual(d, got, want, what)
	} else {
		require.Equal(d, want, got, what)
	}
}

func (d *driver) want(sp *space, salt skep.Salt) {
	keys := keysOf(d.chain(sp))
	real, model := sp.scopes(salt)
	d.note("want %s salt %q %d keys", sp.spec.Name, string(salt), len(keys))
	var got []skep.Want
	d.try(func() (err error) {
		got, err = d.real.Want(d.ctx, &skep.WantRequest{Scope: real, Keys: keys})
		return err
	})
	want, err := d.model.Want(d.ctx, &skep.WantRequest{Scope: model, Keys: keys})
	require.NoError(d, err)
	require.Len(d, got, len(keys))
	for i := range keys {
		if d.Lossy {
			require.False(d, !got[i].Wanted && got[i].Outcome == skep.Exists && want[i].Wanted, "exists here and not in the model")
		} else {
			require.Equal(d, want[i].Wanted, got[i].Wanted)
		}
	}
}

func (d *driver) hint(sp *space, salt skep.Salt) {
	keys := keysOf(d.chain(sp))
	real, model := sp.scopes(salt)
	h := skep.Hint{Pin: time.Duration(d.rnd.IntN(2)) * time.Millisecond, NextUse: time.Second, Program: "p"}
	d.note("hint %s salt %q %d keys pin %v", sp.spec.Name, string(salt), len(keys), h.Pin)
	got, err := d.real.Hint(d.ctx, real, keys, h)
	require.NoError(d, err)
	want, err := d.model.Hint(d.ctx, model, keys, h)
	require.NoError(d, err)
	d.sameCount(want, got, "hinted")
}

// deleteSpace deletes a namespace and makes it again.
func (d *driver) deleteSpace(sp *space) {
	d.note("delete namespace %s", sp.spec.Name)
	d.purged = true
	d.voidLeases(func(*leasePair) bool { return true })
	d.try(func() error {
		err := d.real.DeleteNamespace(d.ctx, sp.real)
		if d.Faults != nil && errors.Is(err, skep.NotFound) {
			return nil // an earlier try did it
		}
		return err
	})
	require.NoError(d, d.model.DeleteNamespace(d.ctx, sp.model))
	old := sp.real
	d.try(func() error {
		n, err := d.real.OpenNamespace(d.ctx, sp.spec)
		sp.real = n.ID
		return err
	})
	require.Greater(d, sp.real, old, "numbers are not given out again")
	n, err := d.model.OpenNamespace(d.ctx, sp.spec)
	require.NoError(d, err)
	sp.model = n.ID
}

func (d *driver) purge(sp *space, salt skep.Salt) {
	var real, model skep.Purge
	switch k := d.rnd.IntN(4); {
	case k == 0 && salt != "":
		r, m := sp.scopes(salt)
		real.Salt, model.Salt = &r, &m
		d.note("purge %s salt %q", sp.spec.Name, string(salt))
	case k == 1 && d.chance(3):
		real.Tenant, model.Tenant = sp.spec.Tenant, sp.spec.Tenant
		d.note("purge tenant %s", sp.spec.Tenant)
	case k == 2 && d.chance(3):
		real.Model, model.Model = sp.spec.Model, sp.spec.Model
		d.note("purge model %s", sp.spec.Model)
	default:
		real.Namespace, model.Namespace = sp.real, sp.model
		d.note("purge %s", sp.spec.Name)
	}
	d.purged = true
	d.voidLeases(func(*leasePair) bool { return true })
	d.try(func() error { return d.real.Purge(d.ctx, real) })
	require.NoError(d, d.model.Purge(d.ctx, model))
}

// compareStats compares what is stored. After a purge a Store may count what it has
// not cleaned up yet.
func (d *driver) compareStats() {
	d.note("stats")
	got, err := d.real.Stats(d.ctx)
	require.NoError(d, err)
	if d.Faults != nil {
		return
	}
	require.Equal(d, "ok", got.State)
	require.Zero(d, got.Damaged)
	if d.Lossy || d.purged {
		return
	}
	want, err := d.model.Stats(d.ctx)
	require.NoError(d, err)
	if d.Copied {
		require.GreaterOrEqual(d, got.Blocks, want.Blocks, "blocks stored")
		require.GreaterOrEqual(d, got.BlockBytes, want.BlockBytes, "bytes stored")
	} else {
		require.Equal(d, want.Blocks, got.Blocks, "blocks stored")
		require.Equal(d, want.BlockBytes, got.BlockBytes, "bytes stored")
	}
	require.Zero(d, got.Evicted)
}

// request is one chain of a restore, to be asked of both Stores.
type request struct {
	sp        *space
	salt      skep.Salt
	nodes     []*node
	part      string
	direction skep.Direction
	blocks    skep.Subset
	layers    skep.Subset
	heads     skep.Subset
	dest      int // 0: none, 1: memory, 2: pages
	order     skep.AxisOrder
	spare     int // bytes between blocks or pages
}

func (d *driver) restore() {
	var rs []request
	for range 1 + d.rnd.IntN(3) {
		sp := d.spaces[d.rnd.IntN(len(d.spaces))]
		s := sp.spec.Shape
		r := request{sp: sp, salt: salts[d.rnd.IntN(len(salts))], nodes: d.chain(sp), spare: d.rnd.IntN(3) * 8, order: skep.AxisOrder(d.rnd.IntN(2))}
		r.direction = skep.Direction(d.rnd.IntN(2))
		r.dest = d.rnd.IntN(2)
		if d.chance(2) {
			r.blocks = d.within(len(r.nodes))
		}
		switch {
		case d.chance(6):
			r.part = extraPart
		case s.Kind != skep.Opaque:
			r.direction = skep.Direction(d.rnd.IntN(4))
			r.dest = d.rnd.IntN(3)
			if d.chance(2) {
				r.layers = d.within(s.Layers)
			}
			if d.chance(2) && s.Kind == skep.Attention && s.Order == skep.HND {
				r.heads = d.within(s.KVHeads)
			}
		}
		rs = append(rs, r)
		d.note("restore %s salt %q nodes %v part %q %v blocks %v layers %v heads %v dest %d order %v", sp.spec.Name, string(r.salt), ids(r.nodes), r.part, r.direction, r.blocks, r.layers, r.heads, r.dest, r.order)
	}
	d.compareRestore(rs)
}

func (d *driver) within(n int) skep.Subset {
	from := d.rnd.IntN(n)
	return skep.Only(from, from+1+d.rnd.IntN(n-from))
}

// ask makes the chain for one of the Stores, with a destination of its own.
func (r request) ask(sc skep.Scope) skep.Chain {
	s := r.sp.spec.Shape
	c := skep.Chain{
		Scope: sc, Keys: keysOf(r.nodes), Part: r.part, Direction: r.direction,
		Blocks: r.blocks, Layers: r.layers, Heads: r.heads,
	}
	blocks, _ := r.blocks.In(len(r.nodes))
	switch r.dest {
	case 1:
		// Large enough for the largest block of any size.
		stride := sizeOf(s, 400*nodesPerSpace) + r.spare
		if r.part != "" {
			stride = 50*nodesPerSpace + r.spare
		}
		c.Dest = skep.Destination{Memory: poison(blocks.Len() * stride), Stride: int64(stride)}
	case 2:
		p := &skep.Paged{Order: r.order, PageStride: int64(pageBytes(s) + r.spare), Planes: make([][2][]byte, s.Layers)}
		for l := range p.Planes {
			for k := range planesOf(s) {
				p.Planes[l][k] = poison(2 * blocks.Len() * int(p.PageStride))
			}
		}
		for i := range blocks.Len() {
			p.Pages = append(p.Pages, 2*blocks.Len()-1-2*i)
		}
		c.Dest.Paged = p
	}
	return c
}

// compareRestore asks both Stores for the same and compares piece by piece: what
// missed, and all memory that is not a missed block's.
func (d *driver) compareRestore(rs []request) {
	var real, model []skep.Chain
	for _, r := range rs {
		a, b := r.sp.scopes(r.salt)
		real, model = append(real, r.ask(a)), append(model, r.ask(b))
	}
	// With one operation in eight the caller computes some tokens itself, or stops.
	var meddle func(s skep.Session)
	claimed, stopped := skep.Claim{}, false
	if d.chance(8) {
		meddle = func(s skep.Session) {
			if stopped = d.chance(2); stopped {
				require.NoError(d, s.Stop(d.ctx, 0))
			} else if !real[0].Direction.ByLayer() {
				var err error
				claimed, err = s.Claim(d.ctx, 0, skep.Only(0, rs[0].sp.spec.Shape.BlockTokens), skep.Idle)
				require.NoError(d, err)
			}
		}
	}
	got, want := d.drain(d.real, real, meddle), d.drain(d.model, model, nil)
	require.Len(d, got, len(want), "pieces")
	for at, m := range want {
		p, ok := got[at]
		require.True(d, ok, "piece %+v", at)
		mine := at.chain == 0 && (stopped || claimed.Granted.Len() > 0 && at.block == 0)
		switch {
		case p.Err == nil:
			require.NoError(d, m.Err, "piece %+v is here and not in the model", at)
			require.Equal(d, m.Bytes, p.Bytes)
			require.Equal(d, m.bytes, p.bytes, "lent bytes of %+v", at)
			d.sameMemory(&rs[at.chain], &real[at.chain], &model[at.chain], at)
		case mine && (errors.Is(p.Err, skep.Stopped) || errors.Is(p.Err, skep.Claimed)):
		case d.Faults != nil:
			d.requireMissed(p.Err)
		case m.Err != nil || d.Lossy:
			requireGone(d, p.Err)
		default:
			require.NoError(d, p.Err, "piece %+v is in the model", at)
		}
	}
}

// sameMemory compares where a landed piece went.
func (d *driver) sameMemory(r *request, real, model *skep.Chain, at place) {
	d.Helper()
	blocks, _ := r.blocks.In(len(r.nodes))
	i := at.block - blocks.From
	if stride := int(real.Dest.Stride); real.Dest.Memory != nil {
		a, b := real.Dest.Memory[i*stride:][:stride], model.Dest.Memory[i*stride:][:stride]
		if r.part == "" && r.sp.spec.Shape.Kind != skep.Opaque {
			mask := asked(r.sp.spec.Shape, at.layers, r.heads)
			a, b = pick(a[:len(mask)], mask), pick(b[:len(mask)], mask)
		}
		require.True(d, string(a) == string(b), "memory of piece %+v", at)
	}
	if p, m := real.Dest.Paged, model.Dest.Paged; p != nil {
		off := p.Pages[i] * int(p.PageStride)
		for l := at.layers.From; l < at.layers.To; l++ {
			for k := range planesOf(r.sp.spec.Shape) {
				require.True(d, string(p.Planes[l][k][off:off+int(p.PageStride)]) == string(m.Planes[l][k][off:off+int(p.PageStride)]), "page of piece %+v, layer %d", at, l)
			}
		}
	}
}

// drain runs a session to its end.
func (d *driver) drain(st skep.Store, chains []skep.Chain, meddle func(skep.Session)) map[place]piece {
	d.Helper()
	var s skep.Session
	ask := func() (err error) {
		s, err = st.Restore(d.ctx, &skep.RestoreRequest{Chains: chains})
		return err
	}
	if st == d.real {
		d.try(func() error { st = d.real; return ask() })
	} else {
		require.NoError(d, ask())
	}
	if meddle != nil {
		meddle(s)
	}
	e := &env{T: d.T, st: st, ctx: d.ctx}
	out := map[place]piece{}
	for into := make([]skep.Chunk, 1+d.rnd.IntN(9)); ; {
		n, err := d.next(s, into)
		if errors.Is(err, io.EOF) {
			require.NoError(d, s.Close(d.ctx))
			return out
		}
		require.NoError(d, err)
		for i := range into[:n] {
			e.keep(out, &into[i])
		}
	}
}

// next is Session.Next. The end of a session waits until no drive writes to its destinations
// any more, for ever where a drive holds on to one: such a drive is mended then.
func (d *driver) next(s skep.Session, into []skep.Chunk) (int, error) {
	if d.broken {
		ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
		n, err := s.Next(ctx, into)
		cancel()
		if d.ctx.Err() != nil || !errors.Is(err, skep.Deadline) {
			return n, err
		}
		d.heal()
	}
	return s.Next(d.ctx, into)
}

// requireMissed requires a reason that blocks on failing drives, or known to a failed
// catalog, are missed with.
func (d *driver) requireMissed(err error) {
	d.Helper()
	for _, k := range []skep.Kind{skep.NotFound, skep.Evicted, skep.DeviceFailed, skep.Damaged, skep.Failed} {
		if errors.Is(err, k) {
			return
		}
	}
	require.NoError(d, err, "not a reason to miss a block")
}
