package bucket

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Restore implements skep.Store. Chains of which objects have blocks that the node's Store lacks are cut in two: what
// is there is loaded first, and meanwhile the rest is fetched.
func (s *Store) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	cuts := s.cuts(ctx, r)
	if len(cuts) == 0 {
		return s.Store.Restore(ctx, r)
	}
	x := &session{s: s, later: *r, first: *r, brought: make(chan struct{}), stopped: map[int]bool{},
		back: make(chan struct{}, 1)}
	x.first.Chains, x.later.Chains = nil, nil
	for i := range r.Chains {
		c := r.Chains[i]
		if at, is := cuts[i]; is {
			head, tail := halves(&c, at)
			x.later.Chains = append(x.later.Chains, tail)
			x.late = append(x.late, i)
			x.cuts = append(x.cuts, at)
			if head.Blocks.IsAll() { // there is none
				continue
			}
			c = head
		}
		x.first.Chains = append(x.first.Chains, c)
		x.early = append(x.early, i)
	}
	if len(x.first.Chains) > 0 {
		var err error
		if x.now, err = s.Store.Restore(ctx, &x.first); err != nil {
			return nil, err
		}
	}
	x.ctx, x.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if !s.fetching.begin(x.bring) {
		close(x.brought)
	}
	return x, nil
}

// recall is what of a chain is to be fetched: blocks from the from-th key on.
type recall struct {
	sp   *space
	from int // where the chain is cut: the first of its blocks that the node's Store lacked
	// stride is that of its memory, filled in where the request leaves it to the Store.
	stride int64
	bytes  int64 // that are read of each block; 0: all of it
}

// cuts says which chains are cut in two, and where.
func (s *Store) cuts(ctx context.Context, r *skep.RestoreRequest) map[int]recall {
	var out map[int]recall
	if s.why.reads.Load() != nil { // the bucket did not answer lately
		return nil
	}
	for i := range r.Chains {
		c := &r.Chains[i]
		of, ok := c.Blocks.In(len(c.Keys))
		if !ok || c.Compute != nil || c.Salt != "" || len(c.Keys) > skep.MaxChainKeys {
			continue
		}
		sp, err := s.spaceOf(ctx, c.Namespace)
		if err != nil || sp == nil || !sp.has(c.Keys[of.From:of.To]) || !s.takes(sp) {
			continue
		}
		miss, ok := s.missing(ctx, sp, c, of)
		if !ok {
			continue
		}
		if out == nil {
			out = map[int]recall{}
		}
		plan, err := layout.PlanChain(c, sp.spec.Shape)
		if err != nil { // the node's Store says so, too
			continue
		}
		out[i] = recall{sp, max(of.From, miss), plan.Dest.Stride, bytesOf(plan)}
	}
	return out
}

// bytesOf is how many bytes a plan reads of each block; 0: that depends on the block.
func bytesOf(plan *layout.ChainPlan) (n int64) {
	if plan.Size < 0 {
		return 0
	}
	spans, err := plan.Spans(nil, plan.Layers, plan.Size)
	if err != nil {
		return 0
	}
	for _, x := range spans {
		n += x.Len
	}
	return n
}

// missing is the first of a chain's blocks that the node's Store lacks, where objects have it and what follows, up to
// one that is asked for at least; false: there is none. Blocks before those that are asked for come along: the Store
// gives no block without what it continues.
func (s *Store) missing(ctx context.Context, sp *space, c *skep.Chain, of skep.Range) (from int, ok bool) {
	keys := c.Keys[:of.To]
	res, err := s.Store.Lookup(skep.Uncounted(ctx), &skep.LookupRequest{Scope: c.Scope, Keys: keys, Lease: skep.NoLease})
	if err != nil || res.Blocks >= len(keys) {
		return 0, false
	}
	return res.Blocks, res.Blocks+len(sp.run(keys, res.Blocks)) > of.From
}

// halves is a chain's blocks before one, and those from it on. The first one is of All where there are none.
func halves(c *skep.Chain, cut recall) (head, tail skep.Chain) {
	at := cut.from
	of, _ := c.Blocks.In(len(c.Keys))
	head, tail = *c, *c
	tail.Lease = 0
	if at == of.From {
		head.Blocks = skep.All
		return head, tail
	}
	head.Blocks, tail.Blocks = skep.Only(of.From, at), skep.Only(at, of.To)
	n := at - of.From
	if c.Dest.Memory != nil {
		border := min(int64(n)*cut.stride, int64(len(c.Dest.Memory)))
		head.Dest.Memory, tail.Dest.Memory = c.Dest.Memory[:border:border], c.Dest.Memory[border:]
	}
	if p := c.Dest.Paged; p != nil && n <= len(p.Pages) {
		a, b := *p, *p
		a.Pages, b.Pages = p.Pages[:n:n], p.Pages[n:]
		head.Dest.Paged, tail.Dest.Paged = &a, &b
	}
	return head, tail
}

// session is a restore of which a part is fetched: what the drives had comes first.
type session struct {
	s            *Store
	first, later skep.RestoreRequest
	early, late  []int    // number of each chain in the caller's request
	cuts         []recall // of each chain of later
	now          skep.Session
	ctx          context.Context
	cancel       context.CancelFunc
	brought      chan struct{} // closed when what comes has been fetched

	mu      sync.Mutex
	then    part          // nil: not yet
	begins  chan struct{} // closed when the second part has begun or not; nil: nobody begins it
	stopped map[int]bool  // chains of the caller's
	never   map[int]bool  // those that were when the second part began
	over    bool          // closed
	ended   atomic.Bool   // the first part is delivered
	turns   []turn
	lent    atomic.Int64  // bytes of the first part that the caller has
	back    chan struct{} // has one when some came back
}

// part is what is asked of a part of a session.
type part interface {
	Next(ctx context.Context, into []skep.Chunk) (int, error)
	Reprioritise(ctx context.Context, chain, priority int, deadline time.Time) error
	Stop(ctx context.Context, chain int) error
	Close(ctx context.Context) error
}

var errStopped = &skep.Error{Op: "restore", Kind: skep.Stopped}

// turn is a Reprioritise that the second part is to hear of.
type turn struct {
	chain, priority int
	deadline        time.Time
}

// bring fetches what is missing of all chains, one after the other.
func (x *session) bring() {
	defer close(x.brought)
	defer context.AfterFunc(x.s.life, x.cancel)()
	for i := range x.later.Chains {
		x.mu.Lock()
		stopped := x.stopped[x.late[i]]
		x.mu.Unlock()
		if stopped {
			continue
		}
		x.bringChain(&x.later.Chains[i], x.cuts[i])
	}
}

// bringChain fetches what is missing of one chain. What does not come is a miss of the session that loads it.
func (x *session) bringChain(c *skep.Chain, at recall) {
	s, ctx := x.s, x.ctx
	if !c.Deadline.IsZero() {
		by, cancel := context.WithTimeout(ctx, c.Deadline.Sub(skep.Steady()))
		defer cancel()
		ctx = by
	}
	of, _ := c.Blocks.In(len(c.Keys))
	for last := -1; ctx.Err() == nil; {
		from, ok := s.missing(ctx, at.sp, c, of)
		if !ok || from <= last { // nothing is gained
			return
		}
		run := at.sp.run(c.Keys[:of.To], from)
		if len(run) == 0 { // it was deleted meanwhile
			return
		}
		run, end, wait := s.fetching.turn(at.sp, run)
		if wait != nil {
			select {
			case <-wait:
			case <-ctx.Done():
			}
			if s.why.reads.Load() != nil { // nor would it answer this one
				return
			}
			continue
		}
		_, err := s.bring(ctx, at.sp, c.Scope, run)
		end()
		if last = from; err != nil {
			return
		}
	}
}

// lend notes what the caller has of the first part: both parts keep to one window.
func (x *session) lend(c *skep.Chunk) {
	free := c.Free
	if free == nil || x.first.Window <= 0 {
		return
	}
	n := int64(0)
	for _, d := range c.Data {
		n += int64(len(d))
	}
	x.lent.Add(n)
	c.Free = func() {
		free()
		x.lent.Add(-n)
		select {
		case x.back <- struct{}{}:
		default:
		}
	}
}

// more is the bytes of the second part, about.
func (x *session) more() (n int64) {
	for i := range x.later.Chains {
		c := &x.later.Chains[i]
		of, _ := c.Blocks.In(len(c.Keys))
		for _, p := range x.cuts[i].sp.run(c.Keys[:of.To], of.From) {
			n += cmp.Or(x.cuts[i].bytes, int64(p.bytes))
		}
	}
	return n
}

// second begins the second part, once all has been fetched, and half of the window is there for it, or enough.
func (x *session) second(ctx context.Context) (part, error) {
	late := func() error { return &skep.Error{Op: "restore", Kind: skep.Deadline, Err: ctx.Err()} }
	select {
	case <-x.brought:
	case <-ctx.Done():
		return nil, late()
	}
	enough := max(x.first.Window/2, x.first.Window-x.more())
	for x.first.Window > 0 && x.lent.Load() > enough && x.ctx.Err() == nil {
		select {
		case <-x.back:
		case <-x.ctx.Done():
		case <-ctx.Done():
			return nil, late()
		}
	}
	if !x.settled(ctx) {
		return nil, late()
	}
	if x.over || x.then != nil {
		defer x.mu.Unlock()
		if x.over {
			return nil, &skep.Error{Op: "restore", Kind: skep.Closed}
		}
		return x.then, nil
	}
	for i, chain := range x.late {
		if x.stopped[chain] { // nothing is written to its memory any more
			x.later.Chains[i].Dest = skep.Destination{}
		}
	}
	if x.later.Window > 0 {
		x.later.Window = max(1, x.later.Window-x.lent.Load())
	}
	x.never, x.begins = maps.Clone(x.stopped), make(chan struct{})
	x.mu.Unlock() // the Store may wait for drives: who asks something of the first part does not
	var then part
	then, err := x.s.Store.Restore(context.WithoutCancel(ctx), &x.later)
	if err != nil {
		then, err = missing(&x.later, x.cuts, err), nil
	}
	x.mu.Lock()
	x.then = then
	turns := x.turns
	x.mu.Unlock()
	for i, chain := range x.late {
		if x.never[chain] {
			err = errors.Join(err, then.Stop(ctx, i))
		}
		for _, t := range turns {
			if t.chain == chain && !x.never[chain] {
				err = errors.Join(err, then.Reprioritise(ctx, i, t.priority, t.deadline))
			}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	close(x.begins)
	x.begins = nil
	return then, err
}

// settled takes mu while nobody begins the second part; false: ctx has ended, and mu is not taken.
func (x *session) settled(ctx context.Context) bool {
	x.mu.Lock()
	for x.begins != nil {
		begins := x.begins
		x.mu.Unlock()
		select {
		case <-begins:
		case <-ctx.Done():
			return false
		}
		x.mu.Lock()
	}
	return true
}

// Next implements skep.Session.
func (x *session) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	if x.now != nil && !x.ended.Load() {
		n, err := x.now.Next(ctx, into)
		for i := range into[:n] {
			into[i].Chain = x.early[into[i].Chain]
			x.lend(&into[i])
		}
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		x.ended.Store(true)
		if n > 0 {
			return n, nil
		}
	}
	if len(into) == 0 {
		return 0, skep.Invalidf("next", "chunks", 0, "1 or more")
	}
	then, err := x.second(ctx)
	if err != nil {
		return 0, err
	}
	n, err := then.Next(ctx, into)
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range into[:n] {
		c := &into[i]
		if c.Err == nil && c.Block >= x.cuts[c.Chain].from {
			c.Tier = skep.TierObject
		}
		if c.Chain = x.late[c.Chain]; x.never[c.Chain] {
			c.Release()
			*c = skep.Chunk{Chain: c.Chain, Block: c.Block, Layers: c.Layers, Err: errStopped}
		}
	}
	return n, err
}

// parts are the sessions that have a chain of the caller's, and its number there: a second one that is about to begin is
// waited for. Nobody else waits meanwhile: a Stop may for a drive.
func (x *session) parts(ctx context.Context, chain int, call func(ses part, chain int) error) (err error) {
	i, j := slices.Index(x.early, chain), slices.Index(x.late, chain)
	if i < 0 && j < 0 {
		return skep.Invalidf("session", "chain", chain, "one of the request")
	}
	var then part
	if j >= 0 {
		if !x.settled(ctx) {
			return &skep.Error{Op: "session", Kind: skep.Deadline, Err: ctx.Err()}
		}
		then = x.then
		x.mu.Unlock()
	}
	if i >= 0 {
		err = call(x.now, i)
	}
	if j >= 0 && then != nil {
		err = errors.Join(err, call(then, j))
	}
	return err
}

// Direction implements skep.Session: of a chain that was cut it is what was asked for.
func (x *session) Direction(ctx context.Context, chain int) (skep.Direction, error) {
	i, ok, err := x.whole("direction", chain)
	if err != nil {
		return 0, err
	}
	if ok {
		return x.now.Direction(ctx, i)
	}
	return x.later.Chains[slices.Index(x.late, chain)].Direction, nil
}

// Reprioritise implements skep.Session.
func (x *session) Reprioritise(ctx context.Context, chain, priority int, deadline time.Time) error {
	x.mu.Lock()
	if x.then == nil && slices.Contains(x.late, chain) {
		x.turns = append(slices.DeleteFunc(slices.Clone(x.turns), func(t turn) bool { return t.chain == chain }),
			turn{chain, priority, deadline})
	}
	x.mu.Unlock()
	return x.parts(ctx, chain, func(ses part, chain int) error {
		return ses.Reprioritise(ctx, chain, priority, deadline)
	})
}

// Stop implements skep.Session.
func (x *session) Stop(ctx context.Context, chain int) error {
	if chain >= 0 {
		if !slices.Contains(x.early, chain) && !slices.Contains(x.late, chain) {
			return skep.Invalidf("session", "chain", chain, "one of the request")
		}
		x.mu.Lock()
		x.stopped[chain] = true
		x.mu.Unlock()
		err := x.parts(ctx, chain, func(ses part, chain int) error { return ses.Stop(ctx, chain) })
		if skep.KindOf(err) == skep.Deadline { // the second part begins: the Store may write there yet
			err = &skep.Error{Op: "stop", Kind: skep.NotReleased, Err: err}
		}
		return err
	}
	x.cancel()
	var err error
	for _, c := range x.chains() {
		err = errors.Join(err, x.Stop(ctx, c))
	}
	return err
}

// chains are the numbers of all.
func (x *session) chains() []int {
	out := append(slices.Clone(x.early), x.late...)
	slices.Sort(out)
	return slices.Compact(out)
}

// Close implements skep.Session.
func (x *session) Close(ctx context.Context) error {
	x.cancel()
	settled := false
	select {
	case <-x.brought:
		settled = x.settled(ctx)
	case <-ctx.Done():
	}
	if !settled {
		return &skep.Error{Op: "close", Kind: skep.NotReleased, Err: ctx.Err()}
	}
	x.over = true
	then := x.then
	x.mu.Unlock()
	var err error
	if x.now != nil {
		err = x.now.Close(ctx)
	}
	if then != nil {
		err = errors.Join(err, then.Close(ctx))
	}
	return err
}
