package index

import (
	"math"

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
	quotaBytes int64 // 0: none
}

func (x *Index) tenant(id uint16) *tenant {
	t := x.tenants[id]
	if t == nil {
		t = &tenant{}
		x.tenants[id] = t
	}
	return t
}

// SetQuota says how many bytes on the devices a tenant may hold before its blocks go
// first; 0 is no quota.
func (x *Index) SetQuota(tenant uint16, bytes int64) error {
	if bytes < 0 {
		return skep.Invalidf("set quota", "bytes", bytes, "at least 0")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tenant(tenant).quotaBytes = bytes
	return nil
}

// Usage is what a tenant holds, in bytes on the devices, copies not counted.
func (x *Index) Usage(tenant uint16) (bytes, quota int64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if t := x.tenants[tenant]; t != nil {
		return t.pages * x.cfg.PageBytes, t.quotaBytes
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

// SweepDead looks at the next n slots and removes the blocks of dead namespaces among
// them. It goes round the index from call to call; wrapped says that this call reached
// the end. Their catalog rows are the caller's to drop, by namespace. A namespace that
// was dead through a whole round has no block left, and can be forgotten (ForgetDead).
func (x *Index) SweepDead(n int) (removed int, wrapped bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return 0, true
	}
	if len(x.dead) == 0 {
		x.sweep = 0
		return 0, true
	}
	for ; n > 0; n-- {
		if x.sweep++; x.sweep > x.top {
			x.sweep = 0
			return removed, true
		}
		s := x.slots.at(x.sweep)
		if s.has(flagLive) && x.dead[x.owners.at(s.owner).namespace] {
			x.removeLocked(x.sweep)
			removed++
		}
	}
	return removed, false
}

// ForgetDead takes a namespace off the list of the dead.
func (x *Index) ForgetDead(namespace uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.dead, namespace)
}
