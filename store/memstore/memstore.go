package memstore

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Defaults of Options.
const (
	DefaultMemoryBytes        = 1 << 30
	DefaultEventBuffer        = 4096
	DefaultLoadBytesPerSecond = 10_000_000_000
)

// Options says how a Store behaves. The zero Options is a Store without caps.
type Options struct {
	CapacityBytes    int64 // payload of stored blocks; 0: no cap
	DeclineWhenFull  bool  // at the cap, decline with Full instead of evicting
	TenantBytes      int64 // payload one tenant may store, then Quota; 0: no cap
	TenantLeaseBytes int64 // payload one tenant may hold leased, then LeaseDenied; 0: no cap
	TenantPinBytes   int64 // payload one tenant may pin, then Quota; 0: no cap

	TenantNamespaces int // how many one tenant may have, then Quota; 0: no cap

	MemoryBytes int64 // for Alloc and open block writers; 0: DefaultMemoryBytes
	EventBuffer int   // events kept for readers that lag; 0: DefaultEventBuffer

	Clock              func() time.Time // nil: skep.Steady
	Epoch              uint64           // of event cursors; 0: the clock's nanoseconds
	LoadBytesPerSecond int64            // what Estimate reckons with; 0: DefaultLoadBytesPerSecond

	// PoisonReleased lends copies with chunks and overwrites them at Release, so that a
	// caller that reads on sees it.
	PoisonReleased bool
}

// Store keeps blocks in memory. New makes one; it is safe for concurrent use.
type Store struct {
	skep.UnsupportedStore // of what drives can do: there are none
	opt                   Options
	opened                time.Time
	epoch                 uint64

	mu       sync.Mutex
	closed   bool
	names    map[spaceName]*namespace
	spaces   []*namespace // namespace number n is at n-1, nil once it is deleted; never shrinks
	rooms    map[roomID]*room
	tenants  map[string]*tenant
	lru      *list.List // of *block, coldest at the back
	used     int64      // payload of the blocks in lru
	pins     map[*block]struct{}
	leases   map[skep.LeaseID]*lease
	soonest  time.Time // no lease ends before it
	writers  map[*writer]struct{}
	sessions map[*session]struct{}
	memory   int64         // lent by Alloc or held by open writers
	freed    chan struct{} // closed and renewed when memory comes back
	events   eventLog
	stats    skep.Stats // counters only; Stats fills in the rest
}

var _ skep.Store = (*Store)(nil)

type spaceName struct{ tenant, name string }

type namespace struct {
	skep.NamespaceInfo
	part   int64 // bytes of a block's kv part; 0: any
	tenant *tenant
}

// tenant is who pays.
type tenant struct {
	used   int64
	spaces int   // namespaces
	leased int64 // payload of blocks under at least one lease
}

// New makes an empty Store.
func New(o Options) *Store {
	if o.Clock == nil {
		o.Clock = skep.Steady
	}
	o.MemoryBytes = cmp.Or(o.MemoryBytes, DefaultMemoryBytes)
	o.EventBuffer = cmp.Or(o.EventBuffer, DefaultEventBuffer)
	o.LoadBytesPerSecond = cmp.Or(o.LoadBytesPerSecond, DefaultLoadBytesPerSecond)
	s := &Store{
		opt:      o,
		opened:   o.Clock(),
		names:    map[spaceName]*namespace{},
		rooms:    map[roomID]*room{},
		tenants:  map[string]*tenant{},
		lru:      list.New(),
		pins:     map[*block]struct{}{},
		leases:   map[skep.LeaseID]*lease{},
		writers:  map[*writer]struct{}{},
		sessions: map[*session]struct{}{},
		freed:    make(chan struct{}),
	}
	s.epoch = cmp.Or(o.Epoch, uint64(s.opened.UnixNano()))
	s.events = newEventLog(s.epoch, o.EventBuffer)
	s.stats.PutDeclined = map[string]int64{}
	s.stats.RestoreTiers = map[string]int64{}
	s.stats.RestoreMisses = map[string]int64{}
	return s
}

// Close ends every session, block writer and event stream. It returns once no
// destination is being written any more.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	sessions := make([]*session, 0, len(s.sessions))
	for x := range s.sessions {
		sessions = append(sessions, x)
	}
	s.events.wake()
	close(s.freed)
	s.freed = make(chan struct{})
	s.mu.Unlock()
	// Lock order is session, then store: a Next that is copying ends first.
	for _, x := range sessions {
		x.end()
	}
	return nil
}

// begin locks the store for one call, having checked that it is open and that ctx
// has not ended, and lets go of what has run out. The caller unlocks when err is nil.
func (s *Store) begin(ctx context.Context, op string) error {
	s.mu.Lock()
	err := s.usable(ctx, op)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	s.expireLocked(s.opt.Clock())
	return nil
}

// enter is begin of a call about a namespace, which has to be there.
func (s *Store) enter(ctx context.Context, op string, id skep.NamespaceID) (*namespace, error) {
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	n, err := s.spaceLocked(op, id)
	if err != nil {
		s.mu.Unlock()
	}
	return n, err
}

// usable reports why a call cannot go on. s.mu is held.
func (s *Store) usable(ctx context.Context, op string) error {
	if s.closed {
		return &skep.Error{Op: op, Kind: skep.Closed}
	}
	return ended(ctx, op)
}

// ended is the error of a call whose context is over: Deadline when its time is up,
// and always the context's own error as the cause.
func ended(ctx context.Context, op string) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	kind := skep.Other
	if errors.Is(err, context.DeadlineExceeded) {
		kind = skep.Deadline
	}
	return &skep.Error{Op: op, Kind: kind, Err: err}
}

func (s *Store) spaceLocked(op string, id skep.NamespaceID) (*namespace, error) {
	if id == 0 || int64(id) > int64(len(s.spaces)) || s.spaces[id-1] == nil {
		return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: id, Limit: "one that was opened"}
	}
	return s.spaces[id-1], nil
}

// OpenNamespace implements skep.Namespacer. Copies are recorded and, there being one
// memory, not made.
func (s *Store) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	const op = "open namespace"
	if err := spec.Validate(); err != nil {
		return skep.NamespaceInfo{}, err
	}
	spec.Copies = max(spec.Copies, 1)
	if err := s.begin(ctx, op); err != nil {
		return skep.NamespaceInfo{}, err
	}
	defer s.mu.Unlock()
	name := spaceName{spec.Tenant, spec.Name}
	if n, ok := s.names[name]; ok {
		if field, got, want := differing(&spec, &n.NamespaceSpec); field != "" {
			return skep.NamespaceInfo{}, &skep.Error{Op: op, Kind: skep.Conflict, Field: field, Value: got, Limit: want}
		}
		return n.NamespaceInfo, nil
	}
	g, err := layout.Of(spec.Shape)
	if err != nil {
		return skep.NamespaceInfo{}, err
	}
	t := s.tenants[spec.Tenant]
	if t == nil {
		t = &tenant{}
		s.tenants[spec.Tenant] = t
	}
	if most := s.opt.TenantNamespaces; most > 0 && t.spaces >= most {
		return skep.NamespaceInfo{}, &skep.Error{Op: op, Kind: skep.Quota, Field: "namespaces of the tenant", Value: t.spaces, Limit: fmt.Sprintf("at most %d", most)}
	}
	t.spaces++
	n := &namespace{part: g.PartBytes(), tenant: t}
	n.NamespaceSpec = spec
	n.ID = skep.NamespaceID(len(s.spaces) + 1)
	n.Created = s.opt.Clock()
	s.spaces = append(s.spaces, n)
	s.names[name] = n
	return n.NamespaceInfo, nil
}

// differing names the first property in which a wanted namespace and the one that
// exists differ.
func differing(got, want *skep.NamespaceSpec) (field string, g, w any) {
	switch {
	case got.Model != want.Model:
		return "model", got.Model, want.Model
	case got.Shape != want.Shape:
		return "shape", got.Shape, want.Shape
	case got.Class != want.Class:
		return "class", got.Class, want.Class
	case got.Copies != want.Copies:
		return "copies", got.Copies, want.Copies
	case got.Chained != want.Chained:
		return "chained", got.Chained, want.Chained
	}
	return "", nil, nil
}

// Namespaces implements skep.Namespacer.
func (s *Store) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	if err := s.begin(ctx, "namespaces"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	infos := make([]skep.NamespaceInfo, 0, len(s.names))
	for _, n := range s.spaces {
		if n != nil {
			infos = append(infos, n.NamespaceInfo)
		}
	}
	return infos, nil
}

// FindNamespace implements skep.Store.
func (s *Store) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	const op = "find namespace"
	n, err := s.enter(ctx, op, id)
	if err != nil {
		return skep.NamespaceInfo{}, err
	}
	defer s.mu.Unlock()
	return n.NamespaceInfo, nil
}

// NamespacesOf implements skep.Store.
func (s *Store) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	if err := s.begin(ctx, "namespaces"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var infos []skep.NamespaceInfo
	for _, n := range s.spaces {
		if n != nil && n.Tenant == tenant {
			infos = append(infos, n.NamespaceInfo)
		}
	}
	return infos, nil
}

// Stats implements skep.Observer. DeviceBytes is the payload held: there is no device.
func (s *Store) Stats(ctx context.Context) (skep.Stats, error) {
	if err := s.begin(ctx, "stats"); err != nil {
		return skep.Stats{}, err
	}
	defer s.mu.Unlock()
	st := s.stats
	st.PutDeclined = copyCounts(s.stats.PutDeclined)
	st.RestoreTiers = copyCounts(s.stats.RestoreTiers)
	st.RestoreMisses = copyCounts(s.stats.RestoreMisses)
	st.Backend, st.BackendReason = "memory", "an in-memory store has no devices"
	st.State = "ok"
	st.Opened, st.Epoch = s.opened, s.epoch
	st.Blocks, st.BlockBytes = int64(s.lru.Len()), s.used
	st.CapacityBytes, st.RoomBytes, st.DeviceBytes = s.opt.CapacityBytes, s.opt.CapacityBytes, s.used
	st.Leases = len(s.leases)
	for _, t := range s.tenants {
		st.LeasedBytes += t.leased
	}
	st.Tenants = s.tenantsLocked()
	st.Memory = []skep.MemoryStats{
		{Name: "blocks", Used: s.used, Cap: s.opt.CapacityBytes},
		{Name: "lent and open block writers", Used: s.memory, Cap: s.opt.MemoryBytes},
		{Name: "events", Used: s.events.bytes(), Cap: s.events.capBytes()},
	}
	return st, nil
}

// tenantsLocked is what each tenant holds, the 64 that hold most. REQUIRES: s.mu.
func (s *Store) tenantsLocked() (out []skep.TenantStats) {
	for name, t := range s.tenants {
		out = append(out, skep.TenantStats{Name: name, Bytes: t.used})
	}
	slices.SortFunc(out, func(a, b skep.TenantStats) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	return out[:min(len(out), 64)]
}

func copyCounts(m map[string]int64) map[string]int64 {
	c := make(map[string]int64, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

// byDepth sorts blocks so that a parent comes before its children.
func byDepth(blocks []*block) {
	slices.SortStableFunc(blocks, func(a, b *block) int { return cmp.Compare(a.depth, b.depth) })
}
