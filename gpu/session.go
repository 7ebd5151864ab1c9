package gpu

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// session is a restore whose chains begin with blocks that were in GPU memory. Those are
// copied as they are asked for; the rest of each chain is restored by the Store behind.
type session struct {
	s      *Store
	inner  skep.Session // nil when nothing is left for it
	era    uint64
	sums   bool  // chunks carry their checksums
	window int64 // bytes out of GPU memory that may be lent at a time; 0: any

	chains  []*served
	toOuter []int // of the inner session's chains

	mu     sync.Mutex
	ready  []skep.Chunk
	lent   int64         // bytes out of GPU memory that are ready, or were delivered and not given back
	given  chan struct{} // has one when some were given back, or a chain was stopped
	late   skep.Session  // of blocks that left GPU memory after they were found there; nil: there is none
	lates  []int         // its chains' numbers here
	closed bool

	// keeping is held by who does something with a destination, or begins a session that does:
	// destinations are the caller's again once Stop or Close has returned.
	keeping turns

	lateOver bool // all that left was delivered. Next's alone
}

// served is one chain: blocks [from, to) come out of GPU memory, those before next have.
type served struct {
	skep.Chain
	space    *space
	ids      []blockID
	from, to int
	next     int
	left     bool              // GPU memory: next, and those after it come from behind. Next's alone
	plan     *layout.ChainPlan // nil: all of it is for the Store behind, to do or to refuse
	inner    int               // index into the inner session's chains; -1: none
	stopped  bool
	// unreleased is what a restore of what left GPU memory failed with that may write to the destination yet: nobody can
	// say when it is the caller's again.
	unreleased error
	landing    *piece // pinned memory that blocks from to on land in; nil: none
}

// Restore implements skep.Restorer.
func (s *Store) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	ses := &session{s: s, era: s.tier.era.Load(), sums: r.Sums, window: r.Window, given: make(chan struct{}, 1)}
	ses.keeping.held = make(chan struct{}, 1)
	behind := *r
	behind.Chains = nil
	window := r.Window
	for i := range r.Chains {
		c := &served{Chain: r.Chains[i], inner: -1}
		ses.chains = append(ses.chains, c)
		ses.serve(ctx, c)
		if c.to > c.from && c.to == c.plan.Blocks.To {
			continue
		}
		c.inner = len(behind.Chains)
		ses.toOuter = append(ses.toOuter, i)
		rest := c.rest()
		ses.land(c, &rest, r.Window > 0, &window)
		behind.Chains = append(behind.Chains, rest)
		behind.Sums = behind.Sums || c.plan != nil && c.Dest.Memory != nil // to keep them: keep
	}
	ses.renumber(behind.Chains)
	lends := slices.ContainsFunc(behind.Chains, func(c skep.Chain) bool { return c.Dest.Memory == nil && c.Dest.Paged == nil })
	switch {
	case r.Window == 0 || len(behind.Chains) == 0:
	case !lends: // all it reads has a place, landing among it: its window says how much is under way
		ses.window = max(1, window)
	case ses.pending(): // each has half of what landing left
		ses.window = max(1, window/2)
		behind.Window = max(1, window-ses.window)
	default:
		behind.Window = max(1, window)
	}
	if len(behind.Chains) > 0 {
		inner, err := s.Store.Restore(ctx, &behind)
		if err != nil {
			if !errors.Is(err, skep.NotReleased) { // else something may write to what was to land
				ses.giveBack()
			}
			return nil, err
		}
		ses.inner = inner
	}
	return ses, nil
}

// renumber has the boundaries of chains name their chains by the inner session's numbers.
func (ses *session) renumber(behind []skep.Chain) {
	for i := range behind {
		k := behind[i].Compute
		if k == nil || k.Boundary == nil || k.Boundary.Chain < 0 || k.Boundary.Chain >= len(ses.chains) {
			continue // as it was, to be refused
		}
		compute, boundary := *k, *k.Boundary
		boundary.Chain = ses.chains[boundary.Chain].inner // -1, which is refused, where it is no boundary's
		compute.Boundary, behind[i].Compute = &boundary, &compute
	}
}

// rest is what is left of the chain for the Store behind: all of it, or the blocks from
// c.to on.
func (c *served) rest() skep.Chain {
	if c.to > c.from {
		return c.only(skep.Range{From: c.to, To: c.plan.Blocks.To})
	}
	return c.Chain
}

// only is the chain with some of its blocks.
func (c *served) only(r skep.Range) skep.Chain {
	some := c.Chain
	some.Blocks = r.Subset()
	first := r.From - c.plan.Blocks.From
	if m := some.Dest.Memory; m != nil {
		some.Dest.Memory = m[int64(first)*c.plan.Dest.Stride:]
	}
	if p := some.Dest.Paged; p != nil {
		pages := *p
		pages.Pages = p.Pages[first : first+r.Len()]
		some.Dest.Paged = &pages
	}
	return some
}

// whole says that the chain's chunks are whole blocks.
func (c *served) whole() bool {
	return !c.plan.Direction.ByLayer() && c.plan.Heads.IsAll() && (!c.plan.Structured || c.plan.Layers.Len() == c.space.geometry.Layers())
}

// land has the rest of a chain that brings no memory, and whose blocks come whole, land in
// pinned memory: a device copies it from there. It keeps to a window where there is one.
func (ses *session) land(c *served, rest *skep.Chain, windowed bool, window *int64) {
	if c.plan == nil || c.Dest.Memory != nil || c.Dest.Paged != nil || !c.whole() {
		return
	}
	n := int64(c.plan.Blocks.To-c.to) * c.step()
	if windowed && n > *window {
		return
	}
	if c.landing = ses.s.tier.pinned.take(n); c.landing != nil {
		*window -= n
		rest.Dest = skep.Destination{Memory: c.landing.bytes, Stride: c.step()}
	}
}

// step is from one block to the next in pinned memory.
func (c *served) step() int64 { return layout.Padded(c.space.geometry.PartBytes()) }

// landedLocked gives a chunk that landed in pinned memory as memory the Store lends.
func (c *served) landedLocked(ch *skep.Chunk) {
	if c.landing == nil || ch.Err != nil {
		return
	}
	at := int64(ch.Block-c.to) * c.step()
	ch.Data = [][]byte{c.landing.bytes[at : at+ch.Bytes : at+ch.Bytes]}
	ch.Free = c.landing.hold().release
}

// giveBack is for when nothing lands any more: what was not delivered is not lent, and
// nothing is for landing.
func (ses *session) giveBack() {
	ses.mu.Lock()
	ready := ses.ready
	ses.ready = nil
	ses.overLocked()
	ses.mu.Unlock()
	for i := range ready {
		ready[i].Release()
	}
}

// overLocked gives back the session's own hold on what chains landed in.
func (ses *session) overLocked() {
	for _, c := range ses.chains {
		c.landing.release()
		c.landing = nil
	}
}

// serve finds the leading blocks of the chain that are in GPU memory and that the Store behind still finds. It does
// nothing to a chain that waits for a decision, or with anything wrong about it: that is for the Store behind to do, or
// to refuse.
func (ses *session) serve(ctx context.Context, c *served) {
	if c.Part != "" && c.Part != skep.PartKV || c.Compute != nil || c.Direction == skep.Auto ||
		len(c.Keys) > skep.MaxChainKeys || len(c.Salt) > skep.MaxSaltSize || !c.Deadline.IsZero() && !skep.Steady().Before(c.Deadline) {
		return
	}
	if c.space = ses.s.space(ctx, c.Namespace); c.space == nil {
		return
	}
	plan, err := layout.PlanChain(&c.Chain, c.space.shape)
	if err != nil || plan.Blocks.Len() == 0 {
		return
	}
	blocks := plan.Blocks
	c.plan, c.ids = plan, ids(c.Scope, c.Keys)
	c.from, c.next, c.to = blocks.From, blocks.From, blocks.From
	n := ses.s.tier.entries.leading(c.ids[blocks.From:blocks.To])
	if n == 0 {
		return
	}
	found, err := ses.s.Store.Lookup(skep.Uncounted(ctx), &skep.LookupRequest{Scope: c.Scope, Keys: c.Keys[:blocks.From+n], Lease: skep.NoLease})
	if err != nil {
		return
	}
	n = min(n, found.Blocks-blocks.From)
	c.to = c.from + max(0, n)
}

// deliver writes a block to the chain's destination and adds its chunks. The bytes are in pinned memory, or with nil on
// the heap.
func (ses *session) deliver(index int, c *served, block int, buf []byte, p *piece) error {
	lent := c.Dest.Memory == nil && c.Dest.Paged == nil
	ses.mu.Lock()
	defer ses.mu.Unlock()
	var spans []layout.Span
	for layers := range c.chunksOf(block) {
		var err error
		if spans, err = c.plan.Spans(spans[:0], layers, int64(len(buf))); err != nil {
			return err
		}
		out := skep.Chunk{Chain: index, Block: block, Layers: layers, Tier: skep.TierGPU}
		for _, s := range spans {
			out.Bytes += s.Len
			if lent {
				out.Data = append(out.Data, buf[s.Off:s.End():s.End()])
			} else {
				c.plan.Copy(block, s.Off, buf[s.Off:s.End()])
			}
		}
		if lent && p != nil {
			out.Free = p.hold().release
		}
		if lent {
			ses.lendOut(&out)
		}
		ses.ready = append(ses.ready, out)
	}
	return nil
}

// chunksOf gives the layers of each chunk of a block.
func (c *served) chunksOf(block int) iter.Seq[skep.Range] {
	return func(yield func(skep.Range) bool) {
		for i := block - c.plan.Blocks.From; i < c.plan.Chunks(); i += c.plan.Blocks.Len() {
			if _, layers := c.plan.Chunk(i); !yield(layers) {
				return
			}
		}
	}
}

var errClosed = &skep.Error{Op: "restore session", Kind: skep.Closed}

// Next implements skep.Session.
func (ses *session) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	if len(into) == 0 {
		return 0, skep.Invalidf("next", "room for chunks", 0, "at least 1")
	}
	for {
		n, err := ses.takeReady(into)
		if n > 0 || err != nil {
			return n, err
		}
		more, err := ses.copyNext(ctx)
		if err != nil {
			return 0, err
		}
		if !more {
			break
		}
	}
	if n, err := ses.nextLate(ctx, into); n > 0 || err != nil {
		return n, err
	}
	if ses.inner == nil {
		return 0, io.EOF
	}
	n, err := ses.inner.Next(ctx, into)
	if closed := ses.lend(into[:n], err == io.EOF); closed {
		return 0, errClosed
	}
	for i := range into[:n] {
		ses.keep(ses.chains[into[i].Chain], &into[i])
		if !ses.sums {
			into[i].Sums = nil
		}
	}
	return n, err
}

// takeReady delivers what came out of GPU memory.
func (ses *session) takeReady(into []skep.Chunk) (int, error) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.closed {
		return 0, errClosed
	}
	n := copy(into, ses.ready)
	ses.ready = ses.ready[n:]
	return n, nil
}

// lend gives chunks of the Store behind this session's chains' numbers, and memory where they
// landed in pinned memory. A session that was closed meanwhile has given that back: they go, too.
func (ses *session) lend(chunks []skep.Chunk, last bool) (closed bool) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for i := range chunks {
		ch := &chunks[i]
		ch.Chain = ses.toOuter[ch.Chain]
		ses.chains[ch.Chain].landedLocked(ch)
	}
	if last {
		ses.overLocked()
	}
	if ses.closed {
		for i := range chunks {
			chunks[i].Release()
		}
	}
	return ses.closed
}

// keep puts a block that came whole from behind into GPU memory. Out of its destination, which
// others can write, it takes a copy, and only one that has the checksums the bytes were put with.
func (ses *session) keep(c *served, ch *skep.Chunk) {
	if ch.Err != nil || c.plan == nil || c.Dest.Paged != nil || !c.whole() || ch.Bytes != c.space.geometry.PartBytes() {
		return
	}
	ses.keeping.Lock()
	defer ses.keeping.Unlock()
	if ses.over(c) {
		return
	}
	var bytes []byte
	switch {
	case c.Dest.Memory != nil:
		at := int64(ch.Block-c.plan.Blocks.From) * c.plan.Dest.Stride
		if len(ch.Sums) == 0 {
			return
		}
		if bytes = append(bytes, c.Dest.Memory[at:at+ch.Bytes]...); !matches(ch.Sums, bytes) {
			return
		}
	case len(ch.Data) == 1:
		bytes = ch.Data[0]
	default:
		bytes = ch.AppendTo(nil)
	}
	ses.s.tier.put(ses.era, c.ids[ch.Block], bytes)
}

// matches says whether bytes have these checksums.
func matches(sums []skep.Sum, bytes []byte) bool {
	for _, s := range sums {
		if s.Len > int64(len(bytes)) || xxh3.HashSeed(bytes[:s.Len], s.Seed) != s.Sum {
			return false
		}
		bytes = bytes[s.Len:]
	}
	return len(bytes) == 0
}

// over says that the chain's destination is the caller's again.
func (ses *session) over(c *served) bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.closed || c.stopped
}

func (ses *session) at(op string, i int) (*served, error) {
	if i < 0 || i >= len(ses.chains) {
		return nil, skep.Invalidf(op, "chain", i, len(ses.chains)-1)
	}
	return ses.chains[i], nil
}

// state says whether the chain can be spoken of.
func (ses *session) state(op string, i int, c *served) error {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	switch {
	case ses.closed:
		return errClosed
	case c.stopped:
		return &skep.Error{Op: op, Kind: skep.Stopped, Field: "chain", Value: i}
	}
	return nil
}

// Claim implements skep.Session. What came out of GPU memory is loaded; of the rest the
// Store behind decides.
func (ses *session) Claim(ctx context.Context, i int, want skep.Subset, load skep.EngineLoad) (skep.Claim, error) {
	const op = "claim"
	c, err := ses.at(op, i)
	if err != nil {
		return skep.Claim{}, err
	}
	if c.to == c.from { // nothing of it was served
		return ses.inner.Claim(ctx, c.inner, want, load)
	}
	loaded, end := skep.Range{From: c.from * c.space.shape.BlockTokens, To: c.to * c.space.shape.BlockTokens}, len(c.Keys)*c.space.shape.BlockTokens
	if c.Direction.ByLayer() {
		loaded, end = c.plan.Layers, c.space.geometry.Layers()
	}
	r, ok := want.In(end)
	if !ok {
		return skep.Claim{}, skep.Invalidf(op, "range", want, end)
	}
	if err := ses.state(op, i, c); err != nil {
		return skep.Claim{}, err
	}
	switch {
	case c.inner >= 0 && r.From >= loaded.To && !c.Direction.ByLayer():
		return ses.inner.Claim(ctx, c.inner, r.Subset(), load)
	case r.To <= loaded.From || r.From >= loaded.To:
		return skep.Claim{Granted: r, Next: jump(r.To, loaded)}, nil
	case r.From < loaded.From:
		return skep.Claim{Granted: skep.Range{From: r.From, To: loaded.From}, Next: loaded.To}, nil
	}
	return skep.Claim{Granted: skep.Range{From: r.From, To: r.From}, Next: loaded.To}, nil
}

// jump is the first position at or after p that is not loaded.
func jump(p int, loaded skep.Range) int {
	if p >= loaded.From && p < loaded.To {
		return loaded.To
	}
	return p
}

// Reprioritise implements skep.Session.
func (ses *session) Reprioritise(ctx context.Context, i, priority int, deadline time.Time) error {
	const op = "reprioritise"
	c, err := ses.at(op, i)
	if err != nil {
		return err
	}
	if err := ses.state(op, i, c); err != nil {
		return err
	}
	// Not while a restore of what left begins: it would go by what was said before.
	if err := ses.keeping.lockWithin(ctx); err != nil {
		return &skep.Error{Op: op, Kind: skep.Deadline, Err: err}
	}
	ses.mu.Lock()
	c.Priority, c.Deadline = priority, deadline
	late, lates := ses.late, ses.lates
	ses.mu.Unlock()
	ses.keeping.Unlock()
	ses.gave()
	if n := slices.Index(lates, i); n >= 0 {
		err = late.Reprioritise(ctx, n, priority, deadline)
	}
	if c.inner >= 0 {
		err = errors.Join(err, ses.inner.Reprioritise(ctx, c.inner, priority, deadline))
	}
	return err
}

// Stop implements skep.Session.
func (ses *session) Stop(ctx context.Context, i int) error {
	const op = "stop"
	chains := ses.chains
	if i != -1 {
		c, err := ses.at(op, i)
		if err != nil {
			return err
		}
		chains = []*served{c}
	}
	err := ses.stop(ctx, op, chains...)
	if late, lates := ses.behind(); late != nil {
		if n := slices.Index(lates, i); n >= 0 || i == -1 {
			err = errors.Join(err, late.Stop(ctx, n))
		}
	}
	switch {
	case i == -1 && ses.inner != nil:
		err = errors.Join(err, ses.inner.Stop(ctx, -1))
	case i >= 0 && chains[0].inner >= 0:
		err = errors.Join(err, ses.inner.Stop(ctx, chains[0].inner))
	}
	return err
}

// stop has nothing more done with the chains' destinations, and waits for what is.
func (ses *session) stop(ctx context.Context, op string, chains ...*served) error {
	ses.mu.Lock()
	for _, c := range chains {
		c.stopped = true
	}
	ses.mu.Unlock()
	ses.gave()
	if err := ses.keeping.lockWithin(ctx); err != nil {
		return &skep.Error{Op: op, Kind: skep.NotReleased, Err: err}
	}
	ses.keeping.Unlock()
	ses.mu.Lock()
	defer ses.mu.Unlock()
	var err error
	for _, c := range chains {
		err = errors.Join(err, c.unreleased)
	}
	return err
}

// Close implements skep.Session.
func (ses *session) Close(ctx context.Context) error {
	ses.mu.Lock()
	ses.closed = true
	ses.mu.Unlock()
	err := ses.stop(ctx, "close", ses.chains...)
	if late, _ := ses.behind(); late != nil {
		err = errors.Join(err, late.Close(ctx))
	}
	if ses.inner != nil {
		err = errors.Join(err, ses.inner.Close(ctx))
	}
	if !errors.Is(err, skep.NotReleased) { // else it is closed again
		ses.giveBack()
	}
	return err
}
