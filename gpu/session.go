package gpu

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// session is a restore whose chains begin with blocks that were in GPU memory. Those are
// copied before Restore returns; the rest of each chain is restored by the Store behind.
type session struct {
	s     *Store
	inner skep.Session // nil when nothing is left for it
	era   uint64

	chains  []*served
	toOuter []int // of the inner session's chains

	mu     sync.Mutex
	ready  []skep.Chunk
	closed bool

	// keeping is held while a block is copied out of its destination, which is the caller's
	// again once Stop or Close has returned.
	keeping sync.Mutex
}

// served is one chain: blocks [from, to) came out of GPU memory.
type served struct {
	*skep.Chain
	space    *space
	ids      []blockID
	from, to int
	blocks   skep.Range
	layers   skep.Range
	inner    int // index into the inner session's chains; -1: none
	stopped  bool
	landing  *piece // pinned memory that blocks [to, blocks.To) land in; nil: none
}

// Restore implements skep.Restorer.
func (s *Store) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	ses := &session{s: s, era: s.tier.now()}
	behind := *r
	behind.Chains = nil
	window := r.Window
	for i := range r.Chains {
		c := &served{Chain: &r.Chains[i], inner: -1}
		ses.chains = append(ses.chains, c)
		if len(r.Chains) <= skep.MaxChains {
			ses.serve(ctx, i, c)
		}
		if c.to > c.from && c.to == c.blocks.To {
			continue
		}
		c.inner = len(behind.Chains)
		ses.toOuter = append(ses.toOuter, i)
		rest := c.rest()
		ses.land(c, &rest, r.Window > 0, &window)
		behind.Chains = append(behind.Chains, rest)
	}
	ses.renumber(behind.Chains)
	if len(behind.Chains) > 0 || len(r.Chains) == 0 {
		inner, err := s.Store.Restore(ctx, &behind)
		if err != nil {
			ses.giveBack()
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
	rest := *c.Chain
	if c.to > c.from {
		rest.Blocks = skep.Range{From: c.to, To: c.blocks.To}
		if m := rest.Dest.Memory; m != nil {
			rest.Dest.Memory = m[int64(c.to-c.from)*c.stride():]
		}
	}
	return rest
}

func (c *served) stride() int64 {
	if c.Dest.Stride != 0 {
		return c.Dest.Stride
	}
	return c.step()
}

// land has the rest of a chain that brings no memory, and whose blocks come whole, land in
// pinned memory: a device copies it from there. It keeps to a window where there is one.
func (ses *session) land(c *served, rest *skep.Chain, windowed bool, window *int64) {
	if c.ids == nil || c.Dest.Memory != nil || c.Direction.ByLayer() || c.layers.Len() != c.space.geometry.Layers() {
		return
	}
	n := int64(c.blocks.To-c.to) * c.step()
	if windowed && n > *window {
		return
	}
	if c.landing = ses.s.tier.pinned.take(n); c.landing != nil {
		*window -= n
		rest.Dest = skep.Destination{Memory: c.landing.bytes, Stride: c.step()}
	}
}

// step is from one block to the next in pinned memory.
func (c *served) step() int64 {
	return (c.space.geometry.PartBytes() + pinnedPage - 1) &^ (pinnedPage - 1)
}

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
	defer ses.mu.Unlock()
	for i := range ses.ready {
		ses.ready[i].Release()
	}
	ses.ready = nil
	ses.overLocked()
}

// overLocked gives back the session's own hold on what chains landed in.
func (ses *session) overLocked() {
	for _, c := range ses.chains {
		c.landing.release()
		c.landing = nil
	}
}

// serve copies the leading blocks of the chain that are in GPU memory and that the Store
// behind still finds. It does nothing to a chain with anything unusual or wrong about it:
// that is for the Store behind to do, or to refuse.
func (ses *session) serve(ctx context.Context, index int, c *served) {
	var ok bool
	if c.Part != "" && c.Part != skep.PartKV || c.Compute != nil || c.Dest.Paged != nil || !c.Heads.All() || c.Direction > skep.LayersDown ||
		len(c.Keys) > skep.MaxChainKeys || len(c.Salt) > skep.MaxSaltSize || !c.Deadline.IsZero() && !time.Now().Before(c.Deadline) {
		return
	}
	if c.blocks, ok = c.Blocks.Within(len(c.Keys)); !ok || c.blocks.Len() == 0 {
		return
	}
	if c.space = ses.s.space(ctx, c.Namespace); c.space == nil {
		return
	}
	g := c.space.geometry
	if c.space.kind == skep.Opaque && !c.Layers.All() {
		return
	}
	if c.layers, ok = c.Layers.Within(g.Layers()); !ok {
		return
	}
	c.ids = ids(c.Scope, c.Keys)
	c.from, c.to = c.blocks.From, c.blocks.From
	n := ses.s.tier.has(c.ids[c.blocks.From:c.blocks.To])
	if n == 0 {
		return
	}
	found, err := ses.s.Store.Lookup(ctx, &skep.LookupRequest{Scope: c.Scope, Keys: c.Keys[:c.blocks.From+n], Lease: skep.NoLease})
	if err != nil {
		return
	}
	n = min(n, found.Blocks-c.blocks.From)
	if c.Dest.Memory != nil {
		size := g.PartBytes()
		if c.stride() < size || int64(c.blocks.Len()-1)*c.stride()+size > int64(len(c.Dest.Memory)) {
			return // to be refused
		}
	}
	for block := c.from; block < c.from+n; block++ {
		p := ses.s.tier.pinned.take(g.PartBytes())
		buf := []byte(nil)
		if p != nil {
			buf = p.bytes
		} else {
			buf = make([]byte, g.PartBytes())
		}
		ok := ses.s.tier.get(c.ids[block], buf)
		if ok {
			ok = ses.deliver(index, c, block, buf, p) == nil
		}
		p.release()
		if !ok {
			return
		}
		c.to = block + 1
	}
}

// deliver writes a block to the chain's destination and adds its chunks: one, or one a
// layer. The bytes are in pinned memory, or with nil on the heap.
func (ses *session) deliver(index int, c *served, block int, buf []byte, p *piece) error {
	step := c.layers.Len()
	if c.Direction.ByLayer() {
		step = 1
	}
	var spans []layout.Span
	for l := c.layers.From; l < c.layers.To; l += step {
		layers := skep.Range{From: l, To: l + step}
		asked := layers
		if c.space.kind == skep.Opaque {
			asked, layers = skep.Range{}, skep.Range{}
		}
		var err error
		if spans, err = c.space.geometry.ByteRange(spans[:0], asked, layout.KAndV, skep.Range{}, skep.Range{}); err != nil {
			return err
		}
		out := skep.Chunk{Chain: index, Block: block, Layers: layers, Tier: skep.TierGPU}
		for _, s := range spans {
			out.Bytes += s.Len
			if c.Dest.Memory == nil {
				out.Data = append(out.Data, buf[s.Off:s.End():s.End()])
			} else {
				copy(c.Dest.Memory[int64(block-c.blocks.From)*c.stride()+s.Off:], buf[s.Off:s.End()])
			}
		}
		if c.Dest.Memory == nil && p != nil {
			out.Free = p.hold().release
		}
		ses.ready = append(ses.ready, out)
	}
	return nil
}

var errClosed = &skep.Error{Op: "restore session", Kind: skep.Closed}

// Next implements skep.Session.
func (ses *session) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	if len(into) == 0 {
		return 0, skep.Invalidf("next", "room for chunks", 0, "at least 1")
	}
	ses.mu.Lock()
	if ses.closed {
		ses.mu.Unlock()
		return 0, errClosed
	}
	n := copy(into, ses.ready)
	ses.ready = ses.ready[n:]
	ses.mu.Unlock()
	if n > 0 {
		return n, nil
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
	}
	return n, err
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

// keep puts a block that came whole from behind into GPU memory.
func (ses *session) keep(c *served, ch *skep.Chunk) {
	if ch.Err != nil || c.space == nil || c.ids == nil || c.Direction.ByLayer() || c.Dest.Paged != nil || !c.Heads.All() ||
		c.layers.Len() != c.space.geometry.Layers() || ch.Bytes != c.space.geometry.PartBytes() {
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
		at := int64(ch.Block-c.blocks.From) * c.stride()
		bytes = c.Dest.Memory[at : at+ch.Bytes]
	case len(ch.Data) == 1:
		bytes = ch.Data[0]
	default:
		for _, d := range ch.Data {
			bytes = append(bytes, d...)
		}
	}
	ses.s.tier.put(ses.era, c.ids[ch.Block], bytes)
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
func (ses *session) Claim(i int, r skep.Range) (skep.Claim, error) {
	const op = "claim"
	c, err := ses.at(op, i)
	if err != nil {
		return skep.Claim{}, err
	}
	if c.to == c.from { // nothing of it was served
		return ses.inner.Claim(c.inner, r)
	}
	loaded, end := skep.Range{From: c.from * c.space.tokens, To: c.to * c.space.tokens}, len(c.Keys)*c.space.tokens
	if c.Direction.ByLayer() {
		loaded, end = c.layers, c.space.geometry.Layers()
	}
	r, ok := r.Within(end)
	if !ok {
		return skep.Claim{}, skep.Invalidf(op, "range", r, end)
	}
	if err := ses.state(op, i, c); err != nil {
		return skep.Claim{}, err
	}
	switch {
	case c.inner >= 0 && r.From >= loaded.To && !c.Direction.ByLayer():
		return ses.inner.Claim(c.inner, r)
	case r.To <= loaded.From || r.From >= loaded.To:
		return skep.Claim{Granted: r, Jump: jump(r.To, loaded)}, nil
	case r.From < loaded.From:
		return skep.Claim{Granted: skep.Range{From: r.From, To: loaded.From}, Jump: loaded.To}, nil
	}
	return skep.Claim{Granted: skep.Range{From: r.From, To: r.From}, Jump: loaded.To}, nil
}

// jump is the first position at or after p that is not loaded.
func jump(p int, loaded skep.Range) int {
	if p >= loaded.From && p < loaded.To {
		return loaded.To
	}
	return p
}

// Reprioritise implements skep.Session.
func (ses *session) Reprioritise(i, priority int, deadline time.Time) error {
	const op = "reprioritise"
	c, err := ses.at(op, i)
	if err != nil {
		return err
	}
	if c.inner >= 0 {
		return ses.inner.Reprioritise(c.inner, priority, deadline)
	}
	return ses.state(op, i, c)
}

// Stop implements skep.Session.
func (ses *session) Stop(ctx context.Context, i int) error {
	if i == -1 {
		ses.stop(ses.chains...)
		if ses.inner == nil {
			return nil
		}
		return ses.inner.Stop(ctx, -1)
	}
	c, err := ses.at("stop", i)
	if err != nil {
		return err
	}
	ses.stop(c)
	if c.inner < 0 {
		return nil // it landed before Restore returned
	}
	return ses.inner.Stop(ctx, c.inner)
}

func (ses *session) stop(chains ...*served) {
	ses.mu.Lock()
	for _, c := range chains {
		c.stopped = true
	}
	ses.mu.Unlock()
	ses.keeping.Lock() // what is being kept is
	defer ses.keeping.Unlock()
}

// Close implements skep.Session.
func (ses *session) Close(ctx context.Context) error {
	ses.mu.Lock()
	ses.closed = true
	ses.mu.Unlock()
	ses.stop()
	var err error
	if ses.inner != nil {
		err = ses.inner.Close(ctx)
	}
	if skep.KindOf(err) != skep.NotReleased { // else it is closed again
		ses.giveBack()
	}
	return err
}
