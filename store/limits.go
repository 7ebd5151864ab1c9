package store

import (
	"fmt"
	"log/slog"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
)

// What a store was made with stays true when it is opened by somebody who does not say it again, and whoever says
// something else is refused. It is in the catalog's root row and, for a catalog that is made anew, in the superblocks.

// settle settles the cap: what is remembered, or what is given, where that is to be the cap from now on.
func (o *Options) settle(was catalog.Limits, log *slog.Logger) (catalog.Limits, error) {
	if was.Known && !o.ChangeCapacity {
		if given := uint64(o.CapacityBytes); given > 0 && given != was.Capacity {
			has := "no cap"
			if was.Capacity > 0 {
				has = fmt.Sprint(was.Capacity)
			}
			return was, skep.Invalidf("open store", "capacity bytes", given,
				has+", as the store has it: leave it out, or say that it is to be changed (ChangeCapacity, --change-capacity, "+
					"store.change_capacity in settings)")
		}
		o.CapacityBytes = int64(was.Capacity)
		o.leaseOfCapacity()
	}
	if was.Known && was.Capacity != uint64(o.CapacityBytes) {
		log.Info("the store's cap is changed", "from", was.Capacity, "to", o.CapacityBytes)
	}
	return catalog.Limits{Known: true, Capacity: uint64(o.CapacityBytes), Devices: was.Devices}, nil
}

// leaseOfCapacity derives what may be leased and pinned from a cap that nobody gave.
func (o *Options) leaseOfCapacity() {
	if o.leasedByRoom && o.CapacityBytes > 0 {
		o.LeasedBytes = o.CapacityBytes / 4
		o.PinnedBytes = min(o.PinnedBytes, o.LeasedBytes/2)
	}
}
