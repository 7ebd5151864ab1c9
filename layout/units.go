package layout

import "github.com/skepkv/skep"

const (
	// MaxUnitPages is the largest stripe unit, in pages (1 MiB): large enough that a
	// drive is at full speed, small enough that no drive splits it.
	MaxUnitPages = 256
	// MinUnitPages is the smallest unit a block is spread thinner for (64 KiB).
	MinUnitPages = 16
	// MaxStoredBytes is the most bytes a block takes on devices in one copy.
	MaxStoredBytes = skep.MaxPartBytes + skep.MaxParts*PageSize
)

// UnitFor is how a block of pages is cut for a group of devices: into units of
// unitPages each, the last ones maybe short or empty. The number of units is the
// smallest that keeps a unit within MaxUnitPages and either divides the number of
// devices or is a multiple of it, so that blocks fill rows without a gap:
//
//	8 devices    1, 2, 4, 8, 16, 24, … units
//	6 devices    1, 2, 3, 6, 12, 18, … units
//
// (Five units on eight devices would leave three cells of each row empty.) Only
// where that would make units smaller than MinUnitPages, on a prime number of 17
// and more devices, say, the plain number is kept. The result is a pure function of
// its arguments, is part of the stored format and never changes. It is (0, 0) for
// arguments below 1.
func UnitFor(pages, devices int) (units, unitPages int) {
	if pages < 1 || devices < 1 {
		return 0, 0
	}
	least := ceil(pages, MaxUnitPages)
	units = least
	if least >= devices {
		units = ceil(least, devices) * devices
		return units, ceil(pages, units)
	}
	for devices%units != 0 {
		units++
	}
	if unitPages = ceil(pages, units); unitPages < MinUnitPages {
		units = least
		unitPages = ceil(pages, units)
	}
	return units, unitPages
}

// Extent is one unit of a block: Len payload bytes of it, from Off, on one device.
type Extent struct {
	Device int    // index in the group's list
	Page   uint32 // from the segment's start
	Skip   int    // bytes into the first page; not 0 for packed values only
	Off    int64  // in the block's stored bytes
	Len    int64
}

// Pages is how many pages the extent touches.
func (e Extent) Pages() int { return int(ceil(int64(e.Skip)+e.Len, PageSize)) }

// Extents appends to dst the units of a block of stored bytes (StoredBytes, or
// PackedBytes for a packed one) at loc in a group of n devices, in order. Unit j is
// on device (s+j) mod n, in row j/n of the block. Nothing is appended for arguments
// out of their limits; Location.Check says which.
func Extents(dst []Extent, loc Location, stored int64, n int) []Extent {
	w := walk(loc, stored, n)
	for off := int64(0); off < w.stored; off += w.unit {
		dst = append(dst, w.extent(off, min(off+w.unit, w.stored)))
	}
	return dst
}

// walker maps stored bytes of one block to devices.
type walker struct {
	loc    Location
	stored int64
	n      int
	unit   int64 // bytes
}

func walk(loc Location, stored int64, n int) walker {
	if stored < 1 || stored > MaxStoredBytes || n < 1 || n > MaxDevices {
		return walker{}
	}
	_, u := UnitFor(int(ceil(stored, PageSize)), n)
	return walker{loc, stored, n, int64(u) * PageSize}
}

// extent is stored bytes [from, to), which must lie in one unit.
func (w walker) extent(from, to int64) Extent {
	j := int(from / w.unit)
	at := int64(w.loc.Sub)*SlotSize + from%w.unit
	return Extent{
		Device: (int(w.loc.Device) + j) % w.n,
		Page:   w.loc.Page + uint32(int64(j/w.n)*(w.unit/PageSize)+at/PageSize),
		Skip:   int(at % PageSize),
		Off:    from,
		Len:    to - from,
	}
}

// Padded is n rounded up to whole pages.
func Padded(n int64) int64 { return ceil(n, PageSize) * PageSize }

// StoredBytes is what a block's parts take, laid one after another, each padded to
// whole pages.
func StoredBytes(m skep.Manifest) int64 { return PartOffset(m, len(m)) }

// PartOffset is where part i begins in the block's stored bytes, a multiple of PageSize.
func PartOffset(m skep.Manifest, i int) int64 { return offset(m, i, PageSize) }

// PackedBytes is what a block's parts take when each is padded to SlotSize only,
// and whether that is little enough to share a page.
func PackedBytes(m skep.Manifest) (int64, bool) {
	n := offset(m, len(m), SlotSize)
	return n, n <= MaxPacked
}

// PackedOffset is where part i begins in the stored bytes of a packed block.
func PackedOffset(m skep.Manifest, i int) int64 { return offset(m, i, SlotSize) }

func offset(m skep.Manifest, i int, align int64) (off int64) {
	for _, p := range m[:min(max(i, 0), len(m))] {
		off += ceil(max(p.Size, 0), align) * align
	}
	return off
}
