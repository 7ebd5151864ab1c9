package sparse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
)

// sparseContext is one open context.
type sparseContext struct {
	s       *Sparse
	place   place
	head    head
	meta    skep.Scope
	records skep.Scope
	heads   coact.Heads
	entry   int64 // bytes of an entry
	record  int64 // the same in whole pages
	layers  []*layer

	appending chan struct{} // one token: one Append at a time, over I/O; before mu
	cleared   uint32        // no token from next to here is stored; guarded by appending
	flushing  sync.Mutex    // one Flush at a time, over I/O; before mu

	mu      sync.Mutex
	tokens  map[uint32]*token // appended, stored in blocks of their own
	next    uint32            // number of the next token
	checked time.Time         // when the chain was last found
	closed  bool

	background sync.WaitGroup // prefetches under way
	left       chan struct{}  // closed when it is not entered as open any more
}

// openAt is the open context of a place, nil when there is none; an error once s is closed. It waits for one that is
// being closed.
func (s *Sparse) openAt(ctx context.Context, p place) (*sparseContext, error) {
	const op = "open context"
	for {
		s.mu.Lock()
		k, closed := s.open[p], s.closed
		s.mu.Unlock()
		if closed {
			return nil, &skep.Error{Op: op, Kind: skep.Closed}
		}
		if k == nil || k.ended(op) == nil {
			return k, nil
		}
		select {
		case <-k.left:
		case <-ctx.Done():
			return nil, &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
		}
	}
}

// leave has a context no longer entered as open.
func (s *Sparse) leave(k *sparseContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[k.place] == k {
		delete(s.open, k.place)
		close(k.left)
	}
}

// register enters a context as open. REQUIRES: its place is claimed.
func (s *Sparse) register(ctx context.Context, k *sparseContext) error {
	k.probe(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &skep.Error{Op: "open context", Kind: skep.Closed}
	}
	s.open[k.place] = k
	return nil
}

// layer is one layer of a context.
type layer struct {
	k  *sparseContext
	n  int
	mu struct {
		sync.Mutex
		arrangement *arrangement
		profile     *coact.Profile
		recall      *coact.Recall
		fresh       int // steps observed that no Flush has stored
		heat        *coact.Heat
		units       [][]uint32        // what Heat counts: pieces of clusters
		unitOf      []int32           // of each entry
		hot         map[uint32][]byte // records in memory
		window      map[uint32][]byte // entries not on their drive yet
		joiner      *coact.Joiner
		joined      []joined // entries that wait for a block's worth
		staged      map[uint32]*staged
		reading     int     // prefetches under way
		share       float64 // moving average; 0: none yet
		best        float64 // the greatest share since the arrangement was made
		read, used  int64   // records prefetched, and joined
		triedAt     int     // steps observed when the background last tried to recluster
		madeAt      int     // steps observed when the arrangement was made from them
	}
	moving chan struct{} // one token: who holds it moves records; see hold
}

// unitSize is how many neighbours of a cluster come and go together in memory.
const unitSize = 8

func newLayer(k *sparseContext, n int) (*layer, error) {
	y := &layer{k: k, n: n, moving: make(chan struct{}, 1)}
	var err error
	if y.mu.profile, err = coact.NewProfile(k.head.Entries, k.head.Sample); err != nil {
		return nil, err
	}
	if y.mu.recall, err = coact.NewRecall(k.head.Entries, k.heads.QueryWidth(), coact.RecallDims, k.head.Seed); err != nil {
		return nil, err
	}
	y.mu.hot, y.mu.window, y.mu.staged = map[uint32][]byte{}, map[uint32][]byte{}, map[uint32]*staged{}
	return y, nil
}

// hold takes moving for the caller, who frees it; it waits until ctx ends.
func (y *layer) hold(ctx context.Context, op string) error { return holdOne(ctx, op, y.moving) }

// holdOne has one caller at a time go on, who takes the token out again; it waits until ctx ends.
func holdOne(ctx context.Context, op string, one chan struct{}) error {
	select {
	case one <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
	}
}

func (y *layer) free() { <-y.moving }

// arranged is the layer's arrangement; nil before there is one.
func (y *layer) arranged() *arrangement {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.mu.arrangement
}

func (k *sparseContext) layerOf(op string, n int) (*layer, error) {
	if n < 0 || n >= len(k.layers) {
		return nil, skep.Invalidf(op, "layer", n, fmt.Sprintf("0 to %d", len(k.layers)-1))
	}
	return k.layers[n], nil
}

// aliveEvery is how often a context looks whether its whole chain is still there; its last
// block it looks for at every call, where the Store says cheaply.
const aliveEvery = time.Second

// alive returns NotFound once the context's chain cannot be found any more, and drops
// the context then.
func (k *sparseContext) alive(ctx context.Context) error {
	k.mu.Lock()
	closed, due := k.closed, time.Since(k.checked) >= aliveEvery
	if k.s.locates && !closed && !due { // a purge or a delete shows at once
		_, err := k.s.st.DeviceOf(k.place.scope, k.place.last)
		due = err != nil
	}
	if due {
		k.checked = time.Now()
	}
	k.mu.Unlock()
	if closed {
		return &skep.Error{Op: "context", Kind: skep.Closed}
	}
	if !due {
		return nil
	}
	_, err := k.s.tokens(ctx, k.place.scope, k.head.Chain)
	if err != nil && !errors.Is(err, skep.DeviceFailed) { // whoever calls next looks again
		k.mu.Lock()
		k.checked = time.Time{}
		k.mu.Unlock()
	}
	switch {
	case errors.Is(err, skep.NotFound):
		return errors.Join(notFound(k.place.last), k.s.bury(ctx, k))
	case errors.Is(err, skep.DeviceFailed):
		return nil // it is there, on a drive that cannot be read; the context's records are blocks of their own
	}
	return err
}

// end refuses further calls, and waits until the Append under way is through: who opens the context anew counts on from
// its tokens. A Recluster sees it and gives way: an Append may wait for that, and so does who calls this.
func (k *sparseContext) end() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.appending <- struct{}{}
	<-k.appending
}

// goesOn is an error once work on the context is to end: the caller has given it up, or end was called.
func (k *sparseContext) goesOn(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return &skep.Error{Op: op, Kind: skep.Deadline, Err: err}
	}
	return k.ended(op)
}

// ended is the error of calls once end was called.
func (k *sparseContext) ended(op string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return &skep.Error{Op: op, Kind: skep.Closed}
	}
	return nil
}

// Close implements skep.SparseContext. A second one waits as the first does: nothing of the context's uses the Store
// after either.
func (k *sparseContext) Close(ctx context.Context) error {
	err := k.Flush(ctx)
	if errors.Is(err, skep.Closed) && k.ended("close") != nil { // somebody closed or dropped it
		err = nil
	}
	k.end()
	for _, y := range k.layers {
		y.settle()
	}
	k.s.leave(k)
	return err
}

// Flush implements skep.SparseContext.
func (k *sparseContext) Flush(ctx context.Context) error {
	k.flushing.Lock()
	defer k.flushing.Unlock()
	if err := k.ended("flush"); err != nil { // what is stored in its place by then is another's
		return err
	}
	for _, y := range k.layers {
		y.mu.Lock()
		fresh := y.mu.fresh
		var profile, recall []byte
		var err error
		if fresh > 0 {
			profile, err = y.mu.profile.MarshalBinary()
			recall = y.mu.recall.AppendBinary(nil)
		}
		y.mu.Unlock()
		if err != nil {
			return err
		}
		if fresh == 0 {
			continue
		}
		if err := k.putMeta(ctx, k.key("profile", uint64(y.n)), profile); err != nil {
			return err
		}
		if err := k.putMeta(ctx, k.key("recall", uint64(y.n)), recall); err != nil {
			return err
		}
		y.mu.Lock()
		y.mu.fresh -= fresh // what came meanwhile is the next one's, and so is all where a put failed
		y.mu.Unlock()
	}
	return k.s.st.Flush(ctx)
}

// drop deletes all that is stored of the context. The description says already that it is
// dropped: the chain may come back before all is gone. What names other blocks goes after them,
// the description last, so that an interrupted drop can be finished; the chain is gone
// already, and nothing serves what is left. A Flush, recluster or overflow write under way ends
// first, and no other begins. REQUIRES: end and markDropped were called.
func (k *sparseContext) drop(ctx context.Context) error {
	k.flushing.Lock()
	defer k.flushing.Unlock()
	k.mu.Lock()
	fresh := slices.Collect(maps.Keys(k.tokens))
	k.mu.Unlock()
	slices.Sort(fresh)
	slices.Reverse(fresh) // they are found from the first on, up to a gap
	meta := make([]skep.Key, len(fresh))
	for i, e := range fresh {
		meta[i] = k.key("token", uint64(e))
	}
	for _, y := range k.layers {
		if err := y.dropRecords(ctx); err != nil {
			return err
		}
	}
	if _, err := k.s.st.Delete(ctx, k.meta, meta); err != nil {
		return err
	}
	meta = meta[:0]
	for _, y := range k.layers {
		meta = append(meta, k.key("arrangement", uint64(y.n)), k.key("plan", uint64(y.n)), k.key("profile", uint64(y.n)), k.key("recall", uint64(y.n)))
	}
	if _, err := k.s.st.Delete(ctx, k.meta, meta); err != nil {
		return err
	}
	_, err := k.s.st.Delete(ctx, k.meta, []skep.Key{k.key("context")})
	return err
}

// forget deletes what a context of the same place, whose description is gone, has left that
// would pass for the new one's: plans with their records, what was observed, and tokens.
// REQUIRES: nobody else has the context.
func (k *sparseContext) forget(ctx context.Context) error {
	for _, y := range k.layers {
		records, err := y.planned(ctx)
		if err != nil {
			return err
		}
		if len(records) > 0 {
			if _, err := k.s.st.Delete(ctx, k.records, records); err != nil {
				return err
			}
		}
	}
	var meta []skep.Key
	for _, y := range k.layers {
		meta = append(meta, k.key("plan", uint64(y.n)), k.key("profile", uint64(y.n)), k.key("recall", uint64(y.n)))
	}
	if _, err := k.s.st.Delete(ctx, k.meta, meta); err != nil {
		return err
	}
	return k.clearFrom(ctx, uint32(k.head.Entries))
}

// markDropped stores that the context is dropped. A store may have no room for that, and
// must let go of what there is all the more; if it fails altogether, the deletes say so.
func (k *sparseContext) markDropped(ctx context.Context) {
	h := k.head
	h.Dropped = true
	if text, err := json.Marshal(h); err == nil && !k.head.Dropped {
		_ = k.putMeta(ctx, k.key("context"), text)
	}
}

func (y *layer) dropRecords(ctx context.Context) error {
	y.moving <- struct{}{} // however long: what is written yet is to be deleted, too
	defer y.free()
	keys, err := y.planned(ctx)
	if err != nil {
		return err
	}
	if a := y.arranged(); a != nil {
		// No read is let in from here on: see sources.
		a.readers.Lock()
		defer a.readers.Unlock()
		keys = append(keys, a.recordKeys(y.k, y.n)...)
	}
	_, err = y.k.s.st.Delete(ctx, y.k.records, keys)
	return err
}

// Info implements skep.SparseContext.
func (k *sparseContext) Info() skep.SparseInfo {
	k.mu.Lock()
	next := k.next
	k.mu.Unlock()
	cost := k.cost()
	info := skep.SparseInfo{RunSeconds: cost.Of(1) - cost.Page, PageSeconds: cost.Page, Scope: k.place.scope, Last: k.place.last, Layers: len(k.layers), Entries: int(next), Appended: int(next) - k.head.Entries,
		EntryBytes: k.entry, RecordBytes: k.record, Devices: k.s.devices(), Window: k.s.o.Window}
	for _, y := range k.layers {
		y.mu.Lock()
		a := y.mu.arrangement
		remembered, projection := y.mu.recall.Bytes()
		i := skep.LayerInfo{Generation: a.gen, Clusters: len(a.clusters), Records: a.placement.Records(), Steps: y.mu.profile.Steps(),
			Resident: len(y.mu.hot) + len(y.mu.window), Overgrown: a.overgrown, Share: y.mu.share, Decayed: y.mu.best > 0 && y.mu.share < decayedShare*y.mu.best,
			IndexBytes:   a.bytes() + y.mu.profile.Bytes() + remembered + projection,
			RowBytes:     a.rows,
			PrefetchRead: y.mu.read, PrefetchJoined: y.mu.used}
		y.mu.Unlock()
		info.PerLayer = append(info.PerLayer, i)
	}
	return info
}

// due reports whether enough was observed since the background last tried the layer, and
// notes that it tries now.
func (y *layer) due() bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	steps := y.mu.profile.Steps()
	if steps < y.mu.triedAt { // forgotten meanwhile
		y.mu.triedAt = 0
	}
	if y.mu.triedAt > 0 && steps-y.mu.triedAt < learnedSteps {
		return false
	}
	y.mu.triedAt = steps
	return true
}

// decayedShare is the part of its best share a layout may fall to before it counts as
// decayed.
const decayedShare = 0.85

// Clusters implements skep.SparseContext.
func (k *sparseContext) Clusters(n int) (skep.SparseClusters, error) {
	y, err := k.layerOf("clusters", n)
	if err != nil {
		return skep.SparseClusters{}, err
	}
	y.mu.Lock()
	a := y.mu.arrangement
	bits, err := y.mu.profile.Bits(nil)
	y.mu.Unlock()
	if err == nil { // appended entries that nothing activated have no row
		bits, err = bits.Resize(max(bits.Entries(), a.entries))
	}
	if err != nil {
		return skep.SparseClusters{}, err
	}
	out := skep.SparseClusters{Copies: float64(a.placement.Records()) / float64(a.entries), Places: make([]uint32, a.entries)}
	for _, c := range a.clusters {
		out.Sizes = append(out.Sizes, len(c))
		radius := 1.0
		if bits.Steps() > 0 {
			radius = bits.Radius(c)
		}
		out.Radii = append(out.Radii, radius)
		out.Runs = append(out.Runs, a.placement.RunsOf(c))
		out.Members = append(out.Members, append([]uint32(nil), c...))
	}
	for e := range out.Places {
		if spots := a.placement.Spots(uint32(e)); len(spots) > 0 {
			out.Places[e] = spots[0].Device
		}
	}
	most, sum := 0, 0
	for d := range a.placement.Devices() {
		n := 0
		for _, e := range a.placement.Slots(d) {
			if e != layout.NoEntry {
				n++
			}
		}
		most, sum = max(most, n), sum+n
	}
	if most > 0 {
		out.Balance = float64(sum) / float64(most) / float64(a.placement.Devices())
	}
	if bits.Steps() > 0 {
		out.Together = func(x, z uint32) int {
			if int(max(x, z)) >= bits.Entries() {
				return 0
			}
			return bits.Both(int(x), int(z))
		}
	}
	return out, nil
}
