package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// stagedBytes is how much of the shared memory one call has at a time for blocks that are elsewhere.
const stagedBytes = 32 << 20

// asking is how many lookups of one exists are under way at once.
const asking = 8

// exists says of each key where its block is. In a chained namespace keys are one chain.
func (o *opened) exists(ctx context.Context, sc skep.Scope, keys []skep.Key, tiers []skep.Tier) error {
	sp, err := o.space(ctx, sc.Namespace)
	if err != nil {
		return err
	}
	clear(tiers)
	if sp.Each {
		return o.existsEach(ctx, sc, keys, tiers)
	}
	run := func(ctx context.Context, from, to int) (next int, err error) {
		f, err := o.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys[from:to], Lease: skep.NoLease, Tiers: true})
		for i := range f.Blocks {
			tiers[from+i] = skep.TierDevice
			if i < len(f.Tiers) && f.Tiers[i] != skep.TierNone {
				tiers[from+i] = f.Tiers[i]
			}
		}
		return from + f.Blocks + 1, err
	}
	next, err := run(ctx, 0, len(keys))
	if err != nil || sp.Chained || next >= len(keys) {
		return err
	}
	// Behind a key that is not there each run of those that are takes a lookup.
	g, ctx := errgroup.WithContext(ctx)
	some := max(1, (len(keys)-next+asking-1)/asking)
	for from := next; from < len(keys); from += some {
		g.Go(func() error {
			for at, to := from, min(from+some, len(keys)); at < to; {
				var err error
				if at, err = run(ctx, at, to); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// lookupEach says of each key whether its block can be restored, and leases those that can. In a chained namespace
// keys are one chain, unless each is one.
func (o *opened) lookupEach(
	ctx context.Context, sc skep.Scope, keys []skep.Key, lease time.Duration, found []byte,
) (skep.LeaseID, error) {
	clear(found)
	sp, err := o.space(ctx, sc.Namespace)
	if err != nil {
		return 0, err
	}
	if sp.Each || !sp.Chained {
		f, err := o.LookupRuns(ctx, runsOfOne(sc, keys, lease))
		for i, run := range f.Runs {
			found[i] = byte(run.Blocks)
		}
		if !errors.Is(err, skep.Unsupported) {
			return f.Lease.ID, err
		}
	}
	if sp.Each {
		return 0, o.wanted(ctx, sc, keys, func(i int) { found[i] = 1 })
	}
	f, err := o.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys, Lease: lease})
	for i := range f.Blocks {
		found[i] = 1
	}
	return f.Lease.ID, err
}

// staging is memory that blocks are copied through: shared with the server where there is some.
type staging struct {
	mem   skep.Memory // nil: of the heap
	bytes []byte
}

func (s *staging) release() {
	if s.mem != nil {
		s.mem.Release()
	}
}

// inPlace says whether blocks can be read and written where they are.
func (o *opened) inPlace(blocks []place) bool {
	return len(blocks) == 0 || !scattered(blocks) && (o.client == nil || o.client.Shares(blocks[0][0]))
}

// stage takes memory for blocks of these lengths that are in pieces, or not shared with the server; nil where they are
// in one piece each and lie in shared memory, or there is none.
func (o *opened) stage(ctx context.Context, blocks []place) *staging {
	if o.inPlace(blocks) {
		return nil
	}
	n := int64(0)
	for _, b := range blocks {
		n += layout.Padded(b.size())
	}
	if m := o.shareable(ctx, n); m != nil {
		return &staging{m, m.Bytes()}
	}
	if !scattered(blocks) {
		return nil
	}
	b := make([]byte, n+layout.Padded(1)-1) // drives write to pages
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (layout.Padded(1) - 1)
	return &staging{nil, b[skip : skip+n : skip+n]}
}

// shareable is memory that the server maps; nil: there is none.
func (o *opened) shareable(ctx context.Context, n int64) skep.Memory {
	c := o.client
	if c == nil || c.Attached(ctx) != nil {
		return nil
	}
	m, err := c.Alloc(ctx, n)
	if err != nil {
		return nil
	}
	if _, _, shared := c.SharedFile(m.Bytes()); !shared {
		m.Release()
		return nil
	}
	return m
}

// cut gives each block its place.
func (s *staging) cut(blocks []place) [][]byte {
	out, off := make([][]byte, len(blocks)), int64(0)
	for i, b := range blocks {
		n := b.size()
		out[i] = s.bytes[off : off+n : off+n]
		off += layout.Padded(n)
	}
	return out
}

// kept is a Restorer that keeps the session it began.
type kept struct {
	skep.Restorer
	session skep.Session
}

func (k *kept) Restore(ctx context.Context, r *skep.RestoreRequest) (s skep.Session, err error) {
	s, err = k.Restorer.Restore(ctx, r)
	k.session = s
	return s, err
}

// giveBack gives back memory that a load was into: once the session that it ended with is closed, where drives, or who
// reads a socket, may write to it yet. Where there is no session its Store knows of that by itself. hung is called once
// where the session does not close.
func (o *opened) giveBack(release, hung func(), ended skep.Session, err error) {
	if ended == nil || !errors.Is(err, skep.NotReleased) {
		release()
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.life.Err() != nil {
		return
	}
	o.behind.Go(func() {
		for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
			ctx, cancel := context.WithTimeout(o.life, patience)
			err := ended.Close(ctx)
			cancel()
			if err == nil {
				release()
				return
			}
			hung()
			hung = func() {}
			select {
			case <-time.After(wait):
			case <-o.life.Done():
				return
			}
		}
	})
}

// fitting is how many of blocks, from the first, make one piece of at most so many bytes.
func fitting(blocks []place, most int64) int {
	bytes := int64(0)
	for i, b := range blocks {
		if bytes += layout.Padded(b.size()); i > 0 && (bytes > most || i == skep.MaxChains) {
			return i
		}
	}
	return len(blocks)
}

// pieces calls f for blocks [from, to), until all have had their turn or one call fails, with that call's error. Of
// blocks that are staged two pieces are under way at once: one is copied while the other is on its way.
func (o *opened) pieces(ctx context.Context, blocks []place, f func(ctx context.Context, from, to int) error) error {
	most, atOnce := int64(stagedBytes), 1
	if !o.inPlace(blocks) {
		most, atOnce = stagedBytes/2, 2
	}
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	left, kept := false, atomic.Bool{} // kept: a drive has the caller's memory yet, whichever error was first
	for from := 0; from < len(blocks) && !left; {
		first, to := from, from+fitting(blocks[from:], most)
		g.Go(func() error { // the first says what is wrong where ctx has ended
			err := f(within, first, to)
			if skep.KindOf(err) == skep.NotReleased {
				kept.Store(true)
			}
			return err
		})
		from, left = to, to < len(blocks) && within.Err() != nil
	}
	err := g.Wait()
	switch {
	case kept.Load() && skep.KindOf(err) != skep.NotReleased:
		return &skep.Error{Op: op, Kind: skep.NotReleased, Err: err}
	case err != nil || !left:
		return err
	}
	return &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
}

// load fills each of dst with the block of its key, and says in results why not: 0, it is there. A block of another
// length is a Conflict. Leading ones that are nil are not asked for: they are what the others continue. What is not
// answered when an error ends it has the error's kind.
func (o *opened) load(ctx context.Context, c skep.Chain, dst []place, results []skep.Kind) (err error) {
	lead := 0
	for ; lead < len(dst) && dst[lead] == nil; lead++ {
		results[lead] = skep.Other
	}
	dst, results = dst[lead:], results[lead:]
	for i := range results {
		results[i] = unsaid
	}
	defer func() {
		for i, k := range results {
			if k == unsaid {
				results[i] = kindOf(err)
			}
		}
	}()
	sp, err := o.space(ctx, c.Namespace)
	if err != nil {
		return err
	}
	e, err := extentOf(sp.Shape, &c)
	if err != nil {
		return err
	}
	return o.pieces(ctx, dst, func(ctx context.Context, from, to int) error {
		part, into, said := c, dst[from:to], results[from:to]
		part.Keys = c.Keys[lead+from : lead+to]
		if err := o.loadPiece(ctx, sp.Each, e, part, into, said); err != nil || !sp.Chained || sp.Each {
			return err
		}
		return o.loadRest(ctx, e, c, lead+from, into, said)
	})
}

// loadPiece loads blocks to where they are wanted, by way of memory that the server has, too, where there is some.
func (o *opened) loadPiece(
	ctx context.Context, each bool, e extent, c skep.Chain, into []place, said []skep.Kind,
) error {
	s := o.stage(ctx, into)
	if s == nil {
		return loadInto(ctx, o, each, e, c, firsts(into), said, func(int) {})
	}
	places := s.cut(into)
	k := &kept{Restorer: o}
	err := loadInto(ctx, k, each, e, c, places, said, func(i int) {
		into[i].from(e.Off).fill(places[i][e.Off : e.Off+e.of(int64(len(places[i])))])
	})
	if s.mem != nil {
		o.giveBack(s.mem.Release, func() {}, k.session, err)
	}
	return notOurs(ctx, err)
}

// loadRest asks once more for what is missing of a chain's blocks from first on, with all that they continue: by that
// object storage finds what the drives have no more. It is copied.
func (o *opened) loadRest(
	ctx context.Context, e extent, c skep.Chain, first int, into []place, said []skep.Kind,
) error {
	missing := func(k skep.Kind) bool { return k == skep.NotFound || k == skep.Evicted }
	from := slices.IndexFunc(said, missing)
	if from < 0 {
		return nil
	}
	to := from + 1
	for i := to; i < len(said); i++ {
		if missing(said[i]) {
			to = i + 1
		}
	}
	c.Keys, c.Blocks = c.Keys[:first+to], skep.Only(first+from, first+to)
	if until, ok := ctx.Deadline(); ok {
		c.Deadline = until.Add(-time.Until(until) / 8)
	}
	err := skep.Load(ctx, o, &skep.RestoreRequest{Chains: []skep.Chain{c}}, func(ch *skep.Chunk) error {
		i := ch.Block - first
		switch {
		case !missing(said[i]):
		case ch.Err != nil:
			said[i] = kindOf(ch.Err)
		case ch.Bytes != e.of(into[i].size()):
			said[i] = skep.Conflict
		default:
			into[i].from(e.Off).fill(ch.Data...)
			said[i] = skep.Other
		}
		return nil
	})
	return notOurs(ctx, err)
}

// notOurs is err of a load whose memory was not the caller's, who need not keep any.
func notOurs(ctx context.Context, err error) error {
	if errors.Is(err, skep.NotReleased) {
		return &skep.Error{Op: op, Kind: gaveUp(ctx), Err: err}
	}
	return err
}

// unsaid is a block of a load that nothing is known of yet.
const unsaid = ^skep.Kind(0)

func gaveUp(ctx context.Context) skep.Kind {
	if ctx.Err() != nil {
		return skep.Deadline
	}
	return skep.Unavailable
}

// kindOf is why a block is not there, never Other: that is how skep.h says that it is.
func kindOf(err error) skep.Kind {
	if k := skep.KindOf(err); k != skep.Other {
		return k
	}
	return skep.Failed
}

// extent is the length of blocks, 0: any, and which bytes of each a load is about; Len 0: all of them.
type extent struct {
	block int64
	layout.Span
}

// of is how many bytes of a block of so many that are.
func (e extent) of(block int64) int64 {
	if e.Len > 0 {
		return e.Len
	}
	return block
}

// extentOf is that of a chain's part, and of its layers.
func extentOf(shape skep.Shape, c *skep.Chain) (e extent, err error) {
	kv := c.Part == "" || c.Part == skep.PartKV
	if !kv || shape.Kind == skep.Opaque { // a shape says nothing of other parts
		if kv {
			e.block = shape.Bytes
		}
		if !c.Layers.IsAll() {
			err = skep.Invalidf(op, "layers", c.Layers, "all, where the part has none")
		}
		return e, err
	}
	g, err := layout.Of(shape)
	if err != nil {
		return e, err
	}
	e.block = g.PartBytes()
	if c.Layers.IsAll() {
		return e, nil
	}
	layers, ok := c.Layers.In(g.Layers())
	if !ok {
		return e, skep.Invalidf(op, "layers", c.Layers, fmt.Sprintf("in 0 to %d", g.Layers()))
	}
	e.Span = layout.Span{Off: int64(layers.From) * g.LayerBytes(), Len: int64(layers.Len()) * g.LayerBytes()}
	return e, nil
}

// loadInto restores blocks in one session: those whose places touch by one chain, unless each key is one. Of each that
// is there landed is told.
func loadInto(
	ctx context.Context, st skep.Restorer, each bool, e extent, c skep.Chain, dst [][]byte, results []skep.Kind,
	landed func(i int),
) error {
	if until, ok := ctx.Deadline(); ok { // drives stop a little before the caller gives up
		c.Deadline = until.Add(-time.Until(until) / 8)
	}
	req := &skep.RestoreRequest{}
	var first []int // of each chain, in dst
	if each {
		req.Chains, first = make([]skep.Chain, 0, len(dst)), make([]int, 0, len(dst))
	}
	for i := 0; i < len(dst); {
		n := int64(len(dst[i]))
		if e.block > 0 && n != e.block {
			results[i] = skep.Conflict
			i++
			continue
		}
		to := i + 1
		for !each && to < len(dst) && int64(len(dst[to])) == n && touch(dst[to-1], dst[to]) {
			to++
		}
		part := c
		part.Keys = c.Keys[i:to]
		part.Dest = skep.Destination{Memory: unsafe.Slice(unsafe.SliceData(dst[i]), int64(to-i)*n), Stride: n}
		req.Chains, first = append(req.Chains, part), append(first, i)
		i = to
	}
	if len(req.Chains) == 0 {
		return nil
	}
	return skep.Load(ctx, st, req, func(ch *skep.Chunk) error {
		i := first[ch.Chain] + ch.Block
		results[i] = skep.Other
		defer func() {
			if results[i] == skep.Other {
				landed(i)
			}
		}()
		switch {
		case errors.Is(ch.Err, skep.Invalid): // it is longer than its place
			results[i] = skep.Conflict
		case ch.Err != nil:
			results[i] = kindOf(ch.Err)
		case ch.Bytes != e.of(int64(len(dst[i]))):
			results[i] = skep.Conflict
		}
		return nil
	})
}

// touch says whether b lies right behind a.
func touch(a, b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(a)))+uintptr(len(a)) == uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

// save stores blocks, in a chained namespace one behind the other, and says of each what became of it. What is not
// answered when an error ends it is declined for the error's kind.
func (o *opened) save(ctx context.Context, r skep.PutRequest, keys []skep.Key, src []place, results []skep.PutResult) error {
	sp, err := o.space(ctx, r.Namespace)
	if err != nil {
		return err
	}
	for i := range results {
		results[i] = skep.PutResult{Outcome: unheard}
	}
	err = o.pieces(ctx, src, func(ctx context.Context, from, to int) error {
		part, blocks := r, src[from:to]
		if sp.Chained && !sp.Each && from > 0 {
			part.Parent, part.Depth = &keys[from-1], r.Depth+from
		}
		s := o.stage(ctx, blocks)
		var bytes [][]byte
		if s == nil {
			bytes = firsts(blocks)
		} else {
			bytes = s.cut(blocks)
			for i, b := range blocks {
				b.gather(bytes[i])
			}
		}
		part.Blocks = make([]skep.Block, len(blocks))
		for i, b := range bytes {
			part.Blocks[i] = skep.Block{Key: keys[from+i], Parts: []skep.Part{{Bytes: b}}}
		}
		var released atomic.Bool
		part.Released = func() {
			released.Store(true)
			if s != nil {
				s.release()
			}
		}
		list, err := o.put(ctx, &part)
		if s != nil {
			if !errors.Is(err, skep.NotReleased) {
				s.release()
			}
			if rest, held := skep.Held(err); held {
				err = rest
				if err == nil && list == nil {
					err = &skep.Error{Op: op, Kind: gaveUp(ctx)}
				}
			}
		} else if errors.Is(err, skep.NotReleased) && released.Load() {
			err, _ = skep.Held(err)
		}
		copy(results[from:to], list)
		return err
	})
	for i := range results {
		if results[i].Outcome == unheard {
			results[i] = skep.PutResult{Outcome: skep.Declined, Reason: kindOf(err)}
		}
	}
	return err
}

// unheard is the outcome of a block that was not answered for.
const unheard = ^skep.Outcome(0)
