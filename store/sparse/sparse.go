package sparse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
)

// Options are those of New. Zero fields take the defaults.
type Options struct {
	Devices int             // where the Store does not say, and is taken to put blocks around them in turn; 0: 1
	Cost    layout.ReadCost // of a read; zero: measured when the first context is opened, and from then on
	Window  int             // steps an appended entry waits; 0: 256, at most coact.MaxJoinWindow are looked back on
	Seed    uint64
	Workers int // goroutines of clustering; 0: 1
	// Background is how often layers of open contexts are looked at, and reclustered when
	// reads of them have decayed, clusters have overgrown, or the layout is still that of
	// keys and enough was observed; 0: only when asked.
	Background time.Duration
	// Alone does not follow the Store's events: the clustered form of a chain that was deleted or
	// evicted is then dropped when somebody next uses, opens or drops its context.
	Alone bool
}

// Sparse is skep.Sparse over a Store, which it does not own.
type Sparse struct {
	st      skep.Store
	locates bool // st says on which drive a block is
	o       Options

	drives *drives

	mu     sync.Mutex
	open   map[place]*sparseContext
	busy   map[place]chan struct{} // where a context is made, opened or dropped; closed when that is done
	closed bool

	stop    context.CancelFunc // ends the background
	stopped sync.WaitGroup
}

var _ skep.Sparse = (*Sparse)(nil)

// place names a context.
type place struct {
	scope skep.Scope
	last  skep.Key
}

const (
	slotsPerBlock = 64
	// DefaultWindow is how many steps an appended entry waits, the paper's W.
	DefaultWindow = 256
	metaSuffix    = skep.SparseMark
)

// New puts sparse contexts on a Store.
func New(st skep.Store, o Options) (*Sparse, error) {
	s := &Sparse{st: st, o: o, open: map[place]*sparseContext{}, busy: map[place]chan struct{}{}, drives: newDrives(o.Cost)}
	if n, err := st.DeviceCount(); err == nil {
		s.o.Devices, s.locates = n, true
	}
	if s.o.Devices == 0 {
		s.o.Devices = 1
	}
	if s.o.Window == 0 {
		s.o.Window = DefaultWindow
	}
	const op = "sparse"
	if s.o.Devices < 1 || s.o.Devices > layout.MaxDevices {
		return nil, skep.Invalidf(op, "devices", s.o.Devices, fmt.Sprintf("1 to %d", layout.MaxDevices))
	}
	if s.o.Window < 1 || s.o.Window > 1<<16 {
		return nil, skep.Invalidf(op, "window in steps", s.o.Window, "1 to 65536")
	}
	if s.o.Workers < 0 {
		return nil, skep.Invalidf(op, "workers", s.o.Workers, "0 or more")
	}
	if s.o.Background < 0 {
		return nil, skep.Invalidf(op, "background", s.o.Background, "0 or more")
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	if s.o.Background > 0 {
		s.stopped.Go(func() { s.tend(ctx) })
	}
	if !s.o.Alone {
		begun := make(chan struct{})
		s.stopped.Go(func() { s.follow(ctx, begun) })
		select { // what is deleted from now on is seen
		case <-begun:
		case <-time.After(followAgain): // a server that does not answer
		}
	}
	return s, nil
}

// devices is how many drives there are now: one may have been added since New.
func (s *Sparse) devices() int {
	if s.locates {
		if n, err := s.st.DeviceCount(); err == nil {
			return min(max(n, 1), layout.MaxDevices)
		}
	}
	return s.o.Devices
}

// tend reclusters what needs it, until ctx ends.
func (s *Sparse) tend(ctx context.Context) {
	tick := time.NewTicker(s.o.Background)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		var all []*sparseContext
		for _, c := range s.open {
			all = append(all, c)
		}
		s.mu.Unlock()
		for _, c := range all {
			for l, y := range c.Info().PerLayer {
				if ctx.Err() == nil && (y.Decayed || y.Overgrown > 0 || y.Generation == 1 && y.Steps >= learnedSteps) && c.layers[l].due() {
					// What fails stays as it was and is tried again once more was observed.
					_, _ = c.Recluster(ctx, l)
				}
			}
		}
	}
}

// Close closes the contexts that are open.
func (s *Sparse) Close(ctx context.Context) error {
	s.stop()
	s.stopped.Wait()
	s.mu.Lock()
	s.closed = true
	var all []*sparseContext
	for _, c := range s.open {
		all = append(all, c)
	}
	s.mu.Unlock()
	var errs []error
	for _, c := range all {
		errs = append(errs, c.Close(ctx))
	}
	return errors.Join(errs...)
}

// head is a context's stored description.
type head struct {
	Format     int        `json:"format"`
	Keys       int        `json:"keys"`
	Chain      []skep.Key `json:"chain"`
	Entries    int        `json:"entries"` // when clustered
	Shape      skep.Shape `json:"shape"`
	QueryHeads int        `json:"query_heads"`
	DRAM       int64      `json:"dram"`
	Sample     int        `json:"sample"`
	Devices    int        `json:"devices"`
	Seed       uint64     `json:"seed"`
	// Dropped says that a drop has begun: what is still stored may not be served, only
	// dropped.
	Dropped bool `json:"dropped,omitempty"`
}

const headFormat = 1

// Cluster implements skep.Sparse.
func (s *Sparse) Cluster(ctx context.Context, r *skep.ClusterRequest) (skep.SparseContext, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	last := r.Keys[len(r.Keys)-1]
	c, err := s.OpenContext(ctx, r.Scope, last)
	if err == nil || !errors.Is(err, skep.NotFound) {
		return c, err
	}
	p := place{r.Scope, last}
	release, err := s.claim(ctx, p)
	if err != nil {
		return nil, err
	}
	defer release()
	if k, err := s.openClaimed(ctx, p); err == nil { // somebody was quicker
		return k, nil
	} else if !errors.Is(err, skep.NotFound) {
		return nil, err
	}
	info, err := s.namespace(ctx, r.Scope.Namespace)
	if err != nil {
		return nil, err
	}
	n, err := s.tokens(ctx, r.Scope, r.Keys)
	if err != nil {
		return nil, err
	}
	h := head{Format: headFormat, Keys: len(r.Keys), Chain: slices.Clone(r.Keys), Entries: n, Shape: info.Shape, QueryHeads: r.QueryHeads, DRAM: r.DRAM,
		Sample: max(r.Sample, 1), Devices: s.devices(), Seed: s.o.Seed}
	k, err := s.prepare(ctx, r.Scope, last, info, h)
	if err != nil {
		return nil, err
	}
	// An evicted description may have left behind what was another text's after the chain.
	if err := k.forget(ctx); err != nil {
		return nil, err
	}
	if err := k.make(ctx); err != nil {
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer stop()
		// Without a description nobody could name what was made so far.
		if text, lost := k.getMeta(late, k.key("context")); text == nil && lost == nil {
			k.end()
			k.markDropped(late)
			_ = k.drop(late) // what it leaves is written over, should the chain be clustered again
		}
		return nil, err
	}
	if err := s.register(ctx, k); err != nil {
		return nil, err
	}
	return k, nil
}

// make stores a context's layers, and the description last: without it there is no context.
func (k *sparseContext) make(ctx context.Context) error {
	for l := range k.layers {
		if err := k.build(ctx, l); err != nil {
			return fmt.Errorf("cluster layer %d: %w", l, err)
		}
	}
	text, err := json.Marshal(k.head)
	if err != nil {
		return err
	}
	return k.putMeta(ctx, k.key("context"), text)
}

// claim waits until nobody else makes, opens or drops the context of a place: two that were
// at it at once would write over each other's records, or go on from what the other has
// appended to since.
func (s *Sparse) claim(ctx context.Context, p place) (release func(), err error) {
	for {
		s.mu.Lock()
		other := s.busy[p]
		if other == nil {
			done := make(chan struct{})
			s.busy[p] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, p)
				s.mu.Unlock()
				close(done)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, &skep.Error{Op: "context", Kind: skep.Deadline, Err: ctx.Err()}
		}
	}
}

// OpenContext implements skep.Sparse.
func (s *Sparse) OpenContext(ctx context.Context, sc skep.Scope, last skep.Key) (skep.SparseContext, error) {
	p := place{sc, last}
	k, err := s.openAt(ctx, p)
	if err != nil {
		return nil, err
	}
	if k != nil {
		err := k.alive(ctx)
		if err == nil {
			return k, nil
		}
		if k.ended("open context") == nil { // else somebody closed or dropped it meanwhile
			return nil, err
		}
	}
	release, err := s.claim(ctx, p)
	if err != nil {
		return nil, err
	}
	defer release()
	if k, err = s.openClaimed(ctx, p); err != nil {
		return nil, err
	}
	return k, nil
}

// openClaimed opens the context of a place, unless it is open. REQUIRES: the place is claimed.
func (s *Sparse) openClaimed(ctx context.Context, p place) (*sparseContext, error) {
	if k, err := s.openAt(ctx, p); err != nil || k != nil {
		return k, err
	}
	info, err := s.namespace(ctx, p.scope.Namespace)
	if err != nil {
		return nil, err
	}
	h, k, err := s.find(ctx, p, info)
	if err != nil {
		return nil, err
	}
	if h.Dropped { // cut off, and its chain may have come back since
		return nil, s.buried(ctx, k)
	}
	if n, err := s.tokens(ctx, p.scope, h.Chain); err != nil && !errors.Is(err, skep.NotFound) {
		return nil, err
	} else if err != nil || n != h.Entries {
		return nil, s.buried(ctx, k)
	}
	for l := range k.layers {
		if err := k.load(ctx, l); errors.Is(err, errNoArrangement) {
			// Evicted, or a drop of it was cut off and its chain has come back since.
			return nil, s.buried(ctx, k)
		} else if err != nil {
			return nil, fmt.Errorf("open layer %d: %w", l, err)
		}
	}
	if err := k.loadTokens(ctx); err != nil {
		return nil, err
	}
	return k, s.register(ctx, k)
}

// find reads a context's description.
func (s *Sparse) find(ctx context.Context, p place, info skep.NamespaceInfo) (h head, k *sparseContext, err error) {
	meta, ok, err := s.sibling(ctx, info, metaSuffix)
	if err != nil {
		return h, nil, err
	}
	if !ok {
		return h, nil, notFound(p.last)
	}
	probe := &sparseContext{s: s, place: p, meta: skep.Scope{Namespace: meta, Salt: p.scope.Salt}}
	text, err := probe.getMeta(ctx, probe.key("context"))
	if err != nil {
		return h, nil, err
	}
	if text == nil {
		return h, nil, notFound(p.last)
	}
	if err := json.Unmarshal(text, &h); err != nil || h.Format != headFormat {
		return h, nil, &skep.Error{Op: "open context", Kind: skep.Version, Field: "format", Value: h.Format, Err: err}
	}
	k, err = s.prepare(ctx, p.scope, p.last, info, h)
	return h, k, err
}

func notFound(last skep.Key) error {
	return &skep.Error{Op: "open context", Kind: skep.NotFound, Field: "context", Value: last.Short()}
}

// DropContext implements skep.Sparse. The chain's last block goes first: a context without it is dropped by whoever
// meets it next, so an interrupted drop leaves nothing that serves. Were the description marked first, an interrupted
// drop could leave the block for good: an open that finds the mark forgets the description, by which the drop would be
// made again, and may not delete the block, which may have been put since. So a drop that was interrupted before the
// mark, and not made again, is undone where the chain comes back: as if it had been evicted.
func (s *Sparse) DropContext(ctx context.Context, sc skep.Scope, last skep.Key) error {
	p := place{sc, last}
	release, err := s.claim(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	c, err := s.opened(ctx, p)
	if err != nil {
		return err
	}
	if _, err := s.st.Delete(ctx, sc, []skep.Key{last}); err != nil {
		return err
	}
	return s.buryClaimed(ctx, c)
}

// opened is a context that is open, or the frame of one that is stored.
func (s *Sparse) opened(ctx context.Context, p place) (*sparseContext, error) {
	s.mu.Lock()
	c := s.open[p]
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	info, err := s.namespace(ctx, p.scope.Namespace)
	if err != nil {
		return nil, err
	}
	_, c, err = s.find(ctx, p, info)
	return c, err
}

// bury drops an open context whose chain is gone, unless somebody has: what is stored in its
// place by then is another's.
func (s *Sparse) bury(ctx context.Context, c *sparseContext) error {
	release, err := s.claim(ctx, c.place)
	if err != nil {
		return err
	}
	defer release()
	s.mu.Lock()
	open := s.open[c.place] == c
	s.mu.Unlock()
	if !open {
		return nil
	}
	return s.buryClaimed(ctx, c)
}

// buryClaimed deletes what is stored of a context without a chain, and refuses its further
// calls. The description says so before anything else can fail. Of one that was never open is read what names blocks,
// as far as it can be: what is damaged cannot name its own. REQUIRES: the place is claimed.
func (s *Sparse) buryClaimed(ctx context.Context, c *sparseContext) error {
	s.leave(c)
	c.end()
	c.markDropped(ctx)
	if slices.ContainsFunc(c.layers, func(y *layer) bool { return y.arranged() == nil }) { // an open got as far as that
		for l, y := range c.layers {
			if y.arranged() != nil {
				continue
			}
			a, err := y.stored(ctx)
			if err == nil {
				err = a.settle(c, l)
			}
			if err == nil {
				y.mu.Lock()
				y.mu.arrangement = a
				y.mu.Unlock()
			} else if !errors.Is(err, skep.Damaged) && !errors.Is(err, errNoArrangement) {
				return err
			}
		}
		if err := c.loadTokens(ctx); err != nil && !errors.Is(err, skep.Damaged) {
			return err
		}
	}
	return c.drop(ctx)
}

// buried is NotFound once all that is stored of a context without a chain has been deleted. Until then the context is
// there: who took the place for free would write over what an arrangement, which may come back, leads to. REQUIRES: as
// buryClaimed.
func (s *Sparse) buried(ctx context.Context, c *sparseContext) error {
	if err := s.buryClaimed(ctx, c); err != nil {
		return fmt.Errorf("drop what is left of a context: %w", err)
	}
	return notFound(c.place.last)
}

func (s *Sparse) namespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	all, err := s.st.Namespaces(ctx)
	if err != nil {
		return skep.NamespaceInfo{}, err
	}
	for _, n := range all {
		if n.ID == id {
			return n, nil
		}
	}
	return skep.NamespaceInfo{}, &skep.Error{Op: "context", Kind: skep.NotFound, Field: "namespace", Value: id}
}

// sibling finds a namespace beside n.
func (s *Sparse) sibling(ctx context.Context, n skep.NamespaceInfo, suffix string) (skep.NamespaceID, bool, error) {
	all, err := s.st.Namespaces(ctx)
	for _, o := range all {
		if o.Tenant == n.Tenant && o.Name == n.Name+suffix {
			return o.ID, true, err
		}
	}
	return 0, false, err
}

// tokens is how many tokens a chain has; NotFound unless all of it is stored. A lookup ends
// before a block that is stored and cannot be read now, or that is on a drive which is not to be
// relied on, as before one that is gone; so the first that it did not find is asked for, and only
// the Store's word that none is stored makes the chain one that is gone.
func (s *Sparse) tokens(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	short := &skep.Error{Op: "cluster", Kind: skep.DeviceFailed, Field: "blocks of the chain", Limit: len(keys)}
	for range readTries {
		r, err := s.st.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys, Lease: skep.NoLease})
		if err != nil {
			return 0, err
		}
		if r.Blocks >= len(keys) {
			return r.Tokens, nil
		}
		short.Value = r.Blocks
		data, err := s.blockAt(ctx, skep.Chain{Scope: sc, Keys: keys, Blocks: skep.Only(r.Blocks, r.Blocks+1)})
		if err != nil {
			return 0, fmt.Errorf("block %d of the chain: %w", r.Blocks, err)
		}
		if data == nil {
			short.Kind = skep.NotFound
			break
		}
	}
	return 0, short // DeviceFailed where what no lookup finds could be read each time
}

// prepare makes a context's frame: its geometry and namespaces.
func (s *Sparse) prepare(ctx context.Context, sc skep.Scope, last skep.Key, info skep.NamespaceInfo, h head) (*sparseContext, error) {
	const op = "cluster"
	sh := h.Shape
	k := &sparseContext{s: s, place: place{sc, last}, head: h, tokens: map[uint32]*token{}, checked: time.Now(),
		appending: make(chan struct{}, 1), left: make(chan struct{})}
	bits := int64(sh.Element.Bits())
	switch sh.Kind {
	case skep.Attention:
		k.entry = 2 * int64(sh.KVHeads) * int64(sh.HeadDim) * bits / 8
		k.heads = coact.Heads{Query: h.QueryHeads, KV: sh.KVHeads, Dim: sh.HeadDim}
	case skep.Latent:
		k.entry = int64(sh.HeadDim) * bits / 8
		k.heads = coact.Heads{Query: h.QueryHeads, KV: 1, Dim: sh.HeadDim}
	default:
		return nil, skep.Invalidf(op, "shape", sh.Kind, "attention or latent")
	}
	if bits%8 != 0 {
		return nil, skep.Invalidf(op, "element", sh.Element, "a whole number of bytes")
	}
	k.record = layout.Padded(k.entry)
	if k.record > skep.MaxSparseEntryBytes {
		return nil, skep.Invalidf(op, "entry in bytes", k.entry, fmt.Sprintf("at most %d", skep.MaxSparseEntryBytes))
	}
	if err := k.heads.Validate(); err != nil {
		return nil, err
	}
	if h.Entries < 1 || h.Entries > coact.MaxEntries || h.Devices < 1 || h.Devices > layout.MaxDevices {
		return nil, skep.Invalidf(op, "entries", h.Entries, fmt.Sprintf("1 to %d", coact.MaxEntries))
	}
	meta, err := s.beside(ctx, info, metaSuffix, skep.Shape{Kind: skep.Opaque, BlockTokens: 1})
	if err != nil {
		return nil, err
	}
	records, err := s.beside(ctx, info, fmt.Sprintf("%s-%d", metaSuffix, k.record),
		skep.Shape{Kind: skep.Latent, Layers: slotsPerBlock, HeadDim: int(k.record), Element: skep.I8, BlockTokens: 1})
	if err != nil {
		return nil, err
	}
	k.meta = skep.Scope{Namespace: meta.ID, Salt: sc.Salt}
	k.records = skep.Scope{Namespace: records.ID, Salt: sc.Salt}
	k.next = uint32(h.Entries)
	for l := range sh.Layers {
		y, err := newLayer(k, l)
		if err != nil {
			return nil, err
		}
		k.layers = append(k.layers, y)
	}
	return k, nil
}

// beside opens a namespace beside the one of the chains, with its promises: what is appended is nowhere else. One that was
// made before siblings had more copies than one stays as it is.
func (s *Sparse) beside(ctx context.Context, of skep.NamespaceInfo, suffix string, shape skep.Shape) (
	n skep.NamespaceInfo, err error,
) {
	spec := skep.NamespaceSpec{Tenant: of.Tenant, Model: of.Model, Name: of.Name + suffix, Class: of.Class, Shape: shape}
	for _, spec.Copies = range []int{max(of.Copies, 1), 1} {
		if n, err = s.st.OpenNamespace(ctx, spec); skep.KindOf(err) != skep.Conflict {
			break
		}
	}
	return n, err
}
