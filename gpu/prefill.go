package gpu

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// PrefillRequest is a prompt that an engine is about to compute.
type PrefillRequest struct {
	Scope skep.Scope
	// Keys is the prompt's chain, in whole blocks: first its history, then what is computed.
	Keys []skep.Key
	// History is how many leading blocks are to be loaded, at most: fewer when fewer are found.
	History int
	// Unchecked leaves layers of lent blocks as the device copied them. Else each is copied to the
	// host, too, and its checksum compared.
	Unchecked bool
}

// Prefill is a prompt whose blocks are in GPU memory while an engine computes it, layer by layer: some
// whole in own memory, as many as there is room for, the others in lent memory. Of those one layer at a
// time is in own memory, in room that is theirs until Close (elastic.Divide says how much there is).
//
// Layers are counted on through all steps: layer l of the model in step s is s * layers + l. The
// engine's streams and this Prefill wait for one another by counters, for each layer n
//
//	engine   Loaded(n)   its stream waits until the history's layer is in its place
//	         …           writes the new blocks' entries of the layer to their places
//	         Written(n)  tells, when its stream gets there, that they may be stored
//	         …           attention, over the history and the new entries
//	         Read(n)     tells, when its stream gets there, that the places may be written again
//	Prefill              loads n when n-1 is read and stored, stores n when it is written
//
// All copies from and to lent memory are on the Store's own streams, a piece at a time, and none is queued
// before it can go on at once: a lender that wants its memory back waits for one piece, never for the engine.
// Blocks of the prompt that lie there are then copied elsewhere (Usage.Relocated); where no GPU memory is left,
// what is stored behind is read from there, and the rest, computed and not stored yet, goes to host memory.
//
// When something fails (Err) no layer is held back any more: what was computed is worth nothing. Loaded,
// Written and Read are for one goroutine.
type Prefill struct {
	s         *Store
	r         PrefillRequest
	g         layout.Geometry
	slot      int64 // bytes of a layer's place
	ids       []blockID
	blocks    []*held
	uncopied  int64 // bytes of blocks to be computed that have places in lent memory
	history   int
	unchecked bool

	on                    Stream
	loaded, written, read Counter
	ctx                   context.Context
	cancel                context.CancelFunc
	ended                 chan struct{} // closed when nothing is loaded or stored any more

	// using is held while blocks are stored behind, or given back.
	using  turns
	closed bool // under using: they were given back

	mu       sync.Mutex
	steps    []int // the block that each step ends before
	changed  chan struct{}
	complete bool // no more steps
	err      error
	asked    int // layers that the engine's streams were told to wait for
	done     int // blocks that are whole: layers of all steps up to there are stored
}

// held is a block of a running prefill.
type held struct {
	e    *entry
	slot int // of the room for layers; -1: whole, in own memory
}

// room of a piece of copies, in bytes: what a lender that wants its memory back waits for.
const pieceBytes = 16 << 20

// Prefill takes room for a prompt and loads what of its history is not in GPU memory. NoMemory, with what there is
// room for as the limit, when it is too long; Overloaded when others have the room. Blocks that nobody
// uses make way.
func (s *Store) Prefill(ctx context.Context, r *PrefillRequest) (*Prefill, error) {
	const op = "prefill"
	if len(r.Keys) < 1 || len(r.Keys) > skep.MaxChainKeys || r.History < 0 || r.History > len(r.Keys) || len(r.Scope.Salt) > skep.MaxSaltSize {
		return nil, skep.Invalidf(op, "history and keys", fmt.Sprint(r.History, " of ", len(r.Keys)), fmt.Sprintf("0 to all of 1 to %d", skep.MaxChainKeys))
	}
	sp := s.space(ctx, r.Scope.Namespace)
	t := &s.tier
	if sp == nil || sp.shape.Kind == skep.Opaque || t.local.arena == nil || sp.geometry.Layers() != t.layers || sp.geometry.PartBytes() > t.blockBytes || sp.geometry.LayerBytes() > t.slotBytes() || sp.geometry.LayerBytes()*int64(t.layers) != sp.geometry.PartBytes() {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "namespace", Value: r.Scope.Namespace, Limit: fmt.Sprintf("a chained one of %d layers in at most %d bytes, and local memory", t.layers, t.blockBytes)}
	}
	p := &Prefill{s: s, r: *r, g: sp.geometry, slot: t.slotBytes(), ids: ids(r.Scope, r.Keys), unchecked: r.Unchecked, changed: make(chan struct{}, 1), ended: make(chan struct{})}
	p.using.held = make(chan struct{}, 1)
	if r.History > 0 {
		found, err := s.Store.Lookup(skep.Uncounted(ctx), &skep.LookupRequest{Scope: r.Scope, Keys: r.Keys[:r.History], Lease: skep.NoLease})
		if err != nil {
			return nil, err
		}
		p.history = found.Blocks
	}
	var err error
	if p.on, err = t.local.device.NewStream(); err != nil {
		return nil, err
	}
	for _, c := range []*Counter{&p.loaded, &p.written, &p.read} {
		if *c, err = t.local.device.NewCounter(); err != nil {
			return nil, errors.Join(err, p.giveBack())
		}
	}
	there := 0
	if err = t.hold(p); err == nil {
		if there, err = p.bring(ctx); err == nil && there == p.history {
			p.ctx, p.cancel = context.WithCancel(context.Background())
			p.done = p.history
			go p.run()
			return p, nil
		}
		t.release(p)
	}
	if err = errors.Join(err, p.giveBack()); err != nil {
		return nil, err
	}
	shorter := *r // a block of the history has gone meanwhile
	shorter.History = there
	return s.Prefill(ctx, &shorter)
}

// History is how many leading blocks the prompt has loaded; the others are to be computed.
func (p *Prefill) History() int { return p.history }

// Place is where the engine finds the layer's bytes of a block, in the order of the shape, and writes
// those of a new one: in every layer the same place for a block that is streamed.
func (p *Prefill) Place(block, layer int) Place {
	b, t := p.blocks[block], &p.s.tier
	if b.slot >= 0 {
		return t.slotPlace(b.slot)
	}
	return Place{b.e.place.Memory, b.e.place.Offset + int64(layer)*p.g.LayerBytes()}
}

// Streamed is how many of the prompt's blocks have one layer at a time in own memory.
func (p *Prefill) Streamed() (n int) {
	for _, b := range p.blocks {
		if b.slot >= 0 {
			n++
		}
	}
	return n
}

// Step begins a step over all layers that computes the blocks before block to that are not computed yet.
// It returns at once; steps may follow one another.
func (p *Prefill) Step(to int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := p.history
	if n := len(p.steps); n > 0 {
		from = p.steps[n-1]
	}
	if to < from || to > len(p.blocks) {
		return skep.Invalidf("prefill step", "block", to, fmt.Sprintf("%d to %d", from, len(p.blocks)))
	}
	if p.complete {
		return &skep.Error{Op: "prefill step", Kind: skep.Closed}
	}
	p.steps = append(p.steps, to)
	p.notify()
	return nil
}

// notify tells run of a change. REQUIRES: p.mu.
func (p *Prefill) notify() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Loaded has a stream of the engine's wait until layer n is in its places.
func (p *Prefill) Loaded(n int, on Stream) {
	p.mu.Lock()
	p.asked = max(p.asked, n+1)
	p.mu.Unlock()
	on.Wait(p.loaded, uint64(n+1))
}

// Written tells, when the stream gets there, that the new entries of layer n are in their places.
func (p *Prefill) Written(n int, on Stream) { on.Signal(p.written, uint64(n+1)) }

// Read tells, when the stream gets there, that attention of layer n has read what it reads.
func (p *Prefill) Read(n int, on Stream) { on.Signal(p.read, uint64(n+1)) }

// Err is what failed: nil while nothing did.
func (p *Prefill) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// run loads and stores the layers of each step.
func (p *Prefill) run() {
	defer close(p.ended)
	from, n := p.history, 0
	for i := 0; ; i++ {
		to, ok := p.nextStep(i)
		if !ok {
			return
		}
		for l := range p.g.Layers() {
			if err := p.layer(n, l, from, to); err != nil {
				p.fail(err)
				return
			}
			n++
		}
		from = to
		p.mu.Lock()
		p.done = to
		p.mu.Unlock()
	}
}

// nextStep waits for the i-th step. False: there is none.
func (p *Prefill) nextStep(i int) (to int, ok bool) {
	for {
		p.mu.Lock()
		has, over := i < len(p.steps), p.complete
		if has {
			to = p.steps[i]
		}
		p.mu.Unlock()
		if has || over {
			return to, has && p.ctx.Err() == nil
		}
		select {
		case <-p.changed:
		case <-p.ctx.Done():
			return 0, false
		}
	}
}

// layer loads and stores layer l of the model, the n-th counted on, in a step that computes blocks
// [from, to).
func (p *Prefill) layer(n, l, from, to int) error {
	if err := p.read.Await(p.ctx, uint64(n)); err != nil { // the places may be written again
		return err
	}
	if err := p.load(l, from); err != nil {
		return err
	}
	p.on.Signal(p.loaded, uint64(n+1))
	if err := p.written.Await(p.ctx, uint64(n+1)); err != nil {
		return err
	}
	return p.store(l, from, to)
}

// fail lets the engine's streams go on, which compute nothing of worth any more.
func (p *Prefill) fail(err error) {
	p.mu.Lock()
	if p.err == nil {
		p.err = err
	}
	p.mu.Unlock()
	p.on.Signal(p.loaded, 1<<62)
}

// Commit waits for the steps and stores the blocks they computed behind, in order. They stay in GPU memory, too. After an
// error, of Err too, none of them was stored or some were, and the engine has nothing to keep of what it computed.
func (p *Prefill) Commit(ctx context.Context) ([]skep.PutResult, error) {
	p.mu.Lock()
	p.complete = true
	p.notify()
	p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil, &skep.Error{Op: "prefill commit", Kind: skep.Closed}
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return nil, &skep.Error{Op: "prefill commit", Kind: skep.Deadline, Err: ctx.Err()}
	}
	if err := p.using.lockWithin(ctx); err != nil {
		return nil, &skep.Error{Op: "prefill commit", Kind: skep.Deadline, Err: err}
	}
	defer p.using.Unlock()
	if p.closed {
		return nil, &skep.Error{Op: "prefill commit", Kind: skep.Closed}
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	var all []skep.PutResult
	for at := p.history; at < p.done; {
		to := min(p.done, at+int(max(1, someBytes/p.g.PartBytes())))
		res, err := p.put(ctx, at, to)
		if all = append(all, res...); err != nil {
			return all, err
		}
		at = to
	}
	return all, nil
}

// Close gives everything back, without Commit what was computed is gone. It waits for a Commit under way, and for the
// engine's streams to have read what they were told to wait for, so Read is to be called for each layer that Loaded was;
// NotReleased when they are not in time: call it again.
func (p *Prefill) Close(ctx context.Context) error {
	p.mu.Lock()
	p.complete = true
	p.mu.Unlock()
	p.cancel()
	<-p.ended
	if err := p.using.lockWithin(ctx); err != nil {
		return &skep.Error{Op: "prefill close", Kind: skep.NotReleased, Field: "blocks that are being stored", Err: err}
	}
	defer p.using.Unlock()
	if p.closed {
		return nil
	}
	p.mu.Lock()
	asked := p.asked
	p.mu.Unlock()
	p.on.Signal(p.loaded, 1<<62)
	if err := p.read.Await(ctx, uint64(asked)); err != nil && !errors.Is(err, skep.DeviceFailed) {
		return &skep.Error{Op: "prefill close", Kind: skep.NotReleased, Field: "layers that streams wait for", Value: asked, Err: err}
	}
	p.closed = true
	p.s.tier.release(p)
	return p.giveBack()
}

// giveBack closes the stream and the counters.
func (p *Prefill) giveBack() error {
	ctx, cancel := context.WithTimeout(context.Background(), p.s.tier.timeout)
	defer cancel()
	err := p.on.Sync(ctx)
	err = errors.Join(err, p.on.Close())
	for _, c := range []Counter{p.loaded, p.written, p.read} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	if errors.Is(err, skep.DeviceFailed) {
		return nil // the tier says so
	}
	return err
}
