package segment

import "github.com/skepkv/skep/layout"

// PlacesFit says whether the record's places are such as a store gives: slots of a page are named
// by packed blocks only, which end within it.
func (r *Record) PlacesFit() bool {
	for _, p := range r.Copies {
		if p.Sub > 0 && (!layout.Packed(int(r.Pages), r.Bytes()) || int64(p.Sub)*layout.SlotSize+r.Bytes() > layout.PageSize) {
			return false
		}
	}
	return true
}
