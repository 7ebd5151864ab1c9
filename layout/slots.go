package layout

// SlotsPerPage is how many slots a page has. An index of what is stored counts slots: a block of whole pages has so
// many for each, one that shares a page has those it takes.
const SlotsPerPage = PageSize / SlotSize

// Packed says whether a block of so many pages, and bytes in all its parts, shares a page.
func Packed(pages int, bytes int64) bool { return pages == 1 && bytes <= MaxPacked }

// SlotsOf is what a copy of a block of so many pages, and bytes in all its parts, takes, in slots.
func SlotsOf(pages int, bytes int64) int {
	if Packed(pages, bytes) {
		return int((bytes + SlotSize - 1) / SlotSize)
	}
	return pages * SlotsPerPage
}

// SlotBytes is what so many slots are in bytes.
func SlotBytes(slots uint64) int64 { return int64(slots) * SlotSize }

// PagesOf is how many pages so many bytes take.
func PagesOf(bytes int64) int { return int((bytes + PageSize - 1) / PageSize) }

// SlotPages is how many pages so many slots are, rounded up.
func SlotPages(slots uint64) int64 { return int64((slots + SlotsPerPage - 1) / SlotsPerPage) }
