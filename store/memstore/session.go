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

	"github.com/skepkv/skep"
)

// session loads during Next and at no other time: whoever holds mu knows that no
// destination is being written.
type session struct {
	st *Store

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
	u := c.unit()
	i, layers := u, c.Layers
	if c.Direction.ByLayer() {
		i = c.sub
		layers = skep.Range{From: c.Layers.From + u, To: c.Layers.From + u + 1}
	}
	ch := skep.Chunk{Chain: chain, Block: c.Blocks.From + i}
	if c.structured {
		ch.Layers = layers
	}
	b, now := c.blocks[i], s.opt.Clock()
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
		ch.Err = c.deliver(&ch, b, i, layers, s.opt.PoisonReleased)
	}
	if ch.Err == nil {
		ch.Tier = skep.TierDRAM
		c.units[u] = loaded
	} else if c.units[u] == pending && (!c.Direction.ByLayer() || i == len(c.blocks)-1) {
		c.units[u] = missed
	}
	c.advance()
	return ch
}

// deliver copies layers of b's part to where block i of the run goes, or lends them.
func (c *run) deliver(ch *skep.Chunk, b *block, i int, layers skep.Range, poison bool) error {
	src, ok := b.parts[c.Part]
	if !ok {
		return skep.NoPart("restore", c.Part, slices.Collect(maps.Keys(b.parts)))
	}
	extents := []extent{{0, int64(len(src))}}
	if c.structured {
		extents = c.space.geo.extents(layers, c.Heads)
	}
	for _, e := range extents {
		ch.Bytes += e.len
	}
	switch d := &c.Dest; {
	case d.Paged != nil:
		c.fillPages(src, i, layers)
	case d.Memory != nil:
		if int64(len(src)) > d.Stride {
			ch.Bytes = 0
			return skep.Invalidf("restore", "destination stride", d.Stride, fmt.Sprintf("at least %d, the size of the part", len(src)))
		}
		at := d.Memory[int64(i)*d.Stride:]
		for _, e := range extents {
			copy(at[e.off:e.off+e.len], src[e.off:])
		}
	default:
		for _, e := range extents {
			ch.Data = append(ch.Data, src[e.off:e.off+e.len:e.off+e.len])
		}
		if poison {
			poisonOnRelease(ch)
		}
	}
	return nil
}

func (c *run) fillPages(src []byte, i int, layers skep.Range) {
	g, p := c.space.geo, c.Dest.Paged
	at := int64(p.Pages[i]) * p.PageStride
	for l := layers.From; l < layers.To; l++ {
		for k := 0; k < g.planes; k++ {
			from := int64(l)*g.layer() + int64(k)*g.plane()
			g.fillPage(p.Planes[l][k][at:at+g.plane()], src[from:from+g.plane()], p.Order, c.Heads)
		}
	}
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

// Claim implements skep.Session.
func (x *session) Claim(chain int, r skep.Range) (skep.Claim, error) {
	const op = "claim"
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.chain(op, chain)
	if err != nil {
		return skep.Claim{}, err
	}
	field, n := "tokens", len(c.Keys)*c.space.geo.tokens
	if c.Direction.ByLayer() {
		field, n = "layers", c.space.geo.layers
	}
	whole, ok := r.Within(n)
	if !ok {
		return skep.Claim{}, skep.Invalidf(op, field, r, fmt.Sprintf("within 0 to %d", n))
	}
	if c.Direction.ByLayer() {
		return c.claimLayers(whole), nil
	}
	return c.claimTokens(whole), nil
}

// Reprioritise implements skep.Session.
func (x *session) Reprioritise(chain int, priority int, deadline time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, err := x.chain("reprioritise", chain)
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
