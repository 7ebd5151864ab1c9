package replication

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/lent"
	"github.com/skepkv/skep/replication/owed"
	"github.com/skepkv/skep/replication/underway"
	"github.com/skepkv/skep/replication/units"
)

const (
	// mostReady is how many chunks wait for the reader before nothing more is begun.
	mostReady = 256
	// lentBytes is what is begun or waits for the reader, of what the nodes lend, where the request has no window.
	lentBytes = 64 << 20
	// giveBack is how long the end of a session waits for the nodes to take their leases back, which run out otherwise.
	giveBack = 2 * time.Second
)

// session is a restore under way. It has a plan: what is loaded next from which node, in the chains' order, a few MiB
// at a time, so that a claim finds as much as possible not begun. Nodes are asked for nothing but to load.
type session struct {
	st     many
	sums   bool
	window int64
	held   []span // leases of the session's own

	mu     sync.Mutex
	chains []*chain
	loads  map[*load]struct{}
	doubts lent.Doubts      // loads that have ended while their node may have written yet
	active []underway.Loads // by node
	owed   owed.Book        // what nodes are yet to give
	retry  [][]*work        // by node, what another node of its group did not give
	lent   int64            // bytes that are being loaded, or are the reader's, and count against the window
	ready  []waiting        // chunks for the reader
	left   int              // chunks not handed out
	now    time.Time        // of the schedule under way
	more   chan struct{}    // one token: something changed
	closed bool
	over   bool // what was held has been given back
}

// waiting is a chunk and what of the window it takes.
type waiting struct {
	skep.Chunk
	bytes int64
}

func newSession(s many, r *skep.RestoreRequest) *session {
	return &session{st: s, sums: r.Sums, window: r.Window, loads: map[*load]struct{}{},
		active: make([]underway.Loads, len(s.nodes)), retry: make([][]*work, len(s.nodes)), owed: owed.New(s.debts),
		more: make(chan struct{}, 1)}
}

// begin begins what may be begun of a session.
func (x *session) begin() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	err := x.join()
	if err == nil {
		x.schedule()
	}
	return err
}

func (x *session) signal() {
	select {
	case x.more <- struct{}{}:
	default:
	}
}

// miss queues a chunk that does not come. x.mu is held.
func (x *session) miss(c *chain, block int, layers skep.Range, why error) {
	if !c.Structured {
		layers = skep.Range{}
	}
	x.answer(c, waiting{Chunk: skep.Chunk{Chain: c.number, Block: block, Layers: layers, Err: why}})
}

// answer queues a chunk. x.mu is held.
func (x *session) answer(c *chain, w waiting) {
	unit, missed := w.Block-c.Blocks.From, w.Err != nil
	if c.Direction.ByLayer() {
		unit = w.Layers.From - c.Layers.From
		missed = c.layers[unit].Answered(!missed, c.Blocks.Len())
	}
	if missed && c.units[unit] != units.Claimed {
		c.units[unit] = units.Missed
	}
	if w.Err != nil {
		x.st.count.Missed(w.Err)
	}
	x.answered(c, &w)
	if x.closed {
		w.Release()
		return
	}
	x.ready = append(x.ready, w)
	x.signal()
}

// schedule begins what may be begun. x.mu is held.
func (x *session) schedule() {
	if x.closed {
		return
	}
	x.now = skep.Steady()
	none := len(x.st.nodes)
	for i := range none {
		x.tryAgain(i)
	}
	for i := range none + 1 {
		x.beginPlanned(i)
	}
	var slow []bool // by node; nil: nobody has looked
	for i := range none + 1 {
		for {
			c := x.turn(i)
			if c == nil || len(x.ready) >= mostReady || i < none && x.full(c) {
				break
			}
			instead, probe := (*node)(nil), false
			if i < none && x.st.paced(c.space) {
				if slow == nil {
					slow = x.slow()
				}
				instead = x.instead(c, i, slow)
				probe = slow[i]
			}
			if on := i; i < none {
				if instead != nil {
					on = instead.i
				}
				if x.busy(c, on) || instead != nil && len(x.retry[on]) > 0 {
					break
				}
			}
			switch w := x.next(c, i); {
			case w != nil && instead != nil:
				x.move(w)
			case w != nil:
				if probe {
					w.probe = w.node.runs.Probe(time.Now())
				}
				x.load(w)
			}
		}
	}
	for _, c := range x.chains { // these misses need no room, no turn and no node: they take what the others leave
		for i := range none + 1 {
			if c.plan == nil && !c.lanes[i].over(c) && c.gone(x.now) != 0 {
				x.next(c, i)
			}
		}
	}
}

// most is how much one load takes.
func (x *session) most() int64 {
	if x.window > 0 {
		return min(workBytes, x.window/2)
	}
	return workBytes
}

// counts notes work that begins, 1, or has ended, -1. x.mu is held.
func (x *session) counts(w *work, by int) {
	x.active[w.node.i].Count(by, w.bytes, w.chain.plan != nil)
	w.chain.lanes[w.node.i].loads += by
}

// busy says that no more of a chain begins on a node.
func (x *session) busy(c *chain, i int) bool { return x.active[i].Busy(c.lanes[i].loads, x.most()) }

// full says that what the reader has not given back leaves no room for more.
func (x *session) full(c *chain) bool {
	if x.window == 0 && (c.Dest.Memory != nil || c.Dest.Paged != nil) {
		return false
	}
	return x.lent > 0 && x.lent+x.most() > cmp.Or(x.window, lentBytes)
}

// turn is the chain whose turn it is on a node; nil where nothing is to be loaded there any more.
func (x *session) turn(i int) (best *chain) {
	for _, c := range x.chains {
		if c.plan == nil && !c.lanes[i].over(c) && c.gone(x.now) == 0 && (best == nil || c.before(best)) {
			best = c
		}
	}
	return best
}

// background says that a chain gets what no other wants.
func (c *chain) background() bool { return c.Compute != nil && c.Compute.Background && c.Priority < 0 }

func (c *chain) before(d *chain) bool {
	if a, b := c.background(), d.background(); a != b {
		return b
	}
	if c.Priority != d.Priority {
		return c.Priority > d.Priority
	}
	return !c.Deadline.IsZero() && (d.Deadline.IsZero() || c.Deadline.Before(d.Deadline))
}

// Next implements skep.Session.
func (x *session) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	const op = "next chunk"
	for {
		n, err := x.take(op, into)
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-x.more:
		case <-ctx.Done():
			return 0, ended(ctx, op)
		}
	}
}

// take hands out what there is.
func (x *session) take(op string, into []skep.Chunk) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.usable(op); err != nil {
		x.signal()
		return 0, err
	}
	if len(into) == 0 {
		return 0, skep.Invalidf(op, "chunks to fill", 0, "at least 1")
	}
	x.schedule() // what is late or was claimed is known now
	n := min(len(into), len(x.ready))
	for i := range x.ready[:n] {
		x.handOut(&into[i], &x.ready[i])
	}
	clear(x.ready[:n])
	x.ready = x.ready[n:]
	x.left -= n
	x.schedule()
	if n == 0 && x.left == 0 && len(x.loads) == 0 {
		x.owed.Done()
		x.signal()
		return 0, io.EOF
	}
	return n, nil
}

// handOut gives a chunk to the reader. With a window, what is lent counts until it is given back.
func (x *session) handOut(to *skep.Chunk, w *waiting) {
	*to = w.Chunk
	bytes, free := w.bytes, to.Free
	if x.window == 0 || free == nil {
		x.lent -= bytes
		return
	}
	to.Free = func() {
		free()
		x.mu.Lock()
		x.lent -= bytes
		x.schedule()
		x.mu.Unlock()
	}
}

func (x *session) usable(op string) error {
	if x.closed {
		return &skep.Error{Op: op, Kind: skep.Closed}
	}
	return nil
}

// asked finds a chain that can still be told something. x.mu is held.
func (x *session) asked(ctx context.Context, op string, i int) (*chain, error) {
	if err := cmp.Or(ended(ctx, op), x.usable(op)); err != nil {
		return nil, err
	}
	if i < 0 || i >= len(x.chains) {
		return nil, skep.Invalidf(op, "chain", i, fmt.Sprintf("0 to %d", len(x.chains)-1))
	}
	if x.chains[i].stopped {
		return nil, &skep.Error{Op: op, Kind: skep.Stopped, Field: "chain", Value: i}
	}
	return x.chains[i], nil
}

// Direction implements skep.Session.
func (x *session) Direction(_ context.Context, i int) (skep.Direction, error) {
	if i < 0 || i >= len(x.chains) {
		return 0, skep.Invalidf("direction", "chain", i, fmt.Sprintf("0 to %d", len(x.chains)-1))
	}
	return x.chains[i].Direction, nil
}

// Reprioritise implements skep.Session.
func (x *session) Reprioritise(ctx context.Context, i int, priority int, deadline time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.asked(ctx, "reprioritise", i)
	if err != nil {
		return err
	}
	c.Priority, c.Deadline = priority, deadline
	if c.plan != nil {
		c.plan.Promote(priority, deadline)
	}
	x.arm(c)
	x.schedule()
	return nil
}

// Stop implements skep.Session.
func (x *session) Stop(ctx context.Context, i int) error {
	const op = "stop"
	x.mu.Lock()
	if err := x.usable(op); err != nil {
		x.mu.Unlock()
		return err
	}
	if i < -1 || i >= len(x.chains) {
		n := len(x.chains)
		x.mu.Unlock()
		return skep.Invalidf(op, "chain", i, fmt.Sprintf("0 to %d, or -1 for all", n-1))
	}
	for k, c := range x.chains {
		if i == -1 || i == k {
			c.stopped = true
			x.giveUp(c, &skep.Error{Op: op, Kind: skep.Stopped})
		}
	}
	loads := x.loadsOf(i)
	x.schedule()
	x.mu.Unlock()
	if err := stopAll(ctx, op, loads); err != nil {
		return err
	}
	return x.doubts.Standing(ctx, op, i)
}

// loadsOf is what is being loaded of a chain; of all with -1. x.mu is held.
func (x *session) loadsOf(i int) (out []*load) {
	for l := range x.loads {
		if i == -1 || l.chain.number == i {
			out = append(out, l)
		}
	}
	return out
}

// stopAll stops loads, and waits until nothing of them is written any more.
func stopAll(ctx context.Context, op string, loads []*load) error {
	errs := make([]error, len(loads))
	var wait sync.WaitGroup
	for i, l := range loads {
		wait.Go(func() { errs[i] = l.stop(ctx, op) })
	}
	wait.Wait()
	return cmp.Or(errs...)
}

// shut refuses everything from now on, and drops what waits for the reader.
func (x *session) shut() (loads []*load) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	for _, c := range x.chains {
		c.stopped = true
		x.giveUp(c, &skep.Error{Op: "restore", Kind: skep.Stopped})
	}
	for i := range x.ready {
		x.ready[i].Release()
	}
	x.ready = nil
	x.owed.Settle()
	x.signal()
	return x.loadsOf(-1)
}

// end is Close for a Store that closes: the nodes' Stores end what is being loaded, which is what it gives.
func (x *session) end() []*load {
	loads := x.shut()
	for _, l := range loads {
		l.cancel()
	}
	return loads
}

// Close implements skep.Session.
func (x *session) Close(ctx context.Context) error {
	const op = "close session"
	loads := x.shut()
	if err := stopAll(ctx, op, loads); err != nil {
		return err
	}
	for _, l := range loads {
		select {
		case <-l.done:
		case <-ctx.Done():
			return &skep.Error{Op: op, Kind: skep.NotReleased, Err: ctx.Err()}
		}
	}
	x.mu.Lock()
	again := x.over
	x.over = true
	x.mu.Unlock()
	if !again {
		x.st.mu.Lock()
		delete(x.st.sessions, x)
		x.st.mu.Unlock()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
		defer cancel()
		x.st.release(within, x.held)
	}
	return x.doubts.Standing(ctx, op, -1)
}

// Claim implements skep.Session. It is answered here, without a node: granted is what has not been begun,
// where nothing is said of what computing costs.
func (x *session) Claim(ctx context.Context, i int, want skep.Subset, load skep.EngineLoad) (skep.Claim, error) {
	const op = "claim"
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.asked(ctx, op, i)
	if err != nil {
		return skep.Claim{}, err
	}
	field, n := "tokens", len(c.Keys)*c.space.Shape.BlockTokens
	if c.Direction.ByLayer() {
		field, n = "layers", c.Geometry.Layers()
	}
	whole, ok := want.In(n)
	if !ok {
		return skep.Claim{}, skep.Invalidf(op, field, want, fmt.Sprintf("within 0 to %d", n))
	}
	if c.Compute != nil {
		return x.claimPlanned(c, whole, load)
	}
	if c.Direction.ByLayer() {
		return units.Claim(c.units, whole, c.Layers.From, 1, n), nil
	}
	per := c.space.Shape.BlockTokens
	end := n
	if c.Blocks.To == len(c.Keys) && len(c.Keys) > 0 {
		end += c.valid - per // a partial tail ends before its block does
	}
	if whole.From > end {
		return skep.Claim{Granted: skep.Range{From: whole.From, To: whole.From}, Next: end}, nil
	}
	return units.Claim(c.units, whole, c.Blocks.From, per, end), nil
}
