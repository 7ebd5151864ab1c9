package memstore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
)

// session loads during Next and at no other time: whoever holds mu knows that no
// destination is being written.
type session struct {
	skep.UnsupportedSession // of claim words: there is no scheduler to share one with
	st                      *Store

	mu     sync.Mutex // before Store.mu
	runs   []*run
	closed bool
}

// end makes the session refuse everything, once what is being copied is.
func (x *session) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	for _, c := range x.runs {
		c.stopped = true
	}
}

func (x *session) usable(op string) error {
	if x.closed {
		return &skep.Error{Op: op, Kind: skep.Closed}
	}
	return nil
}

// Next implements skep.Session.
func (x *session) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	const op = "next chunk"
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.usable(op); err != nil {
		return 0, err
	}
	if len(into) == 0 {
		return 0, skep.Invalidf(op, "chunks to fill", 0, "at least 1")
	}
	if err := ended(ctx, op); err != nil {
		return 0, err
	}
	n := 0
	for ; n < len(into); n++ {
		chain := x.nextRun()
		if chain < 0 {
			break
		}
		into[n] = x.runs[chain].load(x.st, chain)
	}
	if n == 0 {
		return 0, io.EOF
	}
	x.st.count(x.runs, into[:n])
	return n, nil
}

// nextRun is the chain whose turn it is: the highest priority, then the nearest
// deadline, then the first; -1 when all are over.
func (x *session) nextRun() int {
	best := -1
	for i, c := range x.runs {
		if !c.over() && (best < 0 || c.before(x.runs[best])) {
			best = i
		}
	}
	return best
}

func (c *run) before(d *run) bool {
	if c.Priority != d.Priority {
		return c.Priority > d.Priority
	}
	return !c.Deadline.IsZero() && (d.Deadline.IsZero() || c.Deadline.Before(d.Deadline))
}

// load delivers the run's next piece, or says why not.
func (c *run) load(s *Store, chain int) skep.Chunk {
	number := c.InOrder(c.turn)
	c.turn++
	u, last := c.unit(number)
	ch := skep.Chunk{Chain: chain}
	ch.Block, ch.Layers = c.Chunk(number)
	b, now := c.blocks[ch.Block-c.Blocks.From], s.opt.Clock()
	switch {
	case c.units[u] == claimed:
		ch.Err = &skep.Error{Op: "restore", Kind: skep.Claimed}
	case c.stopped:
		ch.Err = &skep.Error{Op: "restore", Kind: skep.Stopped}
	case !c.Deadline.IsZero() && !now.Before(c.Deadline):
		ch.Err = &skep.Error{Op: "restore", Kind: skep.Deadline, Err: fmt.Errorf("%v late", now.Sub(c.Deadline))}
	case b == nil:
		ch.Err = &skep.Error{Op: "restore", Kind: skep.NotFound}
	default:
		ch.Err = c.deliver(&ch, b, s.opt.PoisonReleased)
	}
	if ch.Err == nil {
		ch.Tier = skep.TierDRAM
		c.units[u] = loaded
	} else if c.units[u] == pending && last {
		c.units[u] = missed
	}
	return ch
}

// deliver copies layers of b's part to where the chunk's block goes, or lends them.
func (c *run) deliver(ch *skep.Chunk, b *block, poison bool) error {
	src, ok := b.parts[c.Part]
	if !ok {
		return skep.NoPart("restore", c.Part, slices.Collect(maps.Keys(b.parts)))
	}
	if err := c.Fits(int64(len(src))); err != nil {
		return err
	}
	spans, err := c.Spans(nil, ch.Layers, int64(len(src)))
	if err != nil {
		return err
	}
	for _, s := range spans {
		ch.Bytes += s.Len
		if c.sums {
			ch.Sums = append(ch.Sums, skep.Sum{Len: s.Len, Sum: xxh3.Hash(src[s.Off:s.End()])})
		}
	}
	if c.Dest.Memory != nil || c.Dest.Paged != nil {
		for _, s := range spans {
			c.Copy(ch.Block, s.Off, src[s.Off:s.End()])
		}
		return nil
	}
	for _, s := range spans {
		ch.Data = append(ch.Data, src[s.Off:s.End():s.End()])
	}
	if poison {
		poisonOnRelease(ch)
	}
	return nil
}

// Poison is what PoisonReleased overwrites released bytes with.
const Poison = 0xDB

func poisonOnRelease(ch *skep.Chunk) {
	lent := make([][]byte, len(ch.Data))
	for i, p := range ch.Data {
		lent[i] = bytes.Clone(p)
	}
	ch.Data = lent
	ch.Free = func() {
		for _, p := range lent {
			for i := range p {
				p[i] = Poison
			}
		}
	}
}

// count puts delivered chunks into the statistics.
func (s *Store) count(runs []*run, chunks []skep.Chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range chunks {
		ch := &chunks[i]
		if ch.Err != nil {
			s.stats.RestoreMisses[skep.KindOf(ch.Err).Error()]++
			continue
		}
		s.stats.RestoredBytes += ch.Bytes
		s.stats.RestoreTiers[ch.Tier.String()] += ch.Bytes
		// A block that comes layer by layer counts with its last layer.
		c := runs[ch.Chain]
		last := c.Layers.To - 1
		if c.Direction == skep.LayersDown {
			last = c.Layers.From
		}
		if !c.Direction.ByLayer() || ch.Layers.From == last {
			s.stats.RestoredBlocks++
		}
	}
}

// chain finds a chain that can still be told something.
func (x *session) chain(op string, i int) (*run, error) {
	if err := x.usable(op); err != nil {
		return nil, err
	}
	if i < 0 || i >= len(x.runs) {
		return nil, skep.Invalidf(op, "chain", i, fmt.Sprintf("0 to %d", len(x.runs)-1))
	}
	if x.runs[i].stopped {
		return nil, &skep.Error{Op: op, Kind: skep.Stopped, Field: "chain", Value: i}
	}
	return x.runs[i], nil
}

// asked is chain of a call that does nothing once its context has ended.
func (x *session) asked(ctx context.Context, op string, i int) (*run, error) {
	if err := ended(ctx, op); err != nil {
		return nil, err
	}
	return x.chain(op, i)
}

// Claim implements skep.Session. Nothing is on its way between two calls of Next, so a busy engine gets what an idle
// one gets.
func (x *session) Claim(ctx context.Context, chain int, want skep.Subset, _ skep.EngineLoad) (skep.Claim, error) {
	const op = "claim"
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.asked(ctx, op, chain)
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
	if c.Direction.ByLayer() {
		return c.claimLayers(whole), nil
	}
	return c.claimTokens(whole), nil
}

// Reprioritise implements skep.Session.
func (x *session) Reprioritise(ctx context.Context, chain int, priority int, deadline time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.asked(ctx, "reprioritise", chain)
	if err != nil {
		return err
	}
	c.Priority, c.Deadline = priority, deadline
	return nil
}

// Stop implements skep.Session. There is never a write under way to wait for once
// the mutex is held, so it does not return NotReleased.
func (x *session) Stop(_ context.Context, chain int) error {
	const op = "stop"
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.usable(op); err != nil {
		return err
	}
	if chain < -1 || chain >= len(x.runs) {
		return skep.Invalidf(op, "chain", chain, fmt.Sprintf("0 to %d, or -1 for all", len(x.runs)-1))
	}
	for i, c := range x.runs {
		if chain == -1 || chain == i {
			c.stopped = true
		}
	}
	return nil
}

// Close implements skep.Session. Closing twice is not an error.
func (x *session) Close(context.Context) error {
	x.end()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.st.mu.Lock()
	defer x.st.mu.Unlock()
	if _, open := x.st.sessions[x]; open {
		delete(x.st.sessions, x)
		for _, c := range x.runs {
			for _, b := range c.found() {
				b.holds--
			}
		}
	}
	return nil
}
