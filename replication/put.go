package replication

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/checks"
	"github.com/skepkv/skep/replication/copies"
	"github.com/skepkv/skep/replication/known"
	"github.com/skepkv/skep/replication/lent"
	"github.com/skepkv/skep/replication/placement"
)

// Want implements skep.Putter. The nodes are asked for all keys of a chain, since a block may be in a group that the
// caller does not name; whether one that is nowhere is wanted says the node that would get it.
func (s many) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	const op = "want"
	if err := checks.Keys(op, len(r.Keys), r.Scope); err != nil {
		return nil, err
	}
	if r.Bytes < 0 {
		return nil, skep.Invalidf(op, "bytes", r.Bytes, "at least 0")
	}
	sp, err := s.enter(ctx, op, r.Namespace)
	if err != nil {
		return nil, err
	}
	planned, share := make([][]uint16, len(r.Keys)), make([]int64, len(s.nodes))
	for i, k := range r.Keys {
		anchor := r.Keys[placement.Anchor(i, sp.group)]
		if e, ok := s.known.Get(r.Scope, k); ok {
			anchor = e.Anchor
		}
		planned[i] = s.holders(sp, r.Salt, anchor)
		for _, at := range planned[i] {
			share[s.owner[at].i]++
		}
	}
	lists := make([][]skep.Want, len(s.nodes))
	for i, err := range s.each(func(n *node) error {
		bytes := int64(0)
		if len(r.Keys) > 0 {
			bytes = r.Bytes / int64(len(r.Keys)) * share[n.i]
		}
		return s.on(ctx, op, n, sp, true, func(ctx context.Context, id skep.NamespaceID) (err error) {
			q := &skep.WantRequest{Scope: skep.Scope{Namespace: id, Salt: r.Salt}, Keys: r.Keys, Bytes: bytes}
			lists[n.i], err = n.st.Want(ctx, q)
			return err
		})
	}) {
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, ended(ctx, op)
		case err != nil && !s.away(err):
			return nil, err
		case err != nil || lists[i] == nil:
			why := cmp.Or(checks.Reason(err), skep.Unavailable) // it is down, where there is no error
			lists[i] = slices.Repeat([]skep.Want{{Outcome: skep.Declined, Reason: why}}, len(r.Keys))
		}
	}
	if r.Salt != "" && s.of.Epoch > 1 { // where an earlier map had these nobody finds them, and no repair moves them
		copies.LeaveStrays(lists, sp.group, func(n, i int) bool {
			return slices.ContainsFunc(planned[i], func(at uint16) bool { return s.owner[at].i == n })
		}, func(n, i int) bool { return slices.Contains(s.holding(sp, r.Salt, r.Keys[i]), s.nodes[n]) })
	}
	out := make([]skep.Want, len(r.Keys))
	of := make([]skep.Want, 0, s.copies(sp))
	for i := range out {
		of = of[:0]
		for _, at := range planned[i] {
			of = append(of, lists[s.owner[at].i][i])
		}
		exists, have := copies.Having(lists, i)
		out[i] = copies.Wanted(of, exists, have, s.acks(sp))
	}
	return out, nil
}

// run is successive blocks of a put that go to one group, or all blocks of one that go to one node, each by itself.
type run struct {
	blocks []skep.Block
	out    []*skep.PutResult // of that node's copies
	at     known.Place       // of the first
	behind []skep.Key        // what that goes on with, where it may not be there
	node   *node
}

// Put implements skep.Putter. The runs that go to one node go there one after another, those of several nodes beside
// one another. Blocks that stand alone go to each node in one call. A node that is away declines its blocks. Where it
// answered no more after it was asked, they are in doubt: whole or absent. Of blocks with replicas all nodes are waited
// for, and a block that too few have is declined, though it is found.
func (s many) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	const op = "put"
	if err := r.Validate(); err != nil {
		return nil, err
	}
	sp, err := s.enter(ctx, op, r.Namespace)
	if err != nil {
		return nil, err
	}
	if err := checks.Ancestors(op, r.Ancestors, r.Depth); err != nil {
		return nil, err
	}
	if err := checks.Put(op, &sp.NamespaceSpec, sp.part, r); err != nil {
		return nil, err
	}
	p := &putting{s: s, sp: sp, r: r, out: make([]skep.PutResult, len(r.Blocks)), parts: lent.NewParts(r.Released)}
	if s.unsure(sp) { // who goes on with these waits for them
		turn, end := s.known.Begin(r.Scope, r.Blocks)
		defer end()
		p.turn = turn
	}
	p.of = [][]skep.PutResult{p.out}
	for range s.copies(sp) - 1 {
		p.of = append(p.of, make([]skep.PutResult, len(r.Blocks)))
	}
	of := p.runs()
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	for _, mine := range of {
		if len(mine) == 0 {
			continue
		}
		wait.Go(func() {
			for _, x := range mine {
				if err := p.put(within, x); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wait.Wait()
	p.decline(within, of)
	if acks := s.acks(sp); len(p.of) > 1 || acks > 1 {
		copies.Merge(p.of, acks)
	}
	err = context.Cause(within)
	if err != nil && ctx.Err() != nil {
		err = ended(ctx, op)
	}
	if p.parts.Held() {
		p.parts.Release()
		if err != nil {
			p.out = nil
		}
		return p.out, &skep.Error{Op: op, Kind: skep.NotReleased, Err: err}
	}
	if err != nil {
		return nil, err
	}
	if stale := p.stale.Load(); stale != nil {
		return p.out, *stale
	}
	return p.out, s.supersede(ctx, sp, r, p.out)
}

// alone says that each block is placed by its own key.
func (p *putting) alone() bool { return p.r.Each || p.sp.group == 1 }

// runs says what goes to each node: a put is cut where it goes on in another group. It remembers where blocks go.
func (p *putting) runs() [][]run {
	of := make([][]run, len(p.s.nodes))
	var last skep.Key
	for i := range p.r.Blocks {
		k := p.r.Blocks[i].Key
		var before []skep.Key // the others' parents are known
		if i == 0 {
			before = p.r.Ancestors
		}
		parent, depth := p.r.Behind(&p.sp.NamespaceSpec, i)
		e := p.s.known.Where(p.sp.group, p.r.Scope, k, depth, parent, before)
		var behind []skep.Key
		if p.s.unsure(p.sp) {
			behind = p.s.known.Behind(p.r.Scope, e, before)
		}
		if p.sp.Chained {
			p.s.known.Put(p.r.Scope, k, e)
		}
		for c, at := range p.s.holders(p.sp, p.r.Salt, e.Anchor) {
			n := p.s.owner[at]
			mine := of[n.i]
			if len(mine) == 0 || !p.alone() && (i == 0 || e.Anchor != last) {
				mine = append(mine, run{at: e, behind: behind, node: n})
			}
			x := &mine[len(mine)-1]
			x.blocks, x.out = append(x.blocks, p.r.Blocks[i]), append(x.out, &p.of[c][i])
			of[n.i] = mine
		}
		last = e.Anchor
	}
	return of
}

// putting is one Put.
type putting struct {
	s   many
	sp  *space
	r   *skep.PutRequest
	out []skep.PutResult
	of  [][]skep.PutResult // of each of a group's nodes; the first is out

	turn  uint64                // among the puts of which is remembered that they are under way
	stale atomic.Pointer[error] // a node's map was newer
	parts *lent.Parts           // what nodes hold of the caller's memory
}

// put carries out one run.
func (p *putting) put(ctx context.Context, x run) error {
	const op = "put"
	q := &skep.PutRequest{Blocks: x.blocks, Ack: p.r.Ack, Exposed: p.r.Exposed, Released: p.parts.Release}
	q.Each = p.sp.Chained && p.alone()
	q.Depth = x.at.Depth - x.at.Base
	if q.Depth > 0 {
		q.Parent = &x.at.Parent
	}
	send := func(ctx context.Context, id skep.NamespaceID) error {
		q.Scope = skep.Scope{Namespace: id, Salt: p.r.Salt}
		p.parts.Begin()
		list, err := x.node.st.Put(ctx, q)
		rest, held := skep.Held(err)
		p.parts.End(held)
		if rest == nil {
			if list == nil && len(q.Blocks) > 0 { // it holds the memory and says no more
				rest = &skep.Error{Op: op, Kind: skep.Unavailable, Field: "answer", Value: "none", Limit: "in time"}
			}
			for i := range min(len(list), len(x.out)) {
				*x.out[i] = list[i]
			}
		}
		return rest
	}
	err := p.s.continues(ctx, op, p.sp, p.r.Scope, &x.at, x.behind, p.turn)
	if err == nil {
		err = p.s.on(ctx, op, x.node, p.sp, true, send)
	}
	old := skep.KindOf(err) == skep.StaleMap
	if old {
		p.stale.Store(&err)
	}
	if err != nil && ctx.Err() == nil && (old || p.s.away(err) || checks.NoRoom(err)) {
		p.declined(x, checks.Reason(err))
		return nil
	}
	return err
}

// unsure says that a durable block may be taken where what it goes on with is not.
func (s many) unsure(sp *space) bool {
	return sp.Class == skep.Durable && (s.missed() || s.acks(sp) < s.copies(sp))
}

// having asks a block's nodes, beside one another, which have all that it goes on with, and gives that and errors by
// their places. It asks again where what was on its way has come, unless enough of them have it.
func (s many) having(ctx context.Context, op string, sp *space, sc skep.Scope, at *known.Place, keys []skep.Key,
	turn uint64, enough int) (has []bool, errs []error) {
	s.known.Until(ctx, sc, keys, turn, func() bool {
		has = make([]bool, len(s.nodes))
		within, cancel := context.WithCancel(ctx)
		defer cancel()
		errs = s.eachOf(s.holding(sp, sc.Salt, at.Anchor), func(n *node) error {
			list, err := s.hasOf(within, op, n, sp, sc.Salt, keys)
			has[n.i] = err == nil && copies.AllOf(list, len(keys))
			if has[n.i] && enough == 1 {
				cancel() // the others are not waited for
			}
			return err
		})
		return copies.Count(has) >= enough
	})
	return has, errs
}

// continues refuses a durable block that goes on with what none of its group's nodes has all of, while a node is down
// that may: it would not be found, for who has it does not know where that is when the node is back.
func (s many) continues(ctx context.Context, op string, sp *space, sc skep.Scope, at *known.Place, keys []skep.Key,
	turn uint64) error {
	if len(keys) == 0 || sp.Class != skep.Durable || !s.missed() {
		return nil
	}
	has, errs := s.having(ctx, op, sp, sc, at, keys, turn, 1)
	if copies.Count(has) > 0 {
		return nil
	}
	var lost error
	for i, err := range errs {
		if err := s.passOver(ctx, op, s.nodes[i], err, &lost); err != nil {
			return err
		}
	}
	return cmp.Or(ended(ctx, op), lost, s.missable(op, false))
}

// decline declines of a durable put what nodes took apart from what it goes on with, where fewer acks than nodes do.
func (p *putting) decline(ctx context.Context, of [][]run) {
	if p.s.acks(p.sp) >= len(p.of) || !copies.SomeDeclined(p.of...) {
		return
	}
	for _, x := range slices.Concat(of...) {
		apart, err := p.s.apart(ctx, "put", p.sp, p.r.Scope, &x.at, x.behind, p.turn)
		if err != nil {
			p.stale.Store(&err)
		}
		if err != nil || apart[x.node.i] {
			p.declined(x, skep.Unavailable)
		}
	}
}

// apart says at which nodes of its group a durable block is apart from what it goes on with, where fewer acks than all
// do: they lack some of that, and another one has all, or may have it and does not answer. What that one does not take,
// too, is not found. An error is that a node's map is newer.
func (s many) apart(ctx context.Context, op string, sp *space, sc skep.Scope, at *known.Place, keys []skep.Key,
	turn uint64) ([]bool, error) {
	if len(keys) == 0 || sp.Class != skep.Durable || s.acks(sp) >= s.copies(sp) {
		return make([]bool, len(s.nodes)), nil
	}
	return copies.Apart(s.having(ctx, op, sp, sc, at, keys, turn, s.copies(sp)))
}

func (p *putting) declined(x run, why skep.Kind) {
	for _, out := range x.out {
		*out = skep.PutResult{Outcome: skep.Declined, Reason: why}
	}
}

// supersede drops the partial tails that blocks have made superfluous and that are on another node than the block:
// one that is at a group's beginning, or loose, is there by its own key.
func (s many) supersede(ctx context.Context, sp *space, r *skep.PutRequest, out []skep.PutResult) error {
	for i := range r.Blocks {
		if b := &r.Blocks[i]; b.Replaces != nil && out[i].Outcome != skep.Declined {
			if err := s.dropTail(ctx, sp, r.Salt, *b.Replaces); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropTail drops one. While a node is down a deletion would cost it its part of the namespace (package fence): the tail
// is evicted then, where it may be.
func (s many) dropTail(ctx context.Context, sp *space, salt skep.Salt, tail skep.Key) error {
	if s.missed() && sp.Class == skep.Cache {
		return nil
	}
	for _, at := range s.holders(sp, salt, tail) {
		if err := s.dropTailOf(ctx, s.owner[at], sp, salt, tail); err != nil {
			return err
		}
	}
	return nil
}

func (s many) dropTailOf(ctx context.Context, n *node, sp *space, salt skep.Salt, tail skep.Key) error {
	r, err := s.part(skep.Uncounted(ctx), sp, salt, n, []skep.Key{tail}, ask{lease: skep.NoLease})
	if errors.Is(err, skep.StaleMap) {
		return nil // the block is stored; its tail goes as others do
	}
	if err != nil || r.Blocks == 0 || r.Tokens == sp.Shape.BlockTokens {
		return err // whole blocks stay: others may follow them
	}
	err = s.on(ctx, "put", n, sp, false, func(ctx context.Context, id skep.NamespaceID) error {
		_, err := n.st.Delete(ctx, skep.Scope{Namespace: id, Salt: salt}, []skep.Key{tail})
		return err
	})
	if err != nil && ctx.Err() == nil && (s.away(err) || sp.Class == skep.Cache && checks.NoRoom(err)) {
		return nil
	}
	return err
}

// Begin implements skep.Putter: the block's nodes take the parts.
func (s many) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	const op = "begin"
	if err := r.Validate(); err != nil {
		return nil, err
	}
	sp, err := s.enter(ctx, op, r.Namespace)
	if err != nil {
		return nil, err
	}
	if err := checks.Ancestors(op, r.Ancestors, r.Depth, r.Key); err != nil {
		return nil, err
	}
	err = checks.Block(op, &sp.NamespaceSpec, sp.part, r.Depth, r.ValidTokens, r.Key, r.Parent, r.Name, r.Manifest)
	if err != nil {
		return nil, err
	}
	e := s.known.Where(sp.group, r.Scope, r.Key, r.Depth, r.Parent, r.Ancestors)
	w := &writer{s: s, sp: sp, scope: r.Scope, key: r.Key, at: e, behind: s.known.Behind(r.Scope, e, r.Ancestors)}
	if r.Replaces != nil {
		w.replaces = new(*r.Replaces)
	}
	acks, there, holders := s.acks(sp), 0, s.holding(sp, r.Salt, e.Anchor)
	of := make([]skep.BlockWriter, len(s.nodes))
	errs := s.eachOf(holders, func(n *node) error {
		q := *r
		if q.Depth = e.Depth - e.Base; q.Depth == 0 {
			q.Parent = nil
		}
		return s.on(ctx, op, n, sp, true, func(ctx context.Context, id skep.NamespaceID) (err error) {
			q.Namespace = id
			of[n.i], err = n.st.Begin(ctx, &q)
			return err
		})
	})
	var bad, lost error
	c := copies.NewWriter(acks, func(err error) (skep.Kind, bool) {
		return checks.Reason(err), s.away(err) || checks.NoRoom(err)
	}, w.look)
	for _, n := range holders {
		err := errs[n.i]
		// This one alone, where it lacks an encryption key.
		declines := s.away(err) || checks.NoRoom(err) || errors.Is(err, skep.Denied)
		switch {
		case err == nil:
			w.BlockWriter, there = of[n.i], there+1
		case ctx.Err() != nil:
			bad = ended(ctx, op)
		case !declines:
			bad = cmp.Or(bad, err)
		case lost == nil:
			lost = n.missing(op, err)
		}
		c.Add(of[n.i], checks.Reason(err))
	}
	switch {
	case bad != nil || there < acks:
		_ = c.Abort(context.WithoutCancel(ctx))
		return nil, cmp.Or[error](bad, lost, &skep.Error{Op: op, Kind: skep.Unavailable, Field: "nodes that are up",
			Value: there, Limit: acks})
	case len(holders) > 1:
		w.BlockWriter, w.nodes = c, holders
	}
	return w, nil
}

// writer is a node's writer of one block.
type writer struct {
	skep.BlockWriter
	s        many
	sp       *space
	scope    skep.Scope
	key      skep.Key
	at       known.Place
	replaces *skep.Key
	nodes    []*node     // where there are several
	behind   []skep.Key  // what it goes on with
	over     atomic.Bool // it is committed no more
}

// Abort implements skep.BlockWriter.
func (w *writer) Abort(ctx context.Context) error {
	w.over.Store(true)
	return w.BlockWriter.Abort(ctx)
}

// Commit implements skep.BlockWriter. What the block goes on with is looked for now: writers of a chain are open
// together, and are waited for where they are being committed.
func (w *writer) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	const op = "commit"
	if w.s.unsure(w.sp) && !w.over.Load() {
		defer w.s.known.Commit(w.scope, w.key)()
		err := w.s.continues(ctx, op, w.sp, w.scope, &w.at, w.behind, known.Last)
		if err != nil && ctx.Err() == nil && (w.s.away(err) || checks.NoRoom(err)) {
			_ = w.Abort(context.WithoutCancel(ctx))
			return skep.PutResult{Outcome: skep.Declined, Reason: checks.Reason(err)}, nil
		} else if err != nil {
			return skep.PutResult{}, err
		}
	}
	out, err := w.BlockWriter.Commit(ctx, ack)
	w.over.Store(!errors.Is(err, skep.Invalid)) // else a byte was not written
	if err == nil && out.Outcome == skep.Declined {
		err = ended(ctx, op)
	}
	if err != nil || out.Outcome == skep.Declined {
		return out, err
	}
	if w.sp.Chained {
		w.s.known.Put(w.scope, w.key, w.at)
	}
	if w.replaces != nil {
		err = w.s.dropTail(ctx, w.sp, w.scope.Salt, *w.replaces)
	}
	return out, err
}

// look declines what nodes took apart from what it goes on with, where fewer acks than nodes do.
func (w *writer) look(ctx context.Context, out []skep.PutResult) {
	if w.s.acks(w.sp) >= len(out) || !copies.SomeDeclined(out) {
		return
	}
	apart, err := w.s.apart(ctx, "commit", w.sp, w.scope, &w.at, w.behind, known.Last)
	for i, n := range w.nodes {
		if err != nil || apart[n.i] {
			out[i] = skep.PutResult{Outcome: skep.Declined, Reason: skep.Unavailable}
		}
	}
}
