package replication

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/answers"
	"github.com/skepkv/skep/replication/errand"
	"github.com/skepkv/skep/replication/known"
	"github.com/skepkv/skep/replication/owed"
	"github.com/skepkv/skep/replication/promises"
)

// span is blocks [from, to) of a chain that are together on a node, in a chain there that begins with block head.
type span struct {
	node     *node
	head     int
	from, to int
	lease    skep.LeaseID // the node's
	also     []*node      // that have it, where a chain's part was asked for; nil: those of its group
}

// ask is what is wanted of a lookup.
type ask struct {
	lease time.Duration
	tiers bool
	cost  *skep.RecomputeCost
	book  *owed.Book // of what the call asks nodes for; nil: nobody keeps it
}

// finding is what a lookup found of a chain: a prefix of the keys.
type finding struct {
	skep.LookupResult
	keys  []skep.Key
	spans []span
	time  map[*node]time.Duration // estimates of restoring, by node; nil: nobody asked
	until time.Time               // of the first of the leases
	whole bool                    // the last block is no partial tail
	over  bool                    // it ends here
}

// tail is the tokens of the last block found.
func (f *finding) tail(sp *space) int { return f.Tokens - (f.Blocks-1)*sp.Shape.BlockTokens }

// Lookup implements skep.PrefixFinder.
func (s many) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	const op = "lookup"
	if err := r.Validate(); err != nil {
		return skep.LookupResult{}, err
	}
	found, lease, denied, err := s.look(ctx, op, r.Scope, [][]skep.Key{r.Keys}, ask{r.Lease, r.Tiers, r.Cost, nil})
	if err != nil {
		return skep.LookupResult{}, err
	}
	f := found[0]
	f.Lease, f.LeaseDenied = lease, denied
	return f.LookupResult, nil
}

// LookupRuns implements skep.PrefixFinder.
func (s many) LookupRuns(ctx context.Context, r *skep.RunsRequest) (out skep.RunsResult, err error) {
	if err := r.Validate(); err != nil {
		return out, err
	}
	found, lease, denied, err := s.look(ctx, "lookup of runs", r.Scope, r.Runs, ask{r.Lease, r.Tiers, r.Cost, nil})
	if err != nil {
		return out, err
	}
	for _, f := range found {
		out.Add(&f.LookupResult)
	}
	out.Lease, out.LeaseDenied = lease, denied
	return out, nil
}

// look looks runs of keys up, remembers where they end, and gives one lease of all that was found.
func (s many) look(ctx context.Context, op string, sc skep.Scope, runs [][]skep.Key, a ask) (found []*finding, l skep.Lease, denied bool, err error) {
	sp, err := s.enter(ctx, op, sc.Namespace)
	if err != nil {
		return nil, l, false, err
	}
	if found, err = s.find(ctx, sp, sc.Salt, runs, a); err != nil {
		return nil, l, false, err
	}
	some, counts := false, skep.Counts(ctx)
	for _, f := range found {
		if counts {
			s.count.Lookups.Add(1)
			s.count.Keys.Add(int64(len(f.keys)))
			s.count.Hits.Add(int64(f.Blocks))
		}
		some, denied = some || f.Blocks > 0, denied || f.LeaseDenied
		if n := f.Blocks; n > 0 && sp.group > 1 {
			last := f.spans[len(f.spans)-1]
			e := known.Place{Depth: n - 1, Anchor: f.keys[last.head], Base: last.head}
			if n > 1 {
				e.Parent, e.HasParent = f.keys[n-2], true
			}
			s.known.Put(sc, f.keys[n-1], e)
		}
		for _, t := range f.time {
			f.Estimate = max(f.Estimate, t) // the nodes load beside one another
		}
		f.Pays = a.cost == nil || f.Estimate < a.cost.Of(f.Tokens)
	}
	if a.lease != skep.NoLease && some && !denied {
		l, denied = s.promise(sp, sc.Salt, found)
	}
	if denied {
		for _, f := range found {
			s.release(ctx, f.spans)
		}
	}
	return found, l, denied, nil
}

// part asks one node for keys [from, to), which are a chain there. A node that is away has nothing.
func (s many) part(ctx context.Context, sp *space, salt skep.Salt, n *node, keys []skep.Key, a ask) (out skep.LookupResult, err error) {
	err = s.on(ctx, "lookup", n, sp, false, func(ctx context.Context, id skep.NamespaceID) error {
		out, err = n.st.Lookup(ctx, &skep.LookupRequest{Scope: skep.Scope{Namespace: id, Salt: salt}, Keys: keys, Lease: a.lease, Tiers: a.tiers, Cost: a.cost})
		return err
	})
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return out, ended(ctx, "lookup")
	case s.away(err):
		return skep.LookupResult{}, nil
	}
	return out, err
}

// group is blocks of one of the runs that a lookup asks a node for, which are a chain there.
type group struct {
	run int
	span
	found skep.RunFound
	tiers []skep.Tier
	by    *answer
	kept  bool   // it is of the run's prefix
	next  *group // the same blocks, asked for at another node
	first *group // where it is a next: the first of these
}

// best is the group as that of its nodes has it that has most of it.
func (g *group) best() *group {
	best := g
	for x := g.next; x != nil; x = x.next {
		if x.found.Blocks > best.found.Blocks {
			best = x
		}
	}
	return best
}

// answer is what a node said of its groups.
type answer struct {
	node    *node
	groups  []*group
	done    bool // it said something, or is away
	away    bool // it did not answer, or not in time
	errand  *errand.Errand
	asked   bool // others were asked because it is late
	late    bool // it is not waited for, where others have said what they have
	wave    *wave
	instead *answer // it was asked because that one was late
	one     bool    // one lease is of all of them
	until   time.Time
	denied  bool

	was, now skep.LeaseID // the one lease has been replaced
}

// find finds the longest prefix of each of the runs: every node that is asked for groups is asked once for all of them,
// the nodes at once. Where groups have several nodes, one of them is asked, and another one for what that does not have.
// What is leased beyond the prefixes is given back.
func (s many) find(ctx context.Context, sp *space, salt skep.Salt, runs [][]skep.Key, a ask) ([]*finding, error) {
	out := make([]*finding, len(runs))
	by := make([]*answer, len(s.nodes))
	var of []*answer
	total := 0
	for r, keys := range runs {
		out[r] = &finding{keys: keys, whole: true}
		total += (len(keys) + sp.group - 1) / sp.group
	}
	groups := make([]group, 0, total)
	pick := s.chooser(ctx, sp, salt, runs, &a)
	defer a.book.Settle()
	for r, keys := range runs {
		for i := 0; i < len(keys); i += sp.group {
			n := pick(s.holders(sp, salt, keys[i]))
			x := span{node: n, head: i, from: i, to: min(i+sp.group, len(keys))}
			if by[n.i] == nil {
				by[n.i] = &answer{node: n}
				of = append(of, by[n.i])
			}
			groups = append(groups, group{run: r, span: x, by: by[n.i]})
			by[n.i].groups = append(by[n.i].groups, &groups[len(groups)-1])
		}
	}
	of, err := s.askFor(ctx, sp, salt, runs, a, groups, of)
	for i := range groups {
		g, f := groups[i].best(), out[groups[i].run]
		if err != nil || f.over {
			continue
		}
		end := g.to
		f.over = !f.take(sp, g, g.by)
		if f.over && f.whole && g.kept {
			var more bool
			more, err = s.findLoose(ctx, sp, salt, a, f, end)
			if f.over = !more; more { // of what is behind it, other nodes have not been asked for what one lacks
				groups[i].to = g.to
				var rest []*answer
				rest, err = s.askFor(ctx, sp, salt, runs, a, groups, nil)
				of = append(of, rest...)
			}
		}
	}
	if err != nil {
		var held []span
		for _, x := range of {
			held = append(held, spansOf(x.groups)...)
		}
		for _, f := range out {
			held = append(held, f.spans...)
		}
		s.release(context.WithoutCancel(ctx), held)
		return nil, err
	}
	if a.lease != skep.NoLease {
		s.trim(ctx, sp, salt, a, of, out)
	}
	return out, nil
}

// askFor asks the nodes for their groups, and others for what they do not have.
func (s many) askFor(ctx context.Context, sp *space, salt skep.Salt, runs [][]skep.Key, a ask, groups []group,
	of []*answer) ([]*answer, error) {
	of, err := s.askAll(ctx, sp, salt, runs, a, of)
	for n := 0; err == nil && s.copies(sp) > 1; n++ {
		var more []*answer
		if more, err = s.askOthers(ctx, sp, salt, runs, a, groups, n); more == nil {
			break
		}
		of = append(of, more...)
	}
	return of, err
}

// askOthers asks other nodes of their groups for what has not been found: for those of nodes that are away, and in each run
// for the first group that is not whole, which is where the prefix ends as a rule; then for the next two, the next
// four. No answers: there is nothing to ask for.
func (s many) askOthers(ctx context.Context, sp *space, salt skep.Salt, runs [][]skep.Key, a ask, groups []group, round int) ([]*answer, error) {
	var to spread
	run, left, over := -1, 0, false
	for i := range groups {
		g := &groups[i]
		if g.run != run {
			run, left, over = g.run, 1<<min(round, 30), false
		}
		tried, away := 0, g.by.away
		for x := g.next; x != nil; x = x.next {
			tried, away = tried+1, away || x.by.away
		}
		if over || g.best().found.Blocks == g.to-g.from || left == 0 && !away {
			continue
		}
		x := s.other(sp, salt, runs[g.run][g.head], g.node, tried)
		if x == nil {
			over = true // the prefix ends here at the latest
			continue
		}
		if !away {
			left--
		}
		to.add(g, x)
		a.book.Owes(x.i, int64(sp.group)*sp.each())
	}
	if to == nil {
		return nil, nil
	}
	return s.askAll(ctx, sp, salt, runs, a, to)
}

// take adds what a node found of a group to the prefix, and says whether all of it was there and more may follow.
func (f *finding) take(sp *space, g *group, from *answer) bool {
	if g.found.Blocks == 0 {
		return false
	}
	all := g.found.Blocks == g.to-g.from
	g.kept, g.to = true, g.from+g.found.Blocks
	f.add(sp, g.span, g.found, g.tiers)
	f.LeaseDenied = f.LeaseDenied || from.denied
	f.ends(from.until)
	return all && f.whole
}

func (f *finding) add(sp *space, x span, r skep.RunFound, tiers []skep.Tier) {
	f.spans = append(f.spans, x)
	f.Blocks = x.to
	f.Tokens += r.Tokens
	f.Bytes += r.Bytes
	f.Tiers = append(f.Tiers, tiers...)
	f.whole = r.Tokens == r.Blocks*sp.Shape.BlockTokens
	if r.Estimate != 0 {
		if f.time == nil {
			f.time = map[*node]time.Duration{}
		}
		f.time[x.node] += r.Estimate
	}
}

// ends notes when one of the leases ends; zero is none.
func (f *finding) ends(t time.Time) { f.until = promises.Sooner(f.until, t) }

// findLoose goes on within a group, which ends before block end, where its chain does not: with blocks that were put by
// somebody who did not know the group's first block.
func (s many) findLoose(ctx context.Context, sp *space, salt skep.Salt, a ask, f *finding, end int) (more bool, err error) {
	for f.Blocks < end {
		at := f.Blocks
		x := span{head: at, from: at}
		var r skep.LookupResult
		holders := s.holders(sp, salt, f.keys[at])
		if s.paced(sp) {
			if x.node, r, err = s.loose(ctx, sp, salt, f.keys[at:end], a); err != nil {
				return false, err
			}
			holders = nil
		}
		for _, h := range holders {
			x.node = s.owner[h]
			if r, err = s.part(ctx, sp, salt, x.node, f.keys[at:end], a); err != nil {
				return false, err
			}
			if r.Blocks > 0 {
				break
			}
		}
		if r.Blocks == 0 {
			return false, nil
		}
		x.to, x.lease = at+r.Blocks, r.Lease.ID
		f.add(sp, x, answers.FoundOf(&r), r.Tiers)
		f.LeaseDenied = f.LeaseDenied || r.LeaseDenied
		f.ends(r.Lease.Until)
		if !f.whole {
			return false, nil
		}
	}
	return true, nil
}

// askAll asks the nodes for their groups, and waits for what they say. A node that is away has none of them. Where
// groups have several nodes, it waits for one of each group's (ahead.go).
func (s many) askAll(
	ctx context.Context, sp *space, salt skep.Salt, runs [][]skep.Key, a ask, of []*answer,
) ([]*answer, error) {
	if s.paced(sp) {
		w := &wave{s: s, sp: sp, salt: salt, runs: runs, ask: a, of: of, came: make(chan struct{}, 1)}
		err := w.run(ctx)
		return w.of, err
	}
	var first error
	var nodes []*node
	by := make([]*answer, len(s.nodes))
	for _, x := range of {
		nodes, by[x.node.i] = append(nodes, x.node), x
	}
	for _, err := range s.eachOf(nodes, func(n *node) error {
		x := s.askOne(ctx, sp, salt, n, by[n.i].groups, by[n.i].keys(runs), a)
		by[n.i].take(x)
		return x.Err
	}) {
		if first == nil {
			first = err
		}
	}
	return of, first
}

// keys is what a node is asked for.
func (to *answer) keys(runs [][]skep.Key) [][]skep.Key {
	out := make([][]skep.Key, 0, len(to.groups))
	for _, g := range to.groups {
		out = append(out, runs[g.run][g.from:g.to])
	}
	return out
}

// take notes what a node said of its groups.
func (to *answer) take(x *answers.Said) {
	to.done, to.away, to.one, to.until, to.denied = true, x.Away, x.One, x.Until, x.Denied
	for i, g := range to.groups {
		if i < len(x.Found) {
			if g.found, g.lease = x.Found[i], x.Lease; x.Leases != nil {
				g.lease = x.Leases[i]
			}
			if x.Tiers != nil {
				g.tiers = x.Tiers[i]
			}
		}
	}
}

// askOne asks a node for groups, whose keys are given.
func (s many) askOne(
	ctx context.Context, sp *space, salt skep.Salt, n *node, groups []*group, keys [][]skep.Key, a ask,
) *answers.Said {
	x := &answers.Said{}
	q := &skep.RunsRequest{Scope: skep.Scope{Salt: salt}, Lease: a.lease, Tiers: a.tiers, Cost: a.cost, Runs: keys}
	err := s.on(ctx, "lookup", n, sp, false, func(ctx context.Context, id skep.NamespaceID) error {
		q.Namespace = id
		r, err := n.st.LookupRuns(ctx, q)
		if err == nil {
			x.Read(q, &r)
		}
		return err
	})
	if errors.Is(err, skep.Unsupported) {
		err = s.askEach(ctx, sp, salt, n, groups, q.Runs, a, x)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		x.Err = ended(ctx, "lookup")
	case err != nil && s.away(err):
		x.Away = true
	default:
		x.Err = err
	}
	return x
}

// askEach asks a node that knows no lookup of runs: group by group, and no further in a run whose group is not there.
func (s many) askEach(ctx context.Context, sp *space, salt skep.Salt, n *node, groups []*group, keys [][]skep.Key, a ask,
	to *answers.Said) error {
	*to = answers.Said{}
	gone := -1
	for i, g := range groups {
		if g.run == gone {
			to.Add(&skep.LookupResult{})
			continue
		}
		r, err := s.part(ctx, sp, salt, n, keys[i], a)
		if err != nil {
			return err
		}
		if r.Blocks == 0 && s.copies(sp) == 1 {
			gone = g.run
		}
		to.Add(&r)
	}
	return nil
}

// trim gives back what is leased beyond the prefixes. Where one lease is of more than that, the node is asked again for
// what is kept. Where it cannot give as much any more, the lease there is stays.
func (s many) trim(ctx context.Context, sp *space, salt skep.Salt, a ask, of []*answer, out []*finding) {
	ctx = context.WithoutCancel(ctx)
	var wait sync.WaitGroup
	for i := range of {
		var kept, rest []*group
		for _, g := range of[i].groups {
			switch {
			case g.lease == 0 || g.found.Blocks == 0:
			case g.kept:
				kept = append(kept, g)
			default:
				rest = append(rest, g)
			}
		}
		switch {
		case len(rest) == 0:
		case !of[i].one || len(kept) == 0:
			wait.Go(func() { s.release(ctx, spansOf(rest)) })
		default:
			wait.Go(func() { of[i].was, of[i].now = s.again(ctx, sp, salt, of[i].node, a, kept, out) })
		}
	}
	wait.Wait()
	for i := range of {
		if of[i].was == 0 {
			continue
		}
		for _, f := range out {
			for k := range f.spans {
				if x := &f.spans[k]; x.node == of[i].node && x.lease == of[i].was {
					x.lease = of[i].now
				}
			}
		}
	}
}

// again leases the groups that are kept by a lease of their own, now, in place of that of them and others, was.
func (s many) again(ctx context.Context, sp *space, salt skep.Salt, n *node, a ask, kept []*group, out []*finding) (was, now skep.LeaseID) {
	again := &answer{node: n}
	var runs [][]skep.Key
	for i, g := range kept {
		again.groups = append(again.groups, &group{run: i, span: span{node: n, to: g.to - g.from}})
		runs = append(runs, out[g.run].keys[g.from:g.to])
	}
	err := s.askAgain(ctx, sp, salt, runs, ask{lease: a.lease}, again)
	whole := err == nil && !again.denied
	for i, g := range again.groups {
		whole = whole && g.found.Blocks == len(runs[i]) && g.lease != 0
	}
	was, now = kept[0].lease, again.groups[0].lease
	if !whole {
		s.release(ctx, spansOf(again.groups))
		return 0, 0
	}
	s.release(ctx, []span{{node: n, lease: was}})
	return was, now
}

func spansOf(groups []*group) (out []span) {
	for _, g := range groups {
		out = append(out, g.span)
	}
	return out
}

// release gives the nodes' leases of spans back. It does not wait for a node that is late with that.
func (s many) release(ctx context.Context, spans []span) {
	var wait sync.WaitGroup
	of := make([][]skep.LeaseID, len(s.nodes))
	for _, x := range spans {
		if l := of[x.node.i]; x.lease != 0 && (len(l) == 0 || l[len(l)-1] != x.lease) {
			of[x.node.i] = append(l, x.lease)
		}
	}
	usual := s.usual()
	for i, ids := range of {
		if len(ids) == 0 {
			continue
		}
		wait.Go(func() {
			s.briefly(ctx, s.nodes[i], usual.Due(lookupLine(s.nodes[i])), func(ctx context.Context) {
				for _, id := range ids {
					_ = s.nodes[i].st.Release(ctx, id) // one that is not released runs out
				}
			})
		})
	}
	wait.Wait()
}

// alone is the spans of keys [from, to) that stand alone.
func (s many) alone(sp *space, salt skep.Salt, keys []skep.Key, from, to int) []span {
	out := make([]span, 0, to-from)
	for i := from; i < to; i++ {
		out = append(out, span{node: s.nodeOf(sp, salt, keys[i]), head: i, from: i, to: i + 1})
	}
	return out
}
