package gpu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
)

// Run is Len bytes of a block, from its byte From on, and where they go.
type Run struct {
	From int64
	To   Place
	Len  int64
}

// Direct is a restore into memory of an engine's on the Store's own device.
type Direct struct {
	Scope  skep.Scope
	Keys   []skep.Key  // the chain
	Blocks skep.Subset // of it
	// On is the engine's stream, of the Store's own device: copies go behind what is queued there,
	// and before what comes after.
	On Stream
	// Runs appends where a block's bytes go: those of Keys[block].
	Runs func(dst []Run, block int) ([]Run, error)
	// Unchecked leaves blocks that come out of GPU memory as the device copied them. Else each is
	// copied to the host, too, and its checksum compared, before On is told to copy it.
	Unchecked bool
}

// The most bytes that restores have on their way to engines' streams, in host memory, and the most
// that one has read from behind at a time.
const (
	maxOnWay  = 256 << 20
	someBytes = 32 << 20
)

// RestoreTo queues copies of a chain's blocks on an engine's stream and says how many of them, in order,
// will be there: later ones are to be computed, and what their runs name is undefined. A block in
// GPU memory goes over the link into Options.DirectBytes of own memory, at once, and from there on
// the stream: a lender that wants its memory back never waits for the engine. The rest of the chain
// comes from behind through pinned memory, as far as there is room (Options.PinnedBytes), and is copied
// from there. It waits, until ctx ends, where as much as may be is on its way. After an error some
// copies may be queued.
func (s *Store) RestoreTo(ctx context.Context, d *Direct) (blocks int, err error) {
	const op = "restore to GPU memory"
	r, ok := d.Blocks.In(len(d.Keys))
	switch {
	case d.On == nil || d.Runs == nil:
		return 0, skep.Invalidf(op, "stream and runs", "none", "one of each")
	case !ok || len(d.Keys) > skep.MaxChainKeys || len(d.Scope.Salt) > skep.MaxSaltSize:
		return 0, skep.Invalidf(op, "blocks and keys", fmt.Sprint(d.Blocks, " of ", len(d.Keys)), fmt.Sprintf("a range of at most %d", skep.MaxChainKeys))
	}
	sp := s.space(ctx, d.Scope.Namespace)
	if sp == nil {
		return 0, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "namespace", Value: d.Scope.Namespace, Limit: "a chained one"}
	}
	g := &direct{Direct: d, s: s, size: sp.geometry.PartBytes()}
	n, err := g.ahead(ctx, r)
	if err != nil {
		return n, err
	}
	for at := r.From + n; at < r.To; {
		to := min(r.To, at+int(max(1, someBytes/g.step())))
		some, err := g.behind(ctx, skep.Range{From: at, To: to})
		n += some
		if err != nil || some < to-at {
			return n, err
		}
		at = to
	}
	return n, nil
}

// direct is one such restore.
type direct struct {
	*Direct
	s    *Store
	size int64 // bytes of a block
	runs []Run
}

func (g *direct) step() int64 { return (g.size + pinnedPage - 1) &^ (pinnedPage - 1) }

// ahead copies the leading blocks that are in GPU memory and that the Store behind still finds.
func (g *direct) ahead(ctx context.Context, r skep.Range) (n int, err error) {
	s := g.s
	ids := ids(g.Scope, g.Keys[:r.To])
	n = s.tier.entries.leading(ids[r.From:])
	if n == 0 || s.tier.way.arena == nil || g.size > s.tier.blockBytes {
		return 0, nil
	}
	found, err := s.Store.Lookup(skep.Uncounted(ctx), &skep.LookupRequest{Scope: g.Scope, Keys: g.Keys[:r.From+n], Lease: skep.NoLease})
	if err != nil {
		return 0, err
	}
	for i := range min(n, found.Blocks-r.From) {
		room, err := s.tier.way.room(ctx)
		if err != nil {
			return i, err
		}
		if !s.tier.pass(ids[r.From+i], room.at, g.size, !g.Unchecked) {
			s.tier.way.unused(room.counter, 0, room.free)
			return i, nil
		}
		if err = g.queue(r.From+i, func(r Run) { g.On.Copy(r.To, Place{room.at.Memory, room.at.Offset + r.From}, r.Len) }, func(list []Transfer) []Transfer {
			for _, r := range g.runs {
				list = append(list, Transfer{To: r.To, From: Place{room.at.Memory, room.at.Offset + r.From}, N: r.Len})
			}
			return list
		}); err != nil {
			s.tier.way.unused(room.counter, 0, room.free)
			return i, err
		}
		if err := s.tier.way.queued(g.On, room.counter, 0, room.free); err != nil {
			return i, err
		}
	}
	return max(0, min(n, found.Blocks-r.From)), nil
}

// queue queues the copies of a block: all at once where the stream can.
func (g *direct) queue(block int, one func(Run), all func([]Transfer) []Transfer) (err error) {
	if g.runs, err = g.Runs(g.runs[:0], block); err != nil {
		return err
	}
	for _, r := range g.runs {
		if r.From < 0 || r.Len < 0 || r.From > g.size-r.Len {
			return skep.Invalidf("restore to GPU memory", "run", fmt.Sprint(r.From, " ", r.Len), g.size)
		}
	}
	if b, ok := g.On.(Batcher); ok && all != nil {
		b.CopyAll(all(nil))
		return nil
	}
	for _, r := range g.runs {
		one(r)
	}
	return nil
}

// behind restores some blocks into host memory, pinned where there is room, and queues copies from there.
func (g *direct) behind(ctx context.Context, r skep.Range) (n int, err error) {
	s, step := g.s, g.step()
	bytes := int64(r.Len()) * step
	past, err := s.tier.way.reserve(ctx, bytes)
	if err != nil {
		return 0, err
	}
	p := s.tier.pinned.take(bytes)
	mem := []byte(nil)
	if p != nil {
		mem = p.bytes
	} else {
		mem = make([]byte, bytes)
	}
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: g.Scope, Keys: g.Keys, Blocks: r.Subset(), Dest: skep.Destination{Memory: mem, Stride: step}}}})
	switch {
	case errors.Is(err, skep.NotReleased): // something may write there yet: it is never lent again
		s.tier.way.lost(past)
		return 0, err
	case err != nil:
		s.tier.way.unused(past, bytes, p.release)
		return 0, err
	}
	arrived := make([]bool, r.Len())
	err = receive(ctx, ses, g.size, func(c *skep.Chunk) error {
		block := mem[int64(c.Block-r.From)*step:]
		err := g.queue(c.Block, func(r Run) { g.On.CopyIn(r.To, block[r.From:r.From+r.Len:r.From+r.Len]) }, nil)
		arrived[c.Block-r.From] = err == nil
		return err
	})
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.tier.timeout)
	defer cancel()
	closed := ses.Close(end)
	if errors.Is(closed, skep.NotReleased) { // the memory is lent again when both, session and stream, are past it
		var users atomic.Int32
		users.Store(2)
		free := func() {
			if users.Add(-1) == 0 {
				runtime.KeepAlive(mem)
				p.release()
				s.tier.way.came(bytes)
			}
		}
		err = errors.Join(err, s.tier.way.queued(g.On, past, 0, free))
		s.tier.unreleased.again(ses, s.tier.timeout, free)
	} else {
		err = errors.Join(err, s.tier.way.queued(g.On, past, bytes, func() { runtime.KeepAlive(mem); p.release() }))
	}
	for n < len(arrived) && arrived[n] {
		n++
	}
	return n, errors.Join(err, closed)
}

// pass copies a block to own memory and waits for that. False: it is not there, or not as it was put.
func (t *tier) pass(id blockID, to Place, size int64, check bool) bool {
	var sum []byte
	if check {
		p := t.pinned.take(size)
		defer p.release()
		if p != nil {
			sum = p.bytes
		} else {
			sum = make([]byte, size)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries.of(id)
	if e == nil || e.size != size {
		return false
	}
	p := t.poolOf(e)
	if !p.holds() {
		return false
	}
	p.stream.Copy(to, e.place, size)
	if check {
		p.stream.CopyOut(sum, to)
	}
	if err := t.syncLocked(p); err != nil || !p.holds() {
		return false
	}
	if check && max(xxh3.Hash(sum), 1) != e.sum {
		t.dropLocked(e)
		return false
	}
	t.order[e.row()].MoveToFront(e.used)
	t.hits++
	return true
}
