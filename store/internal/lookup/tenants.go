package lookup

import (
	"cmp"
	"slices"

	"github.com/skepkv/skep"
)

// shownTenants is how many tenants Stats lists: those that hold most.
const shownTenants = 64

// Tenants lists who holds how much, most first.
func (l *Finder) Tenants() []skep.TenantStats {
	names := l.Names.Tenants()
	out := make([]skep.TenantStats, 0, len(names))
	for i, name := range names {
		bytes, share := l.Index.Usage(uint16(i))
		out = append(out, skep.TenantStats{Name: name, Bytes: bytes, ShareBytes: share})
	}
	slices.SortFunc(out, func(a, b skep.TenantStats) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	return out[:min(len(out), shownTenants)]
}
