package restore

import (
	"context"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/store/internal/locks"
)

// twoPointers drives one scheduler (package twopointer) for all chains of all sessions
// that say what computing costs. The scheduler decides; the sessions' pumps read.
//
//	Claim, Computed ──▶ scheduler ──▶ planned.until: how many chunks the pump may issue
//	chunk answered ──▶     ▲ Ready ◀── dispatch, a goroutine that ends with the store
//
// Lock order: a session's mu, then mu. Sessions are woken after mu is let go.
type twoPointers struct {
	rs    *Restorer
	mu    locks.Mutex[locks.TwoPointers]
	sched *twopointer.Scheduler
	began time.Time
	slots map[int]*planned
	away  float64 // bytes handed out and not answered
	last  float64 // bytes of the last piece
	chunk float64 // bytes of OnItsWay tokens of its chain
	kick  chan struct{}
	runs  bool
	// boards are the plans whose claims go by a word (twopointer_board.go).
	boards []*planned
	// Chains whose load was declined; of them, how many were computed to their end; and how many of
	// these loading would indeed have been slower for.
	declined, judged, right int64
	byTokens, byLayers      int64 // chains that could go either way
}

// refused is a chain whose load was declined. Once it is computed to its end it is known what
// computing took, and loading it at the speed the drives have by then is what it is held against.
type refused struct {
	bytes float64
	left  int // tokens not computed yet
	took  float64
}

// judge takes a computed part of a declined chain. REQUIRES: ses.mu.
func (t *twoPointers) judge(c *chain, tokens int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := c.refused
	f.left -= tokens
	f.took += took.Seconds()
	if f.left > 0 {
		return
	}
	c.refused = nil
	t.judged++
	load := f.bytes/t.sched.Rate(0) + FirstLatency
	if load >= f.took {
		t.right++
	}
	t.rs.Log.Debug("decline judged", "computing", seconds(f.took), "loading", seconds(load), "right", t.right, "of", t.judged)
}

// planned is a chain the scheduler decides for.
type planned struct {
	two   *twoPointers
	ses   *session
	c     *chain
	slot  int
	until atomic.Int64 // chunks the pump may have issued, in the direction's order
	unit  int          // tokens of a block; 1 by layers
	base  int          // position in the scheduler of the chain's first: tokens, or 0 by layers
	asked atomic.Int64 // chunks of boundary activations the pump may have issued

	spared atomic.Bool // no more boundary activations are needed

	// Guarded by twoPointers.mu.
	board    *board  // nil: claims go by calls
	perToken float64 // bytes
	over     bool    // the strand has left
	missing  []int32 // by layers: chunks of each layer not answered
	bad      []bool  // by layers: one of them was a miss
	lost     bool    // by layers: one did not come
	far      []bool  // by layers: one of them came from drives
	bytes    float64 // handed out
	expected float64 // seconds the handed-out pieces were expected to take, one after the other
	first    time.Time
}

// What is on its way cannot be called back, and is what an engine waits for when the pointers meet. So it
// is kept to a chunk of OnItsWay tokens, handed out pieceTokens at a time, and to what the drives move while
// one answers and dispatch reacts; and to FewestBytes, whatever a chunk has, so that drives do
// not run dry.
const (
	OnItsWay    = 512
	pieceTokens = 64
	Reaction    = 500e-6 // seconds
	FewestBytes = 1 << 20
)

// room says whether another piece may be handed out. The next is taken to be like the last, and to have
// the tokens that the last one's chain has. REQUIRES: t.mu.
func (t *twoPointers) room() bool {
	reach := t.sched.Rate(0) * Reaction
	return t.away <= reach || t.away+t.last <= max(FewestBytes, t.chunk+reach)
}

func (t *twoPointers) start(rs *Restorer) {
	t.rs = rs
	t.slots = map[int]*planned{}
	t.kick = make(chan struct{}, 1)
}

// ready makes the scheduler when the first chain needs it. REQUIRES: t.mu.
func (t *twoPointers) ready() error {
	if t.sched != nil {
		return nil
	}
	policy, err := twopointer.PolicyNamed(t.rs.Policy)
	if err != nil {
		return err
	}
	kind := twopointer.RoundRobin
	if t.rs.FirstCome {
		kind = twopointer.FirstCome
	}
	t.sched, err = twopointer.New(twopointer.Config{Policy: policy, Engine: kind, Chunk: OnItsWay, Piece: pieceTokens,
		Channels: []twopointer.Channel{{BytesPerSecond: t.rs.rate.get(), Latency: FirstLatency}}})
	t.began = time.Now()
	return err
}

// FirstLatency is from asking to the first byte, until restores were seen.
const FirstLatency = 200e-6

func (t *twoPointers) now() time.Duration { return time.Since(t.began) }

// until is a deadline by the scheduler's clock. One that is centuries off is as far as that goes.
func (t *twoPointers) until(deadline time.Time) time.Duration {
	now := t.now()
	return max(now+min(deadline.Sub(skep.Steady()), math.MaxInt64-now), 1)
}

func (t *twoPointers) step(e twopointer.Event) (twopointer.Decision, error) {
	e.At = t.now()
	return t.sched.Step(e)
}

// join takes a session's chains in. REQUIRES: ses.mu.
func (t *twoPointers) join(ses *session) error {
	any := false
	for _, c := range ses.chains {
		if c.Compute == nil || c.left == 0 {
			continue
		}
		if err := t.joinChain(ses, c); err != nil {
			return err
		}
		any = true
	}
	if any {
		t.wake()
	}
	return nil
}

func (t *twoPointers) joinChain(ses *session, c *chain) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(); err != nil {
		return err
	}
	if !t.runs {
		t.runs = true
		t.rs.Background.Go(t.dispatch)
	}
	b := c.NS.Info.Shape.BlockTokens
	p := &planned{two: t, ses: ses, c: c, unit: b, base: c.Blocks.From * b}
	st := t.strand(c)
	if c.Direction.ByLayer() {
		p.unit, p.base = 1, 0
		p.missing, p.bad, p.far = make([]int32, c.Layers.Len()), make([]bool, c.Layers.Len()), make([]bool, c.Layers.Len())
		for i := range p.missing {
			p.missing[i] = int32(c.Blocks.Len())
		}
	}
	d, err := t.step(twopointer.Event{Kind: twopointer.Join, New: st})
	if err != nil {
		return err
	}
	if d.What == twopointer.Declined {
		t.declined++
		c.refused = &refused{bytes: float64(st.Tokens-st.Start) * st.BytesPerToken, left: st.Tokens - st.Start}
		ses.giveUpLocked(c, &skep.Error{Op: "restore", Kind: skep.Claimed, Field: "load", Value: seconds(d.Expected), Limit: seconds(d.Compute)})
		t.rs.Log.Debug("load declined", "tokens", st.Tokens-st.Start, "load", seconds(d.Expected), "compute", seconds(d.Compute))
		return nil
	}
	p.slot, p.perToken = d.Strand, st.BytesPerToken
	t.slots[d.Strand] = p
	c.plan = p
	if st.Boundary > 0 {
		c.bound.feeds = p
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// strand describes a chain to the scheduler. Blocks are reckoned at their full size.
func (t *twoPointers) strand(c *chain) *twopointer.Strand {
	b := c.NS.Info.Shape.BlockTokens
	k := c.Compute
	size := float64(max(c.Size, 1))
	if n := c.Geometry.Layers(); n > 0 {
		size *= float64(c.Layers.Len()) / float64(n)
	}
	if n := c.NS.Info.Shape.KVHeads; n > 0 {
		heads, _ := c.Heads.In(n)
		size *= float64(heads.Len()) / float64(n)
	}
	st := &twopointer.Strand{Start: c.Blocks.From * b, Tokens: c.Blocks.To * b, Unit: b, Decided: true, LoadOnly: k.LoadOnly,
		Cost: twopointer.CostOf(k.Cost), BytesPerToken: size / float64(b), Weight: k.Weight, Background: k.Background}
	if c.Direction.ByLayer() {
		st.Mode, st.Layers, st.Start, st.Tokens = twopointer.ByLayers, c.Layers.Len(), 0, c.Blocks.Len()*b
	}
	st.After = st.Cost.Span(c.Blocks.To*b, c.Blocks.To*b+k.Suffix)
	if c.bound != nil {
		st.Boundary = float64(k.Boundary.BytesPerToken)
		st.LoadOnly = c.bound.left < c.bound.Blocks.Len()
	}
	if !c.deadline.IsZero() {
		st.Deadline = t.until(c.deadline)
	}
	return st
}

// wake has dispatch look for what can be handed out.
func (t *twoPointers) wake() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// dispatch hands out pieces until the store closes.
func (t *twoPointers) dispatch() {
	var woken []*session
	var staged, claimed []*planned
	look := time.NewTicker(boardEvery)
	defer look.Stop()
	for {
		woken, claimed = t.handOut(woken[:0], claimed[:0])
		for _, p := range claimed {
			p.ses.tell(p)
		}
		staged = t.settled(staged[:0])
		for _, p := range staged {
			p.ses.spare(p)
		}
		for _, ses := range woken {
			ses.mu.Lock()
			ses.wake.Broadcast()
			ses.mu.Unlock()
		}
		var looked <-chan time.Time
		if t.boarded() {
			looked = look.C
		}
		select {
		case <-t.kick:
		case <-looked:
		case <-t.rs.Context.Done():
			return
		}
	}
}

// handOut asks the scheduler for pieces while few are on their way, and adds the sessions
// they belong to, and the plans with claims by words that were not answered.
func (t *twoPointers) handOut(woken []*session, claimed []*planned) ([]*session, []*planned) {
	t.mu.Lock()
	defer t.mu.Unlock()
	claimed = t.readBoards(claimed)
	for t.sched != nil && t.room() {
		before := t.sched.OnItsWay(0)
		d, err := t.step(twopointer.Event{Kind: twopointer.Ready})
		if err != nil || d.What != twopointer.Load {
			break
		}
		p := t.slots[d.Strand]
		if p.board != nil { // what the engine claimed meanwhile is off the piece
			t.publish(p)
		}
		bytes := t.sched.OnItsWay(0) - before
		if at, _ := t.sched.State(d.Strand); d.Boundary {
			p.asked.Store(int64(d.To/p.unit - p.c.Blocks.From))
		} else {
			p.until.Store(max(p.until.Load(), p.untilOf(at.Tail)))
		}
		t.away += bytes
		t.last, t.chunk = d.Bytes, OnItsWay*p.perToken
		if p.first.IsZero() {
			p.first = time.Now()
		}
		p.bytes += bytes
		p.expected += bytes / t.sched.Rate(0)
		if n := len(woken); n == 0 || woken[n-1] != p.ses {
			woken = append(woken, p.ses)
		}
	}
	t.publishBoards()
	return woken, claimed
}

// untilOf is how many chunks lie from the far end down to a position.
func (p *planned) untilOf(from int) int64 {
	if p.c.Direction.ByLayer() {
		return int64(p.c.Layers.Len()-from) * int64(p.c.Blocks.Len())
	}
	return int64(p.c.Blocks.To - from/p.unit)
}

// limit is how many chunks of c may be issued, in the direction's order.
func (c *chain) limit() int {
	if c.feeds != nil {
		return int(c.feeds.asked.Load())
	}
	if c.plan == nil {
		return len(c.items)
	}
	return int(c.plan.until.Load())
}

// answered tells the scheduler that chunk i landed, or will not. True: a layer did not come, the first of its chain,
// and what is below is the engine's to compute. REQUIRES: ses.mu.
func (p *planned) answered(i int, out *skep.Chunk) (lost bool) {
	err := out.Err
	block, layers := p.c.Chunk(i)
	e := twopointer.Event{Kind: twopointer.Landed, Near: near(out), Strand: p.slot, From: block * p.unit, To: (block + 1) * p.unit}
	t := p.two
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.over {
		return false
	}
	if err != nil {
		e.Kind = twopointer.Failed
	}
	if p.c.Direction.ByLayer() {
		l := layers.From - p.c.Layers.From
		p.bad[l] = p.bad[l] || err != nil
		p.far[l] = p.far[l] || !e.Near
		e.Near = !p.far[l]
		if p.missing[l]--; p.missing[l] > 0 {
			return false
		}
		e.From, e.To = l, l+1
		if p.bad[l] {
			e.Kind = twopointer.Failed
		}
		lost = p.bad[l] && !p.lost
		p.lost = p.lost || lost
	}
	t.arrived(e)
	if err != nil && p.board != nil { // before whoever hears of the miss looks at the word
		t.publish(p)
	}
	return lost
}

var errBelow = &skep.Error{Op: "restore", Kind: skep.Stopped, Field: "layer", Limit: "above one that did not come"}

// passLocked answers what waits below the layer of chunk i, which did not come: computing that layer goes through all
// below it, so loading them makes nothing ready sooner. REQUIRES: ses.mu.
func (ses *session) passLocked(c *chain, i int) {
	_, layers := c.Chunk(i)
	for j := range (layers.From - c.Layers.From) * c.Blocks.Len() {
		if c.items[j] == itemWaiting {
			ses.answerLocked(c, j, skep.Chunk{Err: c.below(j)}, itemBelow)
		}
	}
}

// below is why chunk i, below a layer that did not come, is a miss. REQUIRES: session.mu.
func (c *chain) below(i int) error {
	if b := c.blockOf(i); b < len(c.found) && c.found[b] != nil && c.found[b].Err != nil {
		return c.found[b].Err
	}
	return errBelow
}

// arrived passes on that a piece is answered. REQUIRES: t.mu.
func (t *twoPointers) arrived(e twopointer.Event) {
	before := t.sched.OnItsWay(0)
	if _, err := t.step(e); err != nil {
		return // answered before it was handed out: stopped, or past its deadline
	}
	after := t.sched.OnItsWay(0)
	t.away = max(t.away-(before-after), 0)
	t.wake()
}

// settled adds the plans whose boundary activations are all there that will be needed.
func (t *twoPointers) settled(list []*planned) []*planned {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.slots {
		if p.c.bound != nil && !p.spared.Load() && t.sched.Settled(p.slot) {
			list = append(list, p)
		}
	}
	return list
}

// leave ends a chain's part in the scheduling. REQUIRES: ses.mu.
func (p *planned) leave() {
	t := p.two
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	t.dropBoard(p)
	before := t.sched.OnItsWay(0)
	_, _ = t.step(twopointer.Event{Kind: twopointer.Leave, Strand: p.slot}) // it has joined and not left
	after := t.sched.OnItsWay(0)
	t.away = max(t.away-(before-after), 0)
	delete(t.slots, p.slot)
	t.wake()
}

// promote passes on a chain's new priority and deadline. REQUIRES: ses.mu.
func (p *planned) promote(priority int, deadline time.Time) {
	t := p.two
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.over {
		return
	}
	k := p.c.Compute
	st := &twopointer.Strand{Weight: k.Weight, Background: k.Background && priority < 0}
	if !deadline.IsZero() {
		st.Deadline = t.until(deadline)
	}
	_, _ = t.step(twopointer.Event{Kind: twopointer.Promote, Strand: p.slot, New: st})
	t.wake()
}

func (ses *session) plannedAt(ctx context.Context, op string, i int) (*chain, error) {
	c, err := ses.askedAt(ctx, op, i)
	if err != nil {
		return nil, err
	}
	if c.Compute == nil {
		return nil, skep.Invalidf(op, "chain", i, "one that says what computing costs")
	}
	return c, nil
}

// claimPlanned asks the scheduler. A claim of anything but what is next gets nothing and is
// told where that is. REQUIRES: ses.mu.
func (ses *session) claimPlanned(c *chain, r skep.Range, idle bool) (skep.Claim, error) {
	end, first := c.Blocks.To*c.NS.Info.Shape.BlockTokens, c.Blocks.From*c.NS.Info.Shape.BlockTokens
	if c.Direction.ByLayer() {
		first, end = c.Layers.From, c.Layers.To
	}
	if r.From < 0 || r.From >= r.To || r.To > end {
		return skep.Claim{}, skep.Invalidf("claim", "range", r, "within 0 to "+strconv.Itoa(end))
	}
	switch {
	case ses.ending:
		return skep.Claim{}, errSessionClosed
	case c.stopped:
		return skep.Claim{}, &skep.Error{Op: "claim", Kind: skep.Stopped, Field: "chain", Value: c.index}
	case c.plan == nil: // declined: all of it is the caller's
		return skep.Claim{Granted: r, Next: r.To}, nil
	case r.From < first: // not ours to load
		return skep.Claim{Granted: skep.Range{From: r.From, To: min(r.To, first)}, Next: min(r.To, first)}, nil
	}
	p, t := c.plan, c.plan.two
	off := p.offset()
	t.mu.Lock()
	if p.over { // past its deadline: what it lacks is the caller's, once nothing lands there any more
		t.mu.Unlock()
		if c.away > 0 {
			return skep.Claim{Granted: skep.Range{From: r.From, To: r.From}, Next: r.From}, nil
		}
		return skep.Claim{Granted: r, Next: r.To}, nil
	}
	t.shutBoard(p) // claims by the word wait for this one
	at, ok := t.sched.Next(p.slot)
	if !ok || at+off != r.From {
		t.reopenBoard(p)
		t.mu.Unlock()
		return skep.Claim{Granted: skep.Range{From: r.From, To: r.From}, Next: max(at+off, r.From)}, nil
	}
	want := (r.Len() + p.unit - 1) / p.unit * p.unit
	d, err := t.step(twopointer.Event{Kind: twopointer.Ask, Strand: p.slot, Want: want, Idle: idle})
	t.reopenBoard(p)
	t.mu.Unlock()
	if err != nil {
		return skep.Claim{}, err
	}
	t.wake()
	if d.What != twopointer.Grant {
		return skep.Claim{Granted: skep.Range{From: r.From, To: r.From}, Next: d.Jump + off}, nil
	}
	got := skep.Range{From: d.From + off, To: min(d.To+off, end)}
	ses.grantedLocked(c, got)
	return skep.Claim{Granted: got, Next: d.Jump + off}, nil
}

// Computed implements skep.Session.
func (ses *session) Computed(ctx context.Context, i int, r skep.Range, took, other time.Duration) error {
	c, err := ses.plannedAt(ctx, "computed", i)
	if err != nil {
		return err
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	p := c.plan
	if c.refused != nil && !c.Direction.ByLayer() {
		ses.rs.two.judge(c, r.Len(), took)
	}
	if p == nil || ses.ending {
		return nil
	}
	t := p.two
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.over {
		return nil
	}
	if p.board != nil {
		t.readBoard(p) // what was claimed by it
	}
	off := p.offset()
	launches := 1.0
	if c.Direction.ByLayer() {
		launches = 0
	}
	_, err = t.step(twopointer.Event{Kind: twopointer.Computed, Strand: p.slot, From: r.From - off, To: r.To - off,
		Took: took.Seconds(), Other: other.Seconds(), Launches: launches})
	t.wake()
	return err
}
