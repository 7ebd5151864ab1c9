package replication

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/replication/pace"
	"github.com/skepkv/skep/replication/underway"
	"github.com/skepkv/skep/replication/units"
)

// hold is how long a session without a lease of its caller's has the nodes keep what it is about to read.
const hold = time.Minute

// Restore implements skep.Restorer. Where the caller has no lease, the chain is looked up first: what of it may be
// restored depends on all of its groups.
func (s many) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	const op = "restore"
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	x := newSession(s, r)
	for i := range r.Chains {
		sp, err := s.spaces.get(op, r.Chains[i].Namespace)
		if err != nil {
			return nil, err
		}
		c, err := s.newChain(i, sp, r)
		if err != nil {
			return nil, err
		}
		x.chains = append(x.chains, c)
		x.left += c.Chunks()
	}
	if err := x.findAll(ctx); err != nil {
		x.owed.Settle()
		s.release(context.WithoutCancel(ctx), x.held)
		return nil, err
	}
	s.mu.Lock()
	if s.closed.Load() {
		s.mu.Unlock()
		x.owed.Settle()
		return nil, &skep.Error{Op: op, Kind: skep.Closed}
	}
	s.sessions[x] = struct{}{}
	s.mu.Unlock()
	if err := x.begin(); err != nil {
		return nil, errors.Join(err, x.Close(ctx))
	}
	return x, nil
}

// chain is one chain of a session: its plan, where its blocks are, and how far it is.
type chain struct {
	*layout.ChainPlan
	number  int
	space   *space
	lanes   []lane // of each node; the last is of the blocks that no node has
	units   []units.State
	layers  []units.Layer // of the Layers range, of a chain that goes by layers
	valid   int           // tokens of the last of Keys, where it was found
	each    int64         // bytes of a chunk, as near as that is known
	stopped bool
	timer   *time.Timer // of the deadline
	planned             // of a chain with a cost
}

// gone is why what has not been begun of a chain is a miss; 0: it is none.
func (c *chain) gone(now time.Time) skep.Kind {
	if c.stopped {
		return skep.Stopped
	} else if !c.Deadline.IsZero() && !now.Before(c.Deadline) {
		return skep.Deadline
	}
	return 0
}

// lane is what of a chain is on one node, and how much of it has been seen to: block i, or layer l, of span s.
type lane struct {
	spans []span // clipped to the chain's Blocks, in the order of loading
	span  int
	block int // of the span, in the order of loading; of a layer, those before it are misses
	layer int // in the order of loading
	loads int // under way there
}

func (l *lane) over(c *chain) bool {
	if c.Direction.ByLayer() {
		return len(l.spans) == 0 || l.layer == c.Layers.Len()
	}
	return l.span == len(l.spans)
}

func (s many) newChain(number int, sp *space, all *skep.RestoreRequest) (*chain, error) {
	r, beside := &all.Chains[number], -1
	for i := range all.Chains {
		if all.Chains[i].Compute != nil {
			beside++
		}
	}
	if r.Compute != nil && r.Compute.Boundary != nil {
		return nil, &skep.Error{Op: "restore", Kind: skep.Unsupported, Field: "boundary of chain", Value: number}
	}
	p, err := layout.PlanChain(r, sp.Shape)
	if err != nil {
		return nil, err
	}
	if err := s.resolve(p, sp, beside); err != nil {
		return nil, err
	}
	c := &chain{ChainPlan: p, number: number, space: sp, valid: sp.Shape.BlockTokens}
	n := p.Blocks.Len()
	if p.Direction.ByLayer() && n > 0 {
		n = p.Layers.Len()
		c.layers = make([]units.Layer, n)
	}
	c.units = make([]units.State, n)
	return c, nil
}

// findAll says where the chains' blocks are: one lookup of all that no lease has.
func (x *session) findAll(ctx context.Context) error {
	s := x.st
	type scope struct {
		space *space
		salt  skep.Salt
	}
	var scopes []scope
	asked := map[scope][]*chain{}
	for _, c := range x.chains {
		c.lanes = make([]lane, len(s.nodes)+1)
		switch {
		case c.Blocks.Len() == 0:
			x.place(c, nil, c.Size)
		case !c.space.Chained:
			x.place(c, x.alone(c), c.Size)
		default:
			if spans, tail := s.leased(c.Lease).covers(c.space, c.Salt, c.Keys); len(spans) > 0 && spans[len(spans)-1].to >= c.Blocks.To {
				if spans[len(spans)-1].to == len(c.Keys) {
					c.valid = tail
				}
				x.place(c, spans, c.Size) // as it was found then
				break
			}
			sc := scope{c.space, c.Salt}
			if asked[sc] == nil {
				scopes = append(scopes, sc)
			}
			asked[sc] = append(asked[sc], c)
		}
	}
	for _, sc := range scopes {
		if err := x.look(ctx, sc.space, sc.salt, asked[sc]); err != nil {
			return err
		}
	}
	return nil
}

// look says where blocks of chains of one namespace and salt are.
func (x *session) look(ctx context.Context, sp *space, salt skep.Salt, chains []*chain) error {
	s := x.st
	runs := make([][]skep.Key, len(chains))
	for i, c := range chains {
		runs[i] = c.Keys[:c.Blocks.To]
	}
	all, err := s.find(skep.Uncounted(ctx), sp, salt, runs, ask{lease: hold})
	if err != nil {
		return err
	}
	var begun []*chain // whose first key is nowhere where a chain begins
	for i, f := range all {
		c, size := chains[i], chains[i].Size
		x.held = append(x.held, f.spans...)
		if f.Blocks == 0 {
			begun = append(begun, c)
			continue
		}
		if size < 0 {
			size = f.Bytes / int64(f.Blocks)
		}
		if f.Blocks == len(c.Keys) {
			c.valid = f.tail(sp)
		}
		x.place(c, f.spans, size)
	}
	return x.inside(ctx, sp, salt, begun)
}

// inside says where blocks are of chains that may begin inside one: who loads a part to a place of its own names no
// more, so its group is not known. Every node is asked which of the keys it has; who may not ask that finds none.
func (x *session) inside(ctx context.Context, sp *space, salt skep.Salt, chains []*chain) error {
	var keys []skep.Key
	for _, c := range chains {
		keys = append(keys, c.Keys[:c.Blocks.To]...)
	}
	if len(keys) == 0 {
		return nil
	}
	lists, err := x.st.whoHasSoon(ctx, "restore", sp, salt, keys)
	if err != nil && ctx.Err() != nil {
		return ended(ctx, "restore")
	}
	asked := make([]int, len(x.st.nodes))
	at := 0
	for _, c := range chains {
		var spans []span
		for i := range c.Blocks.To {
			var have []*node
			for _, m := range x.st.nodes {
				if lists != nil && lists[m.i] != nil && lists[m.i][at+i].Outcome == skep.Exists &&
					!lists[m.i][at+i].Wanted {
					have = append(have, m)
				}
			}
			if len(have) == 0 { // what follows is hidden behind it
				break
			}
			if k := len(spans); k > 0 && slices.Equal(spans[k-1].also, have) {
				spans[k-1].to = i + 1
				asked[spans[k-1].node.i]++
				continue
			}
			n := slices.MinFunc(have, func(a, b *node) int { return asked[a.i] - asked[b.i] })
			asked[n.i]++
			spans = append(spans, span{node: n, head: i, from: i, to: i + 1, also: have})
		}
		at += c.Blocks.To
		x.place(c, spans, c.Size)
	}
	return nil
}

// alone is where keys are that stand alone, with the leases that there are of them.
func (x *session) alone(c *chain) []span {
	s := x.st
	spans := s.alone(c.space, c.Salt, c.Keys, c.Blocks.From, c.Blocks.To)
	if promise := s.leased(c.Lease); promise != nil && promise.space == c.space && promise.salt == c.Salt {
		of := make([]skep.LeaseID, len(s.nodes))
		for _, p := range promise.spans() {
			of[p.node.i] = p.lease
		}
		for i := range spans {
			spans[i].lease = of[spans[i].node.i]
		}
	}
	return spans
}

// place notes where the chain's blocks are: in spans, in order; what is in none no node has. size is a block's, or < 0.
func (x *session) place(c *chain, spans []span, size int64) {
	at, none := c.Blocks.From, &c.lanes[len(x.st.nodes)]
	gap := func(to int) {
		if at < to {
			none.spans = append(none.spans, span{head: at, from: at, to: to})
		}
	}
	for _, p := range spans {
		if p.from, p.to = max(p.from, c.Blocks.From), min(p.to, c.Blocks.To); p.from < p.to {
			gap(p.from)
			c.lanes[p.node.i].spans = append(c.lanes[p.node.i].spans, p)
			at = p.to
		}
	}
	gap(c.Blocks.To)
	if c.Direction == skep.TailFirst {
		for i := range c.lanes {
			slices.Reverse(c.lanes[i].spans)
		}
	}
	if size < 0 {
		size = cmp.Or(c.Dest.Stride, c.space.each())
	} else if size > 0 {
		c.space.size.Store(size)
	}
	if c.each = size; c.Structured {
		c.each = size / int64(c.Geometry.Layers())
		if !c.Direction.ByLayer() {
			c.each *= int64(c.Layers.Len())
		}
	}
	per := c.each
	if c.Direction.ByLayer() {
		per *= int64(c.Layers.Len())
	}
	for i := range x.st.nodes {
		for _, p := range c.lanes[i].spans {
			x.owed.Owes(i, per*int64(p.to-p.from))
		}
	}
}

// work is blocks of a chain that are loaded from one node by one session there.
type work struct {
	chain  *chain
	node   *node
	pieces []piece
	bytes  int64
	first  map[place]error // why other nodes did not give it
	probe  *pace.Call      // it is to show whether the node is slow yet
}

// piece is blocks [from, to) of a span, and which layers of them.
type piece struct {
	span
	layers skep.Range
	tried  int // how many of the group's other nodes did not give it; node is the first that was asked
	// moved says that the first node was late or slow, and is asked when no other one gives it; by its promise.
	moved   bool
	promise skep.LeaseID
	taken   *taken // from a node that was late; nil: it was not
}

// What one session on a node loads at most.
const workBytes, workPieces, workChunks = 8 << 20, 64, 512

// next takes the lane's next work: w is nil where there is none now, and what has become of chunks that are not
// loaded is queued.
func (x *session) next(c *chain, i int) (w *work) {
	l := &c.lanes[i]
	var n *node
	if i < len(x.st.nodes) {
		n = x.st.nodes[i]
	}
	gone, chunks := c.gone(x.now), 0
	for len(x.ready) < mostReady && !l.over(c) {
		p := piece{span: l.spans[l.span], layers: c.Layers}
		unit := 0
		if c.Direction.ByLayer() {
			layer := c.Layers.From + l.layer
			if c.Direction == skep.LayersDown {
				layer = c.Layers.To - 1 - l.layer
			}
			p.from, p.layers = p.from+l.block, skep.Range{From: layer, To: layer + 1}
			unit = layer - c.Layers.From
		} else {
			at := p.from + l.block
			if c.Direction == skep.TailFirst {
				at = p.to - 1 - l.block
			}
			p.from, p.to = at, at+1
			unit = at - c.Blocks.From
		}
		var why error
		switch {
		case c.units[unit] == units.Claimed:
			why = &skep.Error{Op: "restore", Kind: skep.Claimed}
		case gone != 0:
			why = &skep.Error{Op: "restore", Kind: gone}
		case n == nil:
			why = &skep.Error{Op: "restore", Kind: skep.NotFound}
		}
		if why == nil {
			bytes := c.each * int64(p.to-p.from)
			if w == nil {
				w = &work{chain: c, node: n}
			} else if w.bytes+bytes > x.most() || len(w.pieces) == workPieces || chunks+p.to-p.from > workChunks {
				return w
			}
			w.add(p)
			w.bytes += bytes
			chunks += p.to - p.from
			c.units[unit] = units.Loaded
		} else {
			to := min(p.to, p.from+mostReady-len(x.ready))
			for b := p.from; b < to; b++ {
				x.miss(c, b, p.layers, why)
			}
			if n != nil {
				x.owed.Paid(i, c.each*int64(to-p.from))
			}
			if to < p.to { // the rest once there is room
				l.block += to - p.from
				continue
			}
		}
		c.step(l)
	}
	return w
}

// add puts a piece to the work: to the last one where it goes on with it.
func (w *work) add(p piece) {
	if n := len(w.pieces); n > 0 {
		switch last := &w.pieces[n-1]; {
		case last.head != p.head || last.layers != p.layers || last.tried != p.tried || last.moved != p.moved || last.taken != p.taken:
		case last.to == p.from:
			last.to = p.to
			return
		case last.from == p.to:
			last.from = p.from
			return
		}
	}
	w.pieces = append(w.pieces, p)
}

// step goes on in a lane.
func (c *chain) step(l *lane) {
	if l.block++; !c.Direction.ByLayer() && l.block < l.spans[l.span].to-l.spans[l.span].from {
		return
	}
	l.block = 0
	if l.span++; l.span == len(l.spans) && c.Direction.ByLayer() {
		l.span = 0
		l.layer++
	}
}

// request is the restore that a node is asked for: a chain for each piece, each to its part of the destination.
func (w *work) request(sums bool, id skep.NamespaceID) *skep.RestoreRequest {
	c := w.chain
	r := &skep.RestoreRequest{Sums: sums}
	blocks := 0
	for _, p := range w.pieces {
		q := skep.Chain{
			Scope: skep.Scope{Namespace: id, Salt: c.Salt}, Keys: c.Keys[p.head:p.to], Blocks: skep.Only(p.from-p.head, p.to-p.head),
			Part: c.Part, Direction: skep.HeadFirst, Heads: c.Heads, Lease: p.lease, Deadline: c.Deadline, Priority: c.Priority,
			Dest: c.DestOf(p.from, p.to),
		}
		if c.Structured {
			q.Layers = p.layers.Subset()
		}
		if c.Direction == skep.TailFirst {
			q.Direction = skep.TailFirst
		}
		r.Chains = append(r.Chains, q)
		blocks += p.to - p.from
	}
	if d := c.Dest; d.Memory != nil || d.Paged != nil {
		r.Window = underway.Window(max(w.bytes, int64(blocks)*d.Stride))
	}
	return r
}
