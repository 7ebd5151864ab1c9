package catalog

import "github.com/skepkv/skep/layout"

// at names a row.
func at(group, page uint32, device, sub uint8) layout.Location {
	return layout.Location{Group: group, Page: page, Device: device, Sub: sub}
}
