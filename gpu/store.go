package gpu

import (
	"container/list"
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/layout/elastic"
)

// Lender is memory another device lends.
type Lender struct {
	Device Device
	Unit   elastic.Unit
	Units  int // of the arena; all of them are lent at first but the lowest Keep
	Keep   int
	// Memory is the arena where it is mapped already; it stays the caller's, and stays mapped
	// until Detach or Close. nil: the Store allocates it.
	Memory Memory
	// Usable says whether the lease still holds; what is found while it does not is not
	// believed. It must not call the Store. nil: it always does.
	Usable func() bool
}

// Options are those of New.
type Options struct {
	Device     Device // the borrower's own
	Local      int    // blocks it keeps in its own memory
	BlockBytes int64  // of the largest block kept; larger ones are not
	Lenders    []Lender
	// Layers is how many layers a block has, where an engine streams those of lent blocks
	// (LayerRoom): then a part of local memory is for the layer at work, as large as what is lent
	// at the moment makes it (elastic.Divide), and the rest for blocks. 0: all of it is for blocks.
	Layers int
	// PinnedBytes is pinned host memory of the device's own (a Pinner's), taken once: restores
	// that bring no memory of their own land in it, from drives directly, and the device copies
	// from there. A restore there is no room for, or that may have less on its way (Window),
	// lands where the Store behind has it land. 0: none.
	PinnedBytes int64
	// DirectBytes is own GPU memory that blocks pass through on their way from GPU memory to an
	// engine's (RestoreTo), as many as it has room for at a time. With less than a block's bytes they
	// go through host memory.
	DirectBytes int64
	// UncopiedBytes is the most bytes of blocks that prefills (Prefill) compute in lent memory and have not stored behind
	// yet: what may have to be copied to host memory before a lender's deadline. The rate of the link to the host times
	// that deadline is what it is to be at most. 0: any.
	UncopiedBytes int64
	// RereadBytes is the most host memory for blocks of prefills' histories that lost their places in GPU memory: such a block
	// is read from behind once and stays there. Of what there is no room for, each layer is read from behind when it is
	// loaded. 0: 256 MiB.
	RereadBytes int64
	// Timeout is how long a device may take for one copy before the tier is given up and
	// every block comes from behind. 0: one second.
	Timeout time.Duration
}

// Store is a Store with GPU memory in front of another Store. Blocks of chained namespaces
// that a restore delivered whole are kept in local GPU memory, then in lent memory, and a
// restore takes the longest prefix it finds there from there. Every block has its copy
// behind, and only what the Store behind still finds is served: losing a device, or giving
// lent memory back, costs time and nothing else.
//
// Blocks that change behind its back must not: whoever deletes or purges does it through
// this Store.
type Store struct {
	skep.Store
	tier tier

	mu     sync.Mutex
	shapes map[skep.NamespaceID]*space
}

// space is what is known of a namespace.
type space struct {
	chained  bool
	geometry layout.Geometry
	shape    skep.Shape
}

// New puts GPU memory in front of behind, which it owns from then on unless it fails.
func New(behind skep.Store, o Options) (*Store, error) {
	const op = "gpu store"
	switch {
	case o.Device == nil:
		return nil, skep.Invalidf(op, "device", "none", "one")
	case o.BlockBytes < 1 || o.BlockBytes > skep.MaxPartBytes:
		return nil, skep.Invalidf(op, "block bytes", o.BlockBytes, int64(skep.MaxPartBytes))
	case o.Local < 0 || o.Local > 1<<24:
		return nil, skep.Invalidf(op, "local blocks", o.Local, "0 to 16777216")
	case o.Layers < 0 || int64(o.Layers) > o.BlockBytes:
		return nil, skep.Invalidf(op, "layers", o.Layers, fmt.Sprintf("0 to %d", o.BlockBytes))
	case o.DirectBytes < 0 || o.DirectBytes > 1<<40:
		return nil, skep.Invalidf(op, "direct bytes", o.DirectBytes, "0 to 1 TiB")
	case o.PinnedBytes < 0 || o.PinnedBytes > 1<<40 || o.PinnedBytes%pinnedPage != 0:
		return nil, skep.Invalidf(op, "pinned bytes", o.PinnedBytes, "0 to 1 TiB, a multiple of 4096")
	case o.UncopiedBytes < 0:
		return nil, skep.Invalidf(op, "uncopied bytes", o.UncopiedBytes, "0 or more")
	case o.RereadBytes < 0:
		return nil, skep.Invalidf(op, "reread bytes", o.RereadBytes, "0 or more")
	case o.Timeout < 0:
		return nil, skep.Invalidf(op, "timeout", o.Timeout, "0 or more")
	}
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	if o.RereadBytes == 0 {
		o.RereadBytes = defaultReread
	}
	s := &Store{Store: behind, shapes: map[skep.NamespaceID]*space{}}
	t := &s.tier
	t.mu.held = make(chan struct{}, 1)
	t.unreleased.stop = make(chan struct{})
	t.blockBytes, t.layers, t.timeout = o.BlockBytes, o.Layers, o.Timeout
	t.entries.clear()
	t.order = [2]*list.List{list.New(), list.New()}
	t.pins, t.mostUncopied, t.mostReread = map[*entry]struct{}{}, o.UncopiedBytes, o.RereadBytes
	err := t.open(o, behind)
	if err != nil {
		t.pinned.forgotten()
		t.close()
		return nil, err
	}
	return s, nil
}

func (t *tier) open(o Options, behind skep.Store) (err error) {
	t.local.device = o.Device
	if t.local.stream, err = o.Device.NewStream(); err != nil {
		return err
	}
	if o.Local > 0 {
		if t.local.memory, err = o.Device.Alloc(int64(o.Local) * o.BlockBytes); err != nil {
			return err
		}
		t.local.owned = true
		if t.local.arena, err = ownArena(o.BlockBytes, o.Local); err != nil {
			return err
		}
	}
	if err = t.way.open(o.Device, o.BlockBytes, o.DirectBytes); err != nil {
		return err
	}
	for _, l := range o.Lenders {
		p, err := t.borrow(l)
		t.lent = append(t.lent, p)
		if err != nil {
			return err
		}
	}
	t.divideLocked()
	if o.PinnedBytes > 0 {
		t.pinned, err = newPinned(o.Device, behind, o.PinnedBytes)
	}
	return err
}

// borrow makes a pool of memory another device lends. It is to be closed, after an error too.
func (t *tier) borrow(l Lender) (p pool, err error) {
	if l.Device == nil || l.Unit.BorrowerBlock < t.blockBytes {
		return p, skep.Invalidf("gpu store", "borrower's block in a lender's unit", l.Unit.BorrowerBlock, t.blockBytes)
	}
	p = pool{device: l.Device, usable: l.Usable}
	floor := l.Keep
	if l.Memory != nil {
		floor = 0 // who lends it says how far the border goes
	}
	if p.arena, err = elastic.New(l.Unit, l.Units, floor); err != nil {
		return p, err
	}
	if err = p.arena.Move(l.Keep - l.Units); err != nil {
		return p, err
	}
	// The borrower's own stream reaches the lender's memory.
	if err = t.local.device.EnablePeer(l.Device); err != nil {
		return p, err
	}
	if p.stream, err = t.local.device.NewStream(); err != nil {
		return p, err
	}
	size := int64(l.Units) * l.Unit.Bytes
	if p.memory = l.Memory; p.memory == nil {
		p.memory, err = l.Device.Alloc(size)
		p.owned = err == nil
		return p, err
	}
	if p.memory.Size() < size {
		return p, skep.Invalidf("gpu store", "lent memory in bytes", p.memory.Size(), size)
	}
	return p, nil
}

// Unwrap is the Store behind: see skep.As. What it has besides a Store's calls it does behind GPU memory's back.
func (s *Store) Unwrap() skep.Store { return s.Store }

// Attach takes memory that is lent from now on. The result is its number for Reclaim and
// Detach.
func (s *Store) Attach(l Lender) (int, error) { return s.tier.attach(l) }

// Detach gives back all that is left of a lender's memory and forgets the lender: its number
// may come again. After an error something may still touch the memory.
func (s *Store) Detach(lender int) error { return s.tier.detach(lender) }

// Usage is what the tier holds.
type Usage struct {
	Local, Lent int // blocks
	Hits, Drops int64
	// LocalRoom and LentRoom are how many blocks there is room for, LayerRoom how many single-layer
	// blocks: each changes with what is lent.
	LocalRoom, LentRoom, LayerRoom int
	Simulated                      bool
	// Pinned is the bytes of pinned host memory, and Landing how many of them a restore has
	// now; MostLanding the most at a time, Unpinned how often there was no room.
	Pinned, Landing, MostLanding, Unpinned int64
	// Held is how many blocks running prefills hold, and Uncopied how many bytes of them are in lent memory and
	// not behind. Relocated is how many blocks were copied elsewhere in GPU memory because a border moved over
	// them, and Rescued how many went to host memory, for want of room.
	Held                         int
	Uncopied, Relocated, Rescued int64
	// Reread is how many bytes of their histories are in host memory: at most Options.RereadBytes.
	Reread int64
	// Failed is why the tier is out of use; nil while it is in use.
	Failed error
}

// Usage is what the tier holds now.
func (s *Store) Usage() Usage {
	t := &s.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	u := Usage{Local: t.order[0].Len(), Lent: t.order[1].Len(), Hits: t.hits, Drops: t.drops, Simulated: t.local.device.Simulated(), Failed: t.failed}
	u.LocalRoom, u.LentRoom, u.LayerRoom = t.roomLocked()
	u.Held, u.Uncopied, u.Relocated, u.Rescued = len(t.pins), t.uncopied, t.relocated, t.rescued
	u.Reread = t.reread
	u.Pinned, u.Landing, u.MostLanding, u.Unpinned = t.pinned.stats()
	return u
}

// Reclaim gives n units back to a lender, counted as in Options.Lenders or named by Attach,
// or with a negative n takes n more. When it returns nil nothing of this Store touches them.
func (s *Store) Reclaim(lender, n int) error { return s.tier.move(lender, n) }

// Close closes the Store behind and gives GPU memory back. Pinned memory that chunks still lend
// goes back when they are released: the device is to stay open until then. NotReleased while GPU memory is a prefill's,
// an engine's (LayerRoom), or on its way to one: it stays, and Close is to be called again.
func (s *Store) Close() error {
	s.tier.pinned.forgotten()
	err := s.Store.Close()
	if e := s.tier.close(); err == nil {
		err = e
	}
	return err
}

// space looks a namespace up. Nil: nothing of it is kept.
func (s *Store) space(ctx context.Context, id skep.NamespaceID) *space {
	s.mu.Lock()
	sp, ok := s.shapes[id]
	s.mu.Unlock()
	if ok {
		return sp
	}
	n, err := s.Store.FindNamespace(ctx, id)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, err := layout.Of(n.Shape); err == nil && n.Chained && g.PartBytes() > 0 {
		sp = &space{chained: true, geometry: g, shape: n.Shape}
	}
	s.shapes[id] = sp
	return sp
}

func ids(sc skep.Scope, keys []skep.Key) []blockID {
	salt := sha256.Sum256([]byte(sc.Salt))
	out := make([]blockID, len(keys))
	for i, k := range keys {
		out[i] = blockID{sc.Namespace, salt, k}
	}
	return out
}

// Lookup implements skep.PrefixFinder: the Store behind decides what can be restored.
func (s *Store) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	res, err := s.Store.Lookup(ctx, r)
	if err == nil && r.Tiers {
		for i := range s.tier.entries.leading(ids(r.Scope, r.Keys[:res.Blocks])) {
			res.Tiers[i] = skep.TierGPU
		}
	}
	return res, err
}

// LookupRuns implements skep.PrefixFinder, as Lookup.
func (s *Store) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	res, err := s.Store.LookupRuns(ctx, r)
	if err == nil && r.Tiers {
		at := 0
		for i, run := range r.Runs {
			for k := range s.tier.entries.leading(ids(r.Scope, run[:res.Runs[i].Blocks])) {
				res.Tiers[at+k] = skep.TierGPU
			}
			at += res.Runs[i].Blocks
		}
	}
	return res, err
}

// Put implements skep.Putter.
func (s *Store) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	res, err := s.Store.Put(ctx, r)
	var fresh []skep.Key
	for i := range r.Blocks {
		b := &r.Blocks[i]
		if err != nil || res[i].Outcome != skep.Exists {
			fresh = append(fresh, b.Key) // other bytes may have had this name before
		}
		if b.Replaces != nil {
			fresh = append(fresh, *b.Replaces)
		}
	}
	s.tier.drop(ids(r.Scope, fresh)...)
	return res, err
}

// Begin implements skep.Putter.
func (s *Store) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	w, err := s.Store.Begin(ctx, r)
	if err != nil {
		return nil, err
	}
	keys := []skep.Key{r.Key}
	if r.Replaces != nil {
		keys = append(keys, *r.Replaces)
	}
	return &writer{w, s, ids(r.Scope, keys)}, nil
}

type writer struct {
	skep.BlockWriter
	s     *Store
	names []blockID
}

// Commit implements skep.BlockWriter.
func (w *writer) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	res, err := w.BlockWriter.Commit(ctx, ack)
	if err != nil || res.Outcome != skep.Exists {
		w.s.tier.drop(w.names...)
	}
	return res, err
}

// Delete implements skep.Deleter.
func (s *Store) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	n, err := s.Store.Delete(ctx, sc, keys)
	s.tier.drop(ids(sc, keys)...)
	return n, err
}

// DeleteNamespace implements skep.Deleter. The tier forgets everything, as after a purge.
func (s *Store) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	err := s.Store.DeleteNamespace(ctx, id)
	if err == nil {
		s.mu.Lock()
		delete(s.shapes, id)
		s.mu.Unlock()
	}
	s.tier.dropAll()
	return err
}

// Purge implements skep.Deleter. The tier forgets everything: it is a cache.
func (s *Store) Purge(ctx context.Context, p skep.Purge) error {
	err := s.Store.Purge(ctx, p)
	s.tier.dropAll()
	return err
}
