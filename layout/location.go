package layout

import (
	"cmp"
	"fmt"

	"github.com/skepkv/skep"
)

// Sizes and limits of what is addressed on a device.
const (
	// PageSize is the unit of all device I/O, in bytes.
	PageSize = 4096
	// SlotSize is what small values sharing a page are aligned to, in bytes.
	SlotSize = 512
	// MaxPacked is the largest value, in bytes, that shares a page with others.
	MaxPacked = PageSize - SlotSize
	// MaxSegmentPages is the most pages of a segment (4 GiB), what Location.Page can name.
	MaxSegmentPages = 1 << 20
	// MaxDevices is the most devices of one stripe group.
	MaxDevices = 64
)

// Location is where a block, or a copy of one, begins. Together with the block's stored size and the
// number of devices in its group it gives every unit (Extents). The zero Location
// is nowhere: page 0 is a segment's header.
type Location struct {
	Group  uint32 // stripe group
	Page   uint32 // of the first unit, counted from the segment's start; below MaxSegmentPages
	Device uint8  // of the first unit, index in the group's list; below MaxDevices
	Sub    uint8  // 512-byte slot in the page where a packed value begins; below 8
}

// Pack puts a location into 64 bits; part of the stored format:
//
//	63        32  31  30         11  10       3  2    0
//	|  group    | 0 |    page     |  device  |  sub  |
func (l Location) Pack() uint64 {
	return uint64(l.Group)<<32 | uint64(l.Page&(MaxSegmentPages-1))<<11 | uint64(l.Device)<<3 | uint64(l.Sub&7)
}

// Unpack is the inverse of Pack. Bit 31 is reserved and ignored.
func Unpack(v uint64) Location {
	return Location{
		Group:  uint32(v >> 32),
		Page:   uint32(v>>11) & (MaxSegmentPages - 1),
		Device: uint8(v >> 3),
		Sub:    uint8(v & 7),
	}
}

// Compare orders locations as their rows lie in a catalog: by group, page, device and slot.
func (l Location) Compare(o Location) int {
	return cmp.Or(cmp.Compare(l.Group, o.Group), cmp.Compare(l.Page, o.Page), cmp.Compare(l.Device, o.Device), cmp.Compare(l.Sub, o.Sub))
}

// Check returns an Invalid error unless a block of stored bytes lies at l inside the
// segments of a group with the given devices and segment size: for locations read
// from a device or a peer.
func (l Location) Check(stored int64, devices, segPages int) error {
	const op = "location"
	if err := checkGroup(op, devices, segPages); err != nil {
		return err
	}
	if int(l.Device) >= devices {
		return skep.Invalidf(op, "device", l.Device, fmt.Sprintf("below %d", devices))
	}
	if stored < 0 || stored > MaxStoredBytes {
		return skep.Invalidf(op, "stored bytes", stored, fmt.Sprintf("0 to %d", int64(MaxStoredBytes)))
	}
	if l.Sub >= PageSize/SlotSize || l.Sub > 0 && int64(l.Sub)*SlotSize+stored > PageSize {
		return skep.Invalidf(op, "slot", l.Sub, "the value to end within its page")
	}
	units, u := UnitFor(int(ceil(stored, PageSize)), devices)
	if end := int64(l.Page) + int64(ceil(units, devices)*u); l.Page < 1 || end > int64(segPages) {
		return skep.Invalidf(op, "pages", fmt.Sprintf("%d to %d", l.Page, end), fmt.Sprintf("in 1 to %d", segPages))
	}
	return nil
}

func (l Location) String() string {
	s := fmt.Sprintf("%d:%d@%d", l.Group, l.Page, l.Device)
	if l.Sub > 0 {
		s += fmt.Sprintf("+%d", int(l.Sub)*SlotSize)
	}
	return s
}

func checkGroup(op string, devices, segPages int) error {
	if devices < 1 || devices > MaxDevices {
		return skep.Invalidf(op, "devices", devices, fmt.Sprintf("1 to %d", MaxDevices))
	}
	if segPages < 2 || segPages > MaxSegmentPages {
		return skep.Invalidf(op, "segment pages", segPages, fmt.Sprintf("2 to %d", MaxSegmentPages))
	}
	return nil
}
