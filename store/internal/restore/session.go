package restore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/memory"
)

// session is a restore under way.
//
// A pump goroutine takes the next chunk of the best chain, finds where its block
// lies now, and queues its reads on the drives, as long as the window has room.
// Completions hand the chunk to a worker, which checks its granules and copies where
// a copy is needed; then it is delivered. Locations are looked up when a chunk's
// turn comes, not before, so what the cleaner moves meanwhile is found where it went.
//
// A chunk is answered (delivered, or reported as a miss) exactly once, and it is back
// when no drive and no worker can write to its destination any more. The two are
// apart: a deadline or a stop answers at once, and the memory comes back later.
type session struct {
	rs     *Restorer
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	began  time.Time
	traced *observe.RestoreSpan // nil: nobody wants to know
	window int64                // bytes under way at most
	sums   bool                 // chunks carry their checksums
	ahead  *ahead               // it is a prefetch: nobody's use of the blocks; nil: it is not

	// For the estimate of lookups; guarded by mu.
	fromDevices int64
	will        time.Duration // what loading willBytes was expected to take
	willBytes   int64
	lastLanding time.Time
	state       int64  // bytes it is counted as among the calls under way
	tenant      uint16 // whose they are: that of its first chain

	chains  []*chain
	planned bool // some go by what the two-pointer scheduler says

	mu      locks.Mutex[locks.Session]
	wake    sync.Cond // the pump waits here: window, priorities, claims, close
	landed  chan struct{}
	ready   []ready
	readyAt int
	left    int          // chunks not answered
	untold  int          // answered, and not in ready: Next makes these chunks
	away    int          // chunks not back
	bytes   int64        // of the chunks away, and of lent data
	oldest  *chunk       // of the chunks away, in order of issue
	newest  *chunk       //
	turns   turns        // whose turn it is to have chunks issued
	ordered bool         // turns is in order
	ending  bool         // Close was called
	pumping bool         // the pump goroutine has not ended
	over    bool         // it keeps nothing any more
	idle    []chan error // who waits for chunks to come back
}

// chain is one chain of a session.
type chain struct {
	Asked
	index    int
	boundary bool            // the part is boundary activations
	tied     bool            // of another chain of the session
	ctx      context.Context // ends once it is given up: what waits for memory gives up
	end      context.CancelFunc
	promised int // leading keys under a lease when the session began

	// Guarded by session.mu.
	items    []uint8 // state of each chunk
	next     int     // position in the direction's order
	left     int     // not answered
	untold   int     // session.untold of it
	tell     int     // the first of them is here or later
	why      error   // what was given up, was for
	away     int
	priority int
	deadline time.Time
	timer    *time.Timer
	stopped  bool

	plan    *planned    // the two-pointer scheduler's part; nil: none
	bound   *chain      // brings its boundary activations; nil: none are needed
	feeds   *planned    // it brings another's boundary activations
	refused *refused    // its load was declined; nil: not
	found   []*Located  // by block; loaded by the pump
	wants   []memory.ID // by block, as others may ask for them; nil: it is not entered (wanted.go)
	touched []bool
}

// States of a chunk.
const (
	itemWaiting uint8 = iota
	itemAway          // reads queued, not answered
	itemDone          // answered: delivered
	itemMissed        // answered: a miss, or one of the others that was told
	itemClaimed       // answered: the caller computes it
	itemGivenUp       // answered: a miss, for chain.why
	itemBelow         // answered: a miss, for chain.below
)

// window is how many bytes one session has under way. It bounds the memory a
// session's bounce buffers take and how far it runs ahead of its reader.
const sessionWindow = 64 << 20

// Restore begins a session, as skep.Restorer's does. Errors: the Source's of Enter and Hold, and Invalid, NotFound and
// Unsupported for a request that cannot be planned.
func (rs *Restorer) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	ses, err := rs.restore(ctx, r, nil)
	if err != nil {
		return nil, err
	}
	return ses, nil
}

// restore starts a session, of a prefetch's when ahead is set.
func (rs *Restorer) restore(ctx context.Context, r *skep.RestoreRequest, ahead *ahead) (*session, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := rs.Source.Enter(ctx); err != nil {
		return nil, err
	}
	defer rs.Source.Leave()
	ses := &session{rs: rs, landed: make(chan struct{}, 1), began: time.Now(), ahead: ahead}
	ses.ctx, ses.cancel = context.WithCancel(rs.Context)
	ses.wake.L = &ses.mu
	ses.window, ses.sums = sessionWindow, r.Sums
	if r.Window > 0 {
		ses.window = min(r.Window, sessionWindow)
	}
	if ns := rs.Names.Get(r.Chains[0].Scope.Namespace); ns != nil { // else it is refused
		ses.tenant = ns.Tenant
	}
	state, err := rs.Source.Hold(ses.tenant, rs.restoreState(r))
	if err != nil {
		ses.cancel()
		return nil, err
	}
	if err := ses.plan(r); err != nil {
		rs.Source.LetGo(ses.tenant, state)
		ses.cancel()
		return nil, err
	}
	ses.state = state
	keys := 0
	for i := range r.Chains {
		keys += len(r.Chains[i].Keys)
	}
	ses.traced = observe.BeginRestore(ctx, keys)
	if !rs.sessions.add(ses) {
		rs.Source.LetGo(ses.tenant, state)
		ses.cancel()
		return nil, errStoreClosed
	}
	if ahead == nil {
		rs.prefetch.arrived(ses.chains)
	}
	ses.pumping = true
	ses.mu.Lock()
	rs.want(ses)
	for _, c := range ses.chains {
		ses.arm(c)
	}
	ses.willBytes, ses.will = ses.predicted()
	err = rs.two.join(ses)
	ses.planned = slices.ContainsFunc(ses.chains, func(c *chain) bool { return c.plan != nil || c.feeds != nil })
	ses.mu.Unlock()
	go ses.pump()
	if err != nil {
		return nil, errors.Join(err, ses.Close(ctx))
	}
	return ses, nil
}

// arm sets the chain's deadline timer. REQUIRES: ses.mu.
func (ses *session) arm(c *chain) {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if c.deadline.IsZero() || c.left == 0 {
		return
	}
	deadline := c.deadline
	if !skep.Steady().Before(deadline) { // nothing lands, however quick
		ses.giveUpLocked(c, &skep.Error{Op: "restore", Kind: skep.Deadline})
		if c.away > 0 {
			time.AfterFunc(0, ses.rs.cancelQueued) // it takes ses.mu
		}
		return
	}
	c.timer = time.AfterFunc(deadline.Sub(skep.Steady()), func() {
		ses.mu.Lock()
		late := c.deadline.Equal(deadline)
		if late {
			ses.giveUpLocked(c, &skep.Error{Op: "restore", Kind: skep.Deadline})
		}
		ses.mu.Unlock()
		if late {
			ses.rs.cancelQueued()
		}
	})
}

// giveUpLocked answers everything of c that is not answered with a miss.
// REQUIRES: ses.mu.
func (ses *session) giveUpLocked(c *chain, why error) {
	ses.shutLocked(c)
	for i := range c.items {
		if c.items[i] == itemWaiting || c.items[i] == itemAway {
			c.why = why
			ses.answerLocked(c, i, skep.Chunk{Err: why}, itemGivenUp)
		}
	}
	for ch := ses.oldest; ch != nil; ch = ch.after {
		if ch.chain == c {
			ch.cancelled.Store(true)
		}
	}
	c.end()
	ses.endPlanLocked(c, why)
	ses.wake.Broadcast()
}

// answerLocked delivers chunk i of c, with what out does not say filled in.
// REQUIRES: ses.mu, and the chunk not answered.
func (ses *session) answerLocked(c *chain, i int, out skep.Chunk, state uint8) {
	block, layers := c.Chunk(i)
	out.Chain, out.Block, out.Layers = c.index, block, layers
	if b := block - c.Blocks.From; c.items[i] == itemWaiting && c.found != nil && c.found[b] != nil { // else finish does
		ses.doneWithLocked(c, b)
	}
	c.items[i] = state
	ses.rs.wanted.answered(c, i)
	lost := c.plan != nil && state != itemClaimed && c.plan.answered(i, &out)
	if c.feeds != nil {
		c.feeds.boundaryAnswered(i, out.Err)
	}
	c.left--
	ses.left--
	if state >= itemClaimed { // a call may answer all there are
		c.untold, c.tell = c.untold+1, min(c.tell, i)
		ses.untold++
	} else {
		ses.readyLocked(c, i, &out)
	}
	if out.Err != nil {
		ses.miss(c, block, out.Err)
	} else {
		ses.hit(c, block, &out)
	}
	if c.left == 0 && c.timer != nil {
		c.timer.Stop()
	}
	if lost {
		ses.passLocked(c, i)
	}
	select {
	case ses.landed <- struct{}{}:
	default:
	}
}

func (ses *session) hit(c *chain, block int, out *skep.Chunk) {
	if ses.ahead != nil {
		return
	}
	st := ses.rs.Count
	st.Restored.Add(out.Bytes)
	st.Tiers.Add(out.Tier, out.Bytes)
	if c.boundary {
		st.BoundaryRestored.Add(out.Bytes)
	}
	c.NS.Count.Tiers.Add(out.Tier, out.Bytes)
	if i := block - c.Blocks.From; !c.touched[i] {
		c.touched[i] = true
		st.RestoredBlocks.Add(1)
		fp := c.fingerprint(ses.rs.Names, block)
		ses.rs.Source.Used(fp, out.Tier)
		if out.Tier == skep.TierDRAM {
			ses.rs.prefetch.used(fp)
		}
	}
}

// miss counts a miss, and a broken promise when a lease covered the block.
func (ses *session) miss(c *chain, block int, err error) {
	if ses.ahead != nil {
		return
	}
	kind := skep.KindOf(err)
	ses.rs.Count.Missed.Add(kind)
	c.NS.Count.Missed.Add(kind)
	if block < c.promised && kind != skep.Claimed && kind != skep.Stopped && kind != skep.Deadline {
		ses.rs.Count.Broken.Add(1)
		ses.rs.Log.Warn("broken promise", "key", c.Keys[block].Short(), "reason", kind)
	}
}

var errStoreClosed = &skep.Error{Op: "store", Kind: skep.Closed}

var errSessionClosed = &skep.Error{Op: "restore session", Kind: skep.Closed}

func (ses *session) chainAt(op string, i int) (*chain, error) {
	if i < 0 || i >= len(ses.chains) {
		return nil, skep.Invalidf(op, "chain", i, "0 to "+strconv.Itoa(len(ses.chains)-1))
	}
	return ses.chains[i], nil
}

// askedAt is chainAt of a call that does nothing once its context has ended.
func (ses *session) askedAt(ctx context.Context, op string, i int) (*chain, error) {
	if ctx.Err() != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
	}
	return ses.chainAt(op, i)
}

// Claim implements skep.Session.
func (ses *session) Claim(ctx context.Context, i int, want skep.Subset, load skep.EngineLoad) (skep.Claim, error) {
	c, err := ses.askedAt(ctx, "claim", i)
	if err != nil {
		return skep.Claim{}, err
	}
	end := len(c.Keys) * c.NS.Info.Shape.BlockTokens
	if c.Direction.ByLayer() {
		end = c.Geometry.Layers()
	}
	r, ok := want.In(end)
	if !ok {
		return skep.Claim{}, skep.Invalidf("claim", "range", want, "within 0 to "+strconv.Itoa(end))
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if c.Compute != nil {
		return ses.claimPlanned(c, r, load == skep.Idle)
	}
	if ses.ending {
		return skep.Claim{}, errSessionClosed
	}
	if c.stopped {
		return skep.Claim{}, &skep.Error{Op: "claim", Kind: skep.Stopped, Field: "chain", Value: i}
	}
	granted := r.From
	for granted < r.To {
		to, free := c.claimable(granted, r.To)
		if !free {
			break
		}
		ses.claimLocked(c, granted, to)
		granted = to
	}
	jump := granted
	for jump < end {
		to, free := c.claimable(jump, end)
		if free {
			break
		}
		jump = to
	}
	ses.wake.Broadcast()
	return skep.Claim{Granted: skep.Range{From: r.From, To: granted}, Next: jump}, nil
}

// claimable says whether the block (or layer) at position p is neither loaded nor on
// its way, and where it ends, at most limit.
func (c *chain) claimable(p, limit int) (to int, free bool) {
	if c.Direction.ByLayer() {
		to = p + 1
		if p < c.Layers.From || p >= c.Layers.To {
			return to, true
		}
		first := (p - c.Layers.From) * c.Blocks.Len()
		for _, st := range c.items[first : first+c.Blocks.Len()] {
			if st == itemAway || st == itemDone {
				return to, false
			}
		}
		return to, true
	}
	b := c.NS.Info.Shape.BlockTokens
	block := p / b
	to = min((block+1)*b, limit)
	if block < c.Blocks.From || block >= c.Blocks.To {
		return to, true
	}
	st := c.items[block-c.Blocks.From]
	return to, st != itemAway && st != itemDone
}

var errClaimed = &skep.Error{Op: "restore", Kind: skep.Claimed}

// claimLocked answers what waits in [p, to) as claimed. REQUIRES: ses.mu.
func (ses *session) claimLocked(c *chain, p, to int) {
	first, last := 0, 0
	if c.Direction.ByLayer() {
		if p < c.Layers.From || p >= c.Layers.To {
			return
		}
		first = (p - c.Layers.From) * c.Blocks.Len()
		last = first + c.Blocks.Len()
	} else {
		b := c.NS.Info.Shape.BlockTokens
		first = max(p/b-c.Blocks.From, 0)
		last = min((to+b-1)/b-c.Blocks.From, len(c.items))
	}
	for i := first; i < last; i++ {
		if c.items[i] == itemWaiting {
			ses.answerLocked(c, i, skep.Chunk{Err: errClaimed}, itemClaimed)
		}
	}
}

// Reprioritise implements skep.Session.
func (ses *session) Reprioritise(ctx context.Context, i, priority int, deadline time.Time) error {
	c, err := ses.askedAt(ctx, "reprioritise", i)
	if err != nil {
		return err
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.ending {
		return errSessionClosed
	}
	if c.stopped {
		return &skep.Error{Op: "reprioritise", Kind: skep.Stopped, Field: "chain", Value: i}
	}
	c.priority, c.deadline, ses.ordered = priority, deadline, false
	if c.plan != nil {
		c.plan.promote(priority, deadline)
	}
	ses.arm(c)
	ses.wake.Broadcast()
	return nil
}

// Stop implements skep.Session.
func (ses *session) Stop(ctx context.Context, i int) error {
	var chains []*chain
	if i == -1 {
		chains = ses.chains
	} else {
		c, err := ses.chainAt("stop", i)
		if err != nil {
			return err
		}
		chains = []*chain{c}
	}
	ses.mu.Lock()
	for _, c := range chains {
		c.stopped = true
		ses.giveUpLocked(c, &skep.Error{Op: "restore", Kind: skep.Stopped})
	}
	ses.mu.Unlock()
	ses.rs.cancelQueued()
	return ses.released(ctx, func() bool {
		for _, c := range chains {
			if c.away > 0 {
				return false
			}
		}
		return true
	})
}

// released waits until ok, asked under ses.mu, becomes true.
func (ses *session) released(ctx context.Context, ok func() bool) error {
	for {
		ses.mu.Lock()
		if ok() {
			ses.mu.Unlock()
			return nil
		}
		back := make(chan error, 1)
		ses.idle = append(ses.idle, back)
		ses.mu.Unlock()
		select {
		case <-back:
		case <-ctx.Done():
			ses.mu.Lock()
			ses.idle = slices.DeleteFunc(ses.idle, func(w chan error) bool { return w == back })
			ses.mu.Unlock()
			return &skep.Error{Op: "stop restore", Kind: skep.NotReleased, Err: ctx.Err()}
		}
	}
}

// Close implements skep.Session.
func (ses *session) Close(ctx context.Context) error {
	ses.mu.Lock()
	if !ses.ending {
		ses.ending = true
		for _, c := range ses.chains {
			c.stopped = true
			ses.giveUpLocked(c, &skep.Error{Op: "restore", Kind: skep.Stopped})
		}
		for _, r := range ses.ready[ses.readyAt:] {
			if r.more != nil && r.more.Free != nil {
				go r.more.Free() // takes ses.mu
			}
		}
		ses.ready, ses.readyAt = nil, 0
	}
	ses.mu.Unlock()
	ses.cancel()
	ses.signal()
	ses.rs.cancelQueued()
	err := ses.released(ctx, func() bool { return ses.away == 0 && !ses.pumping })
	ses.mu.Lock()
	ses.overLocked()
	ended := ses.traced // one whose chunks are not back has ended for its caller, too
	ses.traced = nil
	ses.mu.Unlock()
	ended.End(ses.began)
	return err
}

// overLocked lets go of what the session keeps, once it is closed and its pump has ended, which all chunks are back
// before. Close and the pump's end both call it: a Close that gave up waiting may be the only one. REQUIRES: ses.mu.
func (ses *session) overLocked() {
	if !ses.ending || ses.pumping || ses.over {
		return
	}
	ses.over = true
	ses.rs.sessions.remove(ses)
	ses.rs.Source.LetGo(ses.tenant, ses.state)
	ses.logPrediction()
	ses.rs.rate.saw(ses.fromDevices, ses.lastLanding.Sub(ses.began))
}
