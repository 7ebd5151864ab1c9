package sched

import (
	"cmp"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
)

// Chain is a chain with a cost that has joined.
type Chain struct {
	Spec
	s        *Scheduler
	slot     int
	channel  int
	unit     int     // tokens of a block; 1 by layers
	off      int     // what a claim's positions are above the Scheduler's: by layers, the first one
	bytes    float64 // of a chunk
	declined error

	// Guarded by Scheduler.mu.
	over    bool    // it has left
	queued  [][]Run // by node, from the tail; the last of blocks that nobody has
	board   *board  // nil: claims go by calls
	missing []int   // by layers: chunks of each layer not answered
	bad     []bool  // by layers: one of them did not come
	lost    bool    // by layers: one did not come
	refused *refused
}

// Run is blocks [From, To) of a chain, of one Span; of one layer, where it goes by layers.
type Run struct {
	From, To int
	Layer    int // of the shape's
	span     int
}

// Declined is why the chain's load was declined, an error of kind Claimed; nil: it was not.
func (c *Chain) Declined() error { return c.declined }

func (c *Chain) size(r Run) float64 { return float64(r.To-r.From) * c.bytes }

// none is where blocks are queued that nobody has.
func (c *Chain) none() int { return len(c.queued) - 1 }

// choose is the node that is asked for a span's blocks.
func (c *Chain) choose(p *Span, bytes float64) int {
	if len(p.Nodes) == 0 {
		return c.none()
	}
	if len(p.Nodes) > 1 && c.sooner(p.Nodes[0], p.Nodes[1], bytes) {
		return p.Nodes[1]
	}
	return p.Nodes[0]
}

// sooner says whether so many bytes more would be there in half the time from node b that a takes.
func (c *Chain) sooner(a, b int, bytes float64) bool {
	now := c.s.now()
	m, n := &c.s.nodes[a], &c.s.nodes[b]
	return m.wait(now)+bytes/m.rate > 2*(n.wait(now)+bytes/n.rate)+far
}

// wanted says whether a node that has some of what comes next has nothing to do.
func (c *Chain) wanted() bool {
	at, ok := c.s.two.State(c.slot)
	if !ok || c.over || at.Head >= at.Tail {
		return false
	}
	lo, hi := c.Blocks.From, c.Blocks.To
	if !c.ByLayer {
		hi = at.Tail / c.unit
		lo = max(at.Head/c.unit, hi-max(lookahead*(len(c.queued)-1)/c.unit, 1))
	}
	for i := c.spanAt(hi - 1); i >= 0 && c.Spans[i].To > lo; i-- {
		n := c.choose(&c.Spans[i], c.bytes)
		if n == c.none() || c.s.nodes[n].under < underWay && len(c.queued[n]) == 0 {
			return true
		}
	}
	return false
}

// spanAt is the span that block b is of.
func (c *Chain) spanAt(b int) int {
	i, _ := slices.BinarySearchFunc(c.Spans, b, func(p Span, b int) int {
		if p.To <= b {
			return -1
		}
		return 1
	})
	return min(i, len(c.Spans)-1)
}

// place queues what the Scheduler handed out, positions [from, to), for the nodes that have it.
func (c *Chain) place(from, to int) {
	if c.ByLayer {
		for l := to - 1; l >= from; l-- {
			for i := range c.Spans {
				p := &c.Spans[i]
				c.push(c.choose(p, c.bytes*float64(p.To-p.From)), Run{From: p.From, To: p.To, Layer: l + c.off, span: i})
			}
		}
		return
	}
	lo, hi := from/c.unit, to/c.unit
	for hi > lo {
		i := c.spanAt(hi - 1)
		r := Run{From: max(c.Spans[i].From, lo), To: hi, span: i}
		c.push(c.choose(&c.Spans[i], c.size(r)), r)
		hi = r.From
	}
}

// push queues a run for a node, in order from the tail.
func (c *Chain) push(n int, r Run) {
	list := c.queued[n]
	at, _ := slices.BinarySearchFunc(list, r, func(a, b Run) int { return -cmp.Or(a.Layer-b.Layer, a.From-b.From) })
	c.queued[n] = slices.Insert(list, at, r)
	if n < c.none() {
		c.s.nodes[n].queued += c.size(r)
	}
}

// pull takes the run at i of what is queued for a node.
func (c *Chain) pull(n, i int) Run {
	r := c.queued[n][i]
	c.queued[n] = slices.Delete(c.queued[n], i, i+1)
	if n < c.none() {
		m := &c.s.nodes[n]
		m.queued = max(m.queued-c.size(r), 0)
	}
	return r
}

// balance moves what is queued for a node that is slow to another one that has it, from the head's end.
func (c *Chain) balance() {
	if c.over {
		return
	}
	s := c.s
	for n := range c.none() {
		for len(c.queued[n]) > 0 {
			last := len(c.queued[n]) - 1
			r := c.queued[n][last]
			to, bytes := n, c.size(r)
			for _, m := range c.Spans[r.span].Nodes {
				if m != n && s.nodes[n].wait(s.now()) > 2*(s.nodes[m].wait(s.now())+bytes/s.nodes[m].rate)+far {
					to = m
				}
			}
			if to == n {
				break
			}
			c.push(to, c.pull(n, last))
		}
	}
}

// computes says whether blocks that are not loaded can be computed by themselves.
func (c *Chain) computes() bool { return !c.ByLayer && !c.Compute.LoadOnly }

// cost is what computing a run takes, in seconds.
func (c *Chain) cost(r Run) float64 { return c.s.two.Computing(c.slot, r.From*c.unit, r.To*c.unit) }

// giveBack has the engine compute the run at i of what is queued for a node.
func (c *Chain) giveBack(n, i int) {
	r := c.pull(n, i)
	_, _ = c.s.step(twopointer.Event{Kind: twopointer.Failed, Near: true, Strand: c.slot,
		From: r.From * c.unit, To: r.To * c.unit})
}

// begins says whether something is queued that can be begun, or that nobody has.
func (c *Chain) begins() bool {
	for n, list := range c.queued {
		if len(list) > 0 && (n == c.none() || c.s.nodes[n].under < underWay) {
			return true
		}
	}
	return false
}

// Begin takes what a node is to be asked for next, at most so many bytes, chunks and runs but one run always; of what
// nobody has, all, with node Spec.Nodes. Begun has to follow.
func (c *Chain) Begin(n int, bytes int64, chunks, runs int) (list []Run) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.over || n >= len(c.queued) {
		return nil
	}
	if n == c.none() {
		list, c.queued[n] = c.queued[n], nil
		return list
	}
	most := min(float64(bytes), max(float64(s.o.Run), s.nodes[n].rate*reaction))
	for sum, k := 0.0, 0; len(c.queued[n]) > 0 && len(list) < runs; {
		r := c.queued[n][0]
		k += r.To - r.From
		if sum += c.size(r); len(list) > 0 && (sum > most || k > chunks) {
			break
		}
		list = append(list, c.pull(n, 0))
	}
	if len(list) > 0 {
		s.wake()
	}
	return list
}

// Begun notes that a node was asked for so many chunks, Came that one of them came from there or, with arrived false,
// will not, and Ended that all that was asked for has been told of.
func (c *Chain) Begun(n, chunks int) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.nodes[n].begin(c.s.now(), float64(chunks)*c.bytes)
}

func (c *Chain) Came(n int, arrived bool) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.nodes[n].came(c.s.now(), c.bytes, arrived)
}

func (c *Chain) Ended(n int) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.nodes[n].under--
	c.s.wake()
}

// Answered tells that a block, or the given layer of it, was delivered or, with why, will not be. True: a layer did not
// come, the first of the chain, and what is below it is the engine's to compute.
func (c *Chain) Answered(block, layer int, why error) (lost bool) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.over {
		return false
	}
	e := twopointer.Event{Kind: twopointer.Landed, Strand: c.slot, From: block * c.unit, To: (block + 1) * c.unit}
	failed := why != nil
	if c.ByLayer {
		l := layer - c.off
		c.bad[l] = c.bad[l] || failed
		if c.missing[l]--; c.missing[l] > 0 {
			return false
		}
		e.From, e.To = l, l+1
		failed = c.bad[l]
		lost = failed && !c.lost
		c.lost = c.lost || lost
	}
	if failed {
		e.Kind = twopointer.Failed
	}
	if _, err := s.step(e); err == nil { // else it was answered before it was handed out
		s.wake()
	}
	if failed {
		c.publish() // before whoever hears of it looks at the word
	}
	return lost
}

// next is where the engine should claim: what it was given back and what it may be given of what is queued count.
func (c *Chain) next() int {
	at, _ := c.s.two.State(c.slot)
	next, _ := c.s.two.Next(c.slot)
	if at.Head >= at.Tail && c.computes() {
		if n := c.lowest(); n >= 0 {
			return min(next, c.queued[n][len(c.queued[n])-1].From*c.unit)
		}
	}
	return next
}

// lowest is the node for which the first block of all that is queued is; -1: nothing is.
func (c *Chain) lowest() int {
	at := -1
	for n, list := range c.queued[:c.none()] {
		if k := len(list); k > 0 && (at < 0 || list[k-1].From < c.queued[at][len(c.queued[at])-1].From) {
			at = n
		}
	}
	return at
}

// Number is the number of a chunk: of a block or, of a chain by layers, of a block's layer.
func (c *Chain) Number(block, layer int) int {
	if c.ByLayer {
		return (layer-c.off)*c.Blocks.Len() + block - c.Blocks.From
	}
	return block - c.Blocks.From
}

// Claim answers a claim of positions r, tokens or layers, that end within the chain. One of anything but what is next
// gets nothing and is told where that is. lands says that something may land of the chain yet.
func (c *Chain) Claim(r skep.Range, idle, lands bool) (skep.Claim, error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	nothing := func(next int) (skep.Claim, error) {
		return skep.Claim{Granted: skep.Range{From: r.From, To: r.From}, Next: max(next, r.From)}, nil
	}
	first := c.Blocks.From * c.unit
	if c.ByLayer {
		first = c.off
	}
	switch {
	case r.From < first: // not ours to load
		end := min(r.To, first)
		return skep.Claim{Granted: skep.Range{From: r.From, To: end}, Next: end}, nil
	case c.over && lands && c.declined == nil: // past its deadline: what it lacks is the caller's once all has landed
		return nothing(r.From)
	case c.over:
		return skep.Claim{Granted: r, Next: r.To}, nil
	}
	c.shut() // claims by the word wait for this one
	defer c.publish()
	if at := c.next() + c.off; at != r.From {
		return nothing(at)
	}
	if idle {
		c.giveLowest()
	}
	want := (r.Len() + c.unit - 1) / c.unit * c.unit
	d, err := s.step(twopointer.Event{Kind: twopointer.Ask, Strand: c.slot, Want: want, Idle: idle})
	if err != nil {
		return skep.Claim{}, err
	}
	s.wake()
	if d.What != twopointer.Grant {
		return nothing(c.next() + c.off)
	}
	got := skep.Range{From: d.From + c.off, To: d.To + c.off}
	return skep.Claim{Granted: got, Next: max(c.next()+c.off, got.To)}, nil
}

// giveLowest gives the engine, which has nothing else, the first of what is queued where nothing else is left to claim
// before it, and as much of what follows as it computes before the node would have brought it.
func (c *Chain) giveLowest() {
	at, _ := c.s.two.State(c.slot)
	n := c.lowest()
	if n < 0 || at.Head < at.Tail || !c.computes() {
		return
	}
	if next, ok := c.s.two.Next(c.slot); ok && next < c.queued[n][len(c.queued[n])-1].From*c.unit {
		return
	}
	sum := 0.0
	for end := -1; len(c.queued[n]) > 0; {
		last := len(c.queued[n]) - 1
		r := c.queued[n][last]
		if sum += c.cost(r); end >= 0 && r.From != end || sum >= c.s.nodes[n].wait(c.s.now()) {
			return
		}
		end = r.To
		c.giveBack(n, last)
	}
}

// Computed tells that the engine computed positions r, in a step that took so long and did other work for other.
//
// Errors: Invalid for what cannot have been granted: past the chain's end, or more than is left of it.
func (c *Chain) Computed(r skep.Range, took, other time.Duration) error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.refused != nil && !c.ByLayer {
		c.judge(r.Len(), took)
	}
	if c.over {
		return nil
	}
	c.read() // what was claimed by the word
	launches := 1.0
	if c.ByLayer {
		launches = 0
	}
	_, err := s.step(twopointer.Event{Kind: twopointer.Computed, Strand: c.slot, From: r.From - c.off, To: r.To - c.off,
		Took: took.Seconds(), Other: other.Seconds(), Launches: launches})
	s.wake()
	return err
}

// judge takes a computed part of a chain that was declined.
func (c *Chain) judge(tokens int, took time.Duration) {
	f := c.refused
	f.left -= tokens
	f.took += took.Seconds()
	if f.left > 0 {
		return
	}
	c.refused = nil
	c.s.count.Judged++
	if f.load >= f.took {
		c.s.count.Right++
	}
}

// Promote passes on a new priority and deadline.
func (c *Chain) Promote(priority int, deadline time.Time) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.over {
		return
	}
	st := &twopointer.Strand{Weight: c.Compute.Weight, Background: c.Compute.Background && priority < 0,
		Deadline: until(s.now(), deadline)}
	_, _ = s.step(twopointer.Event{Kind: twopointer.Promote, Strand: c.slot, New: st})
	s.wake()
}

// Leave ends the chain's part: nothing more is begun or granted. What was claimed by the word is yet to be told of.
func (c *Chain) Leave() {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.over {
		return
	}
	c.dropWord()
	c.over = true
	for n := range c.queued {
		for len(c.queued[n]) > 0 {
			c.pull(n, len(c.queued[n])-1)
		}
	}
	_, _ = s.step(twopointer.Event{Kind: twopointer.Leave, Strand: c.slot}) // it has joined and not left
	delete(s.chains, c.slot)
	s.wake()
}
