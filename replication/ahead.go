package replication

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/answers"
	"github.com/skepkv/skep/replication/errand"
	"github.com/skepkv/skep/replication/owed"
	"github.com/skepkv/skep/replication/pace"
)

// A node that is slow keeps no lookup waiting: what it is late with another of a group's nodes is asked for, and what
// comes first counts. Who is late, and who is asked at all, says package pace.

// paced says whether a namespace's groups have another node that may be asked in place of one that is late.
func (s many) paced(sp *space) bool { return !s.oneAtATime && s.copies(sp) > 1 }

// standing is how long each of the map's nodes is expected to take for a lookup, by its place there, and which are slow;
// where none is, expect is nil. A node whose runs are slow counts as slow until it is time to try one there.
func (s many) standing(now time.Time) (expect []time.Duration, slow []bool) {
	expect, slow = pace.Compare(now, s.lines(restLine))
	runs, slowRuns := pace.Compare(now, s.lines(runLine))
	alike := !slices.Contains(slow, true)
	for i, n := range s.owner {
		if slowRuns[i] && !n.runs.Ready(now) {
			expect[i], alike = max(expect[i], runs[i]), false
		}
	}
	if alike {
		expect = nil
	}
	return expect, slow
}

func lookupLine(n *node) *pace.Line { return n.lookups.Line(n.owed.Load() > 0) }
func restLine(n *node) *pace.Line   { return n.lookups.Line(false) }
func runLine(n *node) *pace.Line    { return n.runs }

// lines is a line of each of the map's nodes, by its place in the map.
func (s many) lines(of func(n *node) *pace.Line) []*pace.Line {
	out := make([]*pace.Line, len(s.owner))
	for i, n := range s.owner {
		out[i] = of(n)
	}
	return out
}

// usual is what lookups usually take, by which one is late.
func (s many) usual() pace.Both {
	pairs := make([]pace.Pair, len(s.owner))
	for i, n := range s.owner {
		pairs[i] = n.lookups
	}
	return pace.UsualOf(time.Now(), pairs)
}

// chooser says which of the nodes at places in the map is asked for a group: the one that owes this client least, of
// restores under way and of what calls ask it for until they are done. Slow ones are not, where there is another; they
// are probed beside the call. What the call asks nodes for is in a's book, which the caller settles.
func (s many) chooser(ctx context.Context, sp *space, salt skep.Salt, runs [][]skep.Key, a *ask) func([]uint16) *node {
	kind, asked, book := lookupLine(s.owner[0]).Kind(), make([]int64, len(s.owner)), owed.New(s.asks)
	a.book = &book
	var expect []time.Duration
	if s.paced(sp) {
		now := time.Now()
		standing, slow := s.standing(now)
		for i := range slow {
			if expect = standing; slow[i] {
				s.probe(ctx, now, sp, salt, s.owner[i], runs)
			}
		}
	}
	return func(at []uint16) *node {
		for _, x := range at {
			asked[x] = s.owner[x].owed.Load() + s.owner[x].asked.Load()
		}
		n := s.owner[pace.Choose(kind, at, expect, asked)]
		book.Owes(n.i, int64(sp.group)*sp.each())
		return n
	}
}

// probe asks a slow node for a block, to see whether it is slow yet, where it is time for that. Nobody waits for it.
func (s many) probe(ctx context.Context, now time.Time, sp *space, salt skep.Salt, n *node, runs [][]skep.Key) {
	if len(runs) == 0 || len(runs[0]) == 0 {
		return
	}
	c := n.lookups.Probe(now, n.owed.Load() > 0)
	if c == nil {
		return
	}
	keys := []skep.Key{runs[0][0]} // the caller's are its own when it returns
	e := s.aside(ctx, n, func(ctx context.Context) {
		_, err := s.part(skep.Uncounted(ctx), sp, salt, n, keys, ask{lease: skep.NoLease})
		c.End(time.Now(), err == nil)
	})
	if e == nil {
		c.End(now, false)
	}
	e.Left()
}

// aside calls f beside the caller, with a context that ends with the Store. nil: the Store is closed, or too many such
// calls to the node were left behind.
func (s many) aside(ctx context.Context, n *node, f func(ctx context.Context)) *errand.Errand {
	return n.behind.Run(s.start, s.ctx, ctx, f)
}

// briefly calls f, which calls a node, and does not wait longer for it than until it is late, which is due.
func (s many) briefly(ctx context.Context, n *node, due time.Duration, f func(ctx context.Context)) {
	if s.oneAtATime || s.table.Copies() == 1 {
		f(ctx)
		return
	}
	done := make(chan struct{})
	e := s.aside(ctx, n, func(ctx context.Context) {
		defer close(done)
		f(ctx)
	})
	if e == nil {
		return
	}
	late := time.NewTimer(due)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		e.Left()
	}
}

type arrival struct {
	to *answer
	*answers.Said
}

// wave is calls to nodes for groups, each of which has several nodes. It goes on until one of each group's nodes has
// said what it has of it.
type wave struct {
	s     many
	sp    *space
	salt  skep.Salt
	runs  [][]skep.Key
	ask   ask
	of    []*answer
	alone bool // nobody else is asked: what is late is away

	usual pace.Both
	late  []time.Time  // by answer: when it is, and another node is asked; zero: that has been seen to
	calls []*pace.Call // by answer

	mu    sync.Mutex
	over  bool          // what comes is given back
	said  []arrival     // in the order in which it came
	under int           // calls that have not ended
	each  bool          // of every answer is told, for some are late; else when all have come
	came  chan struct{} // one token: something is in said
}

// run asks. What has not answered when it returns is away, and what of its leases comes is given back.
func (w *wave) run(ctx context.Context) (err error) {
	w.usual = w.s.usual()
	for _, x := range w.of {
		w.begin(ctx, x)
	}
	for {
		now := time.Now()
		w.hedge(ctx, now)
		if w.settled() || err != nil {
			break
		}
		err = w.wait(ctx, now)
		if e := w.read(); err == nil {
			err = e
		}
	}
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	if e := w.read(); err == nil { // what has come since
		err = e
	}
	w.end()
	return err
}

// end notes who was late, and who came first in its place.
func (w *wave) end() {
	won := int64(0)
	for _, x := range w.of {
		if !x.done {
			x.away = true
			x.errand.Left()
		}
		if x.done && !x.away && x.instead != nil && !x.instead.done {
			won++
		}
	}
	if won > 0 {
		w.s.hedges.Note(func(st *skep.HedgeStats) { st.LookupsWon += won })
	}
}

// begin asks a node.
func (w *wave) begin(ctx context.Context, x *answer) {
	s, n, groups := w.s, x.node, x.groups
	if x.wave = w; x.instead == nil {
		s.hedges.Calls.Earn(1)
	}
	w.late = append(w.late, time.Time{})
	keys := x.keys(w.runs)
	lent := errand.Copy(keys) // the call may outlast the caller's
	began := time.Now()
	c := lookupLine(n).Begin(began)
	w.calls = append(w.calls, c)
	w.mu.Lock()
	w.under++
	w.mu.Unlock()
	x.errand = s.aside(ctx, n, func(ctx context.Context) {
		y := s.askOne(ctx, w.sp, w.salt, n, groups, keys, w.ask)
		errand.GiveBack(lent)
		c.End(time.Now(), !y.Away && ctx.Err() == nil)
		if w.give(x, y) {
			return
		}
		for _, id := range append(y.Leases, y.Lease) {
			if id != 0 {
				_ = n.st.Release(ctx, id) // one that is not released runs out
			}
		}
	})
	if x.errand == nil {
		errand.GiveBack(lent)
		c.End(began, false)
		w.give(x, &answers.Said{Away: true})
		return
	}
	w.late[len(w.late)-1] = began.Add(w.usual.Due(c.Line()))
}

// give hands an answer over; false where nobody waits for it any more.
func (w *wave) give(x *answer, y *answers.Said) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false
	}
	w.said = append(w.said, arrival{x, y})
	if w.under--; w.under > 0 && !w.each {
		return true
	}
	select {
	case w.came <- struct{}{}:
	default:
	}
	return true
}

// read takes what has come.
func (w *wave) read() (first error) {
	w.mu.Lock()
	list := w.said
	w.said = nil
	w.mu.Unlock()
	for i := range list {
		list[i].to.take(list[i].Said)
		if err := list[i].Err; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// wait waits until something comes, or is late.
func (w *wave) wait(ctx context.Context, now time.Time) error {
	var next time.Time
	for i, x := range w.of {
		if t := w.late[i]; !x.done && !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	var late <-chan time.Time
	if !next.IsZero() {
		t := time.NewTimer(next.Sub(now))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-w.came:
	case <-late:
	case <-ctx.Done():
		return ended(ctx, "lookup")
	}
	return nil
}

// hedge asks other nodes for what is late.
func (w *wave) hedge(ctx context.Context, now time.Time) {
	for i := 0; i < len(w.of); i++ {
		x := w.of[i]
		if x.done || w.late[i].IsZero() || now.Before(w.late[i]) {
			continue
		}
		w.late[i] = time.Time{}
		if x.late = w.calls[i].Line().Hopeless(now); !x.late {
			w.late[i] = now.Add(w.usual.Due(w.calls[i].Line())) // to look again
		}
		if x.asked {
			continue
		}
		x.asked = true
		w.calls[i].Late(now)
		w.mu.Lock()
		w.each = true
		w.mu.Unlock()
		if w.alone {
			x.done, x.away = true, true
			continue
		}
		var to spread
		for _, g := range x.groups {
			first := g
			if g.first != nil {
				first = g.first
			}
			tried := 0
			for y := first.next; y != nil; y = y.next {
				tried++
			}
			if n := w.s.other(w.sp, w.salt, w.runs[g.run][g.head], first.node, tried); n != nil && !first.settled(w) {
				to.add(first, n)
			}
		}
		if len(to) == 0 || !w.s.hedges.Calls.Take(int64(len(to))) {
			continue
		}
		w.s.hedges.Note(func(st *skep.HedgeStats) { st.Lookups += int64(len(to)) })
		for _, y := range to {
			w.ask.book.Owes(y.node.i, int64(len(y.groups)*w.sp.group)*w.sp.each())
			y.instead = x
			w.of = append(w.of, y)
			w.begin(ctx, y)
		}
	}
}

// settled says whether one of the group's nodes has all of it, or all that a wave asks have answered or are away. A
// node is not waited for that is hopeless, where another one has said what it has.
func (g *group) settled(w *wave) bool {
	answered, all := false, true
	for x := g; x != nil; x = x.next {
		if x.by.done && !x.by.away {
			if answered = true; x.found.Blocks == x.to-x.from {
				return true
			}
		}
	}
	for x := g; x != nil; x = x.next {
		all = all && (x.by.wave != w || x.by.done || answered && x.by.late)
	}
	return all
}

// settled says whether nothing has to be waited for any more.
func (w *wave) settled() bool {
	for _, x := range w.of {
		if x.done {
			continue
		}
		if w.alone {
			return false
		}
		for _, g := range x.groups {
			if g.first != nil {
				g = g.first
			}
			if !g.settled(w) {
				return false
			}
		}
	}
	return true
}

// askAgain asks a node that has just answered, as long as it is not late.
func (s many) askAgain(ctx context.Context, sp *space, salt skep.Salt, runs [][]skep.Key, a ask, x *answer) error {
	if s.paced(sp) {
		w := &wave{s: s, sp: sp, salt: salt, runs: runs, ask: a, of: []*answer{x}, alone: true, came: make(chan struct{}, 1)}
		return w.run(ctx)
	}
	y := s.askOne(ctx, sp, salt, x.node, x.groups, runs, a)
	x.take(y)
	return y.Err
}

// loose asks for blocks that are together, and are placed by the first one's key.
func (s many) loose(ctx context.Context, sp *space, salt skep.Salt, keys []skep.Key, a ask) (*node, skep.LookupResult, error) {
	runs := [][]skep.Key{keys}
	pick := s.chooser(ctx, sp, salt, runs, &a)
	defer a.book.Settle()
	by := &answer{node: pick(s.holders(sp, salt, keys[0]))}
	groups := []group{{span: span{node: by.node, to: len(keys)}, by: by}}
	by.groups = []*group{&groups[0]}
	_, err := s.askFor(ctx, sp, salt, runs, a, groups, []*answer{by})
	best := groups[0].best()
	var rest []span
	for g := &groups[0]; g != nil; g = g.next {
		if g != best || err != nil {
			rest = append(rest, g.span)
		}
	}
	s.release(context.WithoutCancel(ctx), rest)
	out := skep.LookupResult{Blocks: best.found.Blocks, Tokens: best.found.Tokens, Bytes: best.found.Bytes,
		Estimate: best.found.Estimate, Tiers: best.tiers, LeaseDenied: best.by.denied}
	out.Lease = skep.Lease{ID: best.lease, Until: best.by.until}
	return best.node, out, err
}

// whoHasSoon is whoHas, but for nodes that are late. So many are waited for that each group has one among them; the
// others for as long again, and no less than until a call is late.
func (s many) whoHasSoon(
	ctx context.Context, op string, sp *space, salt skep.Salt, keys []skep.Key,
) ([][]skep.Want, error) {
	if !s.paced(sp) {
		return s.whoHas(ctx, op, sp, salt, keys)
	}
	type told struct {
		n    *node
		list []skep.Want
		err  error
	}
	came := make(chan told, len(s.live))
	began := time.Now()
	for _, n := range s.live {
		e := s.aside(ctx, n, func(ctx context.Context) {
			list, err := s.hasOf(ctx, op, n, sp, salt, keys)
			came <- told{n, list, err}
		})
		if e == nil {
			came <- told{n: n}
		}
		defer e.Left() // of those that are late
	}
	lists := make([][]skep.Want, len(s.nodes))
	var late <-chan time.Time
	for left := len(s.live); left > 0; left-- {
		if left < s.copies(sp) && late == nil {
			timer := time.NewTimer(max(time.Since(began), s.usual().Due(lookupLine(s.owner[0]))))
			defer timer.Stop()
			late = timer.C
		}
		select {
		case x := <-came:
			if x.err != nil && !s.away(x.err) {
				return nil, x.err
			}
			lists[x.n.i] = x.list
		case <-late:
			return lists, nil
		case <-ctx.Done():
			return nil, ended(ctx, op)
		}
	}
	return lists, nil
}

// spread is what other nodes are asked for.
type spread []*answer

// add has a node asked for the blocks of a group, the first of its nodes'.
func (to *spread) add(g *group, n *node) {
	var by *answer
	for _, x := range *to {
		if x.node == n {
			by = x
		}
	}
	if by == nil {
		by = &answer{node: n}
		*to = append(*to, by)
	}
	x := &group{run: g.run, span: span{node: n, head: g.head, from: g.from, to: g.to}, by: by, first: g}
	last := g
	for last.next != nil {
		last = last.next
	}
	last.next = x
	by.groups = append(by.groups, x)
}
