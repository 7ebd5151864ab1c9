package index

import (
	"maps"
	"math"
	"slices"

	"github.com/skepkv/skep"
)

// owners interns (namespace instance, tenant), so that a slot names both in 16 bits.
type owners struct {
	rows []ownerRow
	by   map[ownerKey]uint16
	free []uint16
	last uint16 // the one taken last
}

type ownerKey struct {
	namespace uint32
	tenant    uint16
}

type ownerRow struct {
	ownerKey
	blocks uint32
	usage  *tenant
}

func newOwners() owners {
	// Row 0 is the owner of free slots and stubs.
	return owners{rows: make([]ownerRow, 1), by: map[ownerKey]uint16{}}
}

func (o *owners) at(i uint16) *ownerRow { return &o.rows[i] }

// takeOwner counts one more block of an owner.
func (x *Index) takeOwner(namespace uint32, tenant uint16) (uint16, error) {
	o, k := &x.owners, ownerKey{namespace, tenant}
	if r := &o.rows[o.last]; o.last != 0 && r.ownerKey == k && r.blocks > 0 {
		r.blocks++ // most blocks come after one of the same owner
		return o.last, nil
	}
	i, ok := o.by[k]
	if !ok {
		switch {
		case len(o.free) > 0:
			i = o.free[len(o.free)-1]
			o.free = o.free[:len(o.free)-1]
		case len(o.rows) > math.MaxUint16:
			return 0, &skep.Error{Op: "insert", Kind: skep.Full, Field: "pairs of namespace and tenant with blocks",
				Value: len(o.rows) - 1, Limit: "at most 65535"}
		default:
			i = uint16(len(o.rows))
			o.rows = append(o.rows, ownerRow{})
		}
		o.rows[i] = ownerRow{ownerKey: k, usage: x.tenant(tenant)}
		o.by[k] = i
	}
	o.rows[i].blocks++
	o.last = i
	return i, nil
}

func (o *owners) drop(i uint16) {
	if o.rows[i].blocks--; o.rows[i].blocks == 0 {
		delete(o.by, o.rows[i].ownerKey)
		o.free = append(o.free, i)
	}
}

type tenant struct {
	pages      int64
	shareBytes int64 // 0: none
	counted    bool  // had a share: groups count its pages
	hints      int   // blocks with hints
}

func (x *Index) tenant(id uint16) *tenant {
	t := x.tenants[id]
	if t == nil {
		t = &tenant{}
		x.tenants[id] = t
	}
	return t
}

// SetShare says how many bytes on the devices a tenant may hold before its blocks go first: as long as it holds no
// more, others' go instead. 0 is no share: they go like anybody else's. Room that nobody else needs is used beyond it.
// The first share of a tenant that has blocks takes a look at every slot.
func (x *Index) SetShare(tenant uint16, bytes int64) error {
	if bytes < 0 {
		return skep.Invalidf("set share", "bytes", bytes, "at least 0")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.tenant(tenant)
	t.shareBytes = bytes
	if bytes > 0 && !t.counted {
		t.counted = true
		x.sharers = append(x.sharers, t)
		x.countIn(tenant, t)
	}
	return nil
}

// countIn has groups count what a tenant has there. REQUIRES: x.mu held for writing.
func (x *Index) countIn(tenant uint16, t *tenant) {
	if x.closed || t.pages == 0 {
		return
	}
	for id := uint32(1); id <= x.top; id++ {
		s := x.slots.at(id)
		if o := x.owners.at(s.owner); s.has(flagLive) && s.loc != 0 && o.tenant == tenant {
			x.group(groupOf(s.loc)).share(s, o, 1)
		}
	}
}

// guardedMost is the part of what is stored that shares may keep others from: beyond it they count for less, so
// that there is always something that may go.
const guardedMost = 15. / 16

// guard is the part of each share that counts. REQUIRES: x.mu held.
func (x *Index) guard() float64 {
	guarded := int64(0)
	for _, t := range x.sharers {
		guarded += min(t.pages, t.shareBytes/x.cfg.PageBytes)
	}
	return min(1, guardedMost*float64(x.counts.pages)/max(1, float64(guarded)))
}

// over is how many pages t has beyond so much of its share; below 0: how many fewer.
func (t *tenant) over(guard float64, pageBytes int64) int64 {
	if t.shareBytes == 0 {
		return 0
	}
	return t.pages - int64(guard*float64(t.shareBytes/pageBytes))
}

// Usage is what a tenant holds, in bytes on the devices, copies not counted.
func (x *Index) Usage(tenant uint16) (bytes, share int64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if t := x.tenants[tenant]; t != nil {
		return t.pages * x.cfg.PageBytes, t.shareBytes
	}
	return 0, 0
}

// SetDead says that nobody can reach a namespace instance any more: its blocks are
// worth nothing to the cleaner from now on, and SweepDead takes them out.
func (x *Index) SetDead(namespace uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dead[namespace] = true
}

// Dead are the namespaces that SetDead has named and ForgetDead has not.
func (x *Index) Dead() []uint32 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Keys(x.dead))
}

// SweepDead looks at the next n slots and removes the blocks of dead namespaces among
// them. It goes round the index from call to call; wrapped says that this call reached
// the end. Their catalog rows are the caller's to drop, by namespace. A namespace that
// was dead through a whole round has no block left, and can be forgotten (ForgetDead).
// Lookups go on while it looks. One call at a time.
func (x *Index) SweepDead(n int) (removed int, wrapped bool) {
	ids, wrapped := x.nextDead(n)
	const piece = 64
	for len(ids) > 0 {
		some := ids[:min(piece, len(ids))]
		ids = ids[len(some):]
		x.mu.Lock()
		for _, id := range some {
			if x.isDead(id) {
				x.removeLocked(id)
				removed++
			}
		}
		x.mu.Unlock()
	}
	return removed, wrapped
}

// nextDead are the slots with blocks of dead namespaces among the next n.
func (x *Index) nextDead(n int) (ids []uint32, wrapped bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.closed || len(x.dead) == 0 {
		x.sweep = 0
		return nil, true
	}
	for ; n > 0; n-- {
		if x.sweep++; x.sweep > x.top {
			x.sweep = 0
			return ids, true
		}
		if x.isDead(x.sweep) {
			ids = append(ids, x.sweep)
		}
	}
	return ids, false
}

// isDead says that a slot holds a block of a dead namespace. REQUIRES: x.mu held.
func (x *Index) isDead(id uint32) bool {
	if x.closed {
		return false
	}
	s := x.slots.at(id)
	return s.has(flagLive) && x.dead[x.owners.at(s.owner).namespace]
}

// ForgetDead takes namespaces off the list of the dead.
func (x *Index) ForgetDead(namespaces ...uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, n := range namespaces {
		delete(x.dead, n)
	}
}
