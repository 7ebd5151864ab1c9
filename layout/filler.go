package layout

import (
	"math/bits"
	"slices"
)

// maxOpenRows is how many rows with free cells a Filler remembers.
const maxOpenRows = 64

// maxPackedPages is how many shared pages of one batch a Filler remembers.
const maxPackedPages = 8

// Filler hands out the space of one open stripe group: a segment of equal size on
// each of n devices.
//
//	page 0     header
//	page 1 …   rows, upwards: a row has a height and one cell on each device
//	… last     log pages (record headers), downwards, each device for itself
//
// It is pure bookkeeping and not safe for concurrent use. A batch of placements
// begins with Mark; Rollback to the mark leaves no trace of it.
type Filler struct {
	n, pages int
	state
}

// state is what a Mark keeps.
type state struct {
	low    int   // first page above all rows
	high   []int // of each device: first page of its log
	rows   []openRow
	packed []packedPage
	stats  FillerStats // Free and Open are filled by Stats
}

// openRow takes blocks of one height, number of units and start modulo that number,
// so that it fills up: two blocks of two units at 0 and 3 would leave a cell between
// them that neither can use.
type openRow struct {
	page int
	fit  fit
	used uint64 // bit i: the cell on device i
}

type fit struct{ height, units, phase int }

type packedPage struct {
	loc  Location
	next int // first free slot
}

// FillerStats accounts for every page of the group: Pages is the sum of the others
// (Rows and OpenRows are counts).
type FillerStats struct {
	Pages   int // segment pages × devices
	Header  int // one a device
	Payload int // asked for and given
	Log     int // given to Log
	Pad     int // ends of last units, and of units in rows taller than they need
	Open    int // free cells of rows that are remembered
	Lost    int // free cells of rows that were forgotten
	Free    int // between rows and logs

	Rows, OpenRows int
}

// NewFiller is an empty group of n devices (1 to MaxDevices) with segments of
// segPages pages (2 to MaxSegmentPages).
func NewFiller(n, segPages int) (*Filler, error) {
	if err := checkGroup("filler", n, segPages); err != nil {
		return nil, err
	}
	f := &Filler{n: n, pages: segPages, state: state{low: 1, high: make([]int, n)}}
	for i := range f.high {
		f.high[i] = segPages
	}
	return f, nil
}

// Devices is the number of devices of the group.
func (f *Filler) Devices() int { return f.n }

// Place gives a block of pages a place (Group 0: the caller fills it in), beginning
// on device start if it can be had: in an open row of such blocks whose cells are
// free, else in a new row. Only when there is no room for a new row any start will
// do, and any open row that is tall enough. False: the group has no room for it, and
// nothing changed.
func (f *Filler) Place(pages, start int) (Location, bool) {
	return f.place(pages, start, 0)
}

// PlaceCopy gives another copy of a placed block a place, so that no unit of it is on
// the same device as that unit of the primary or of the others. It begins rot devices
// on (Rotation), or where it can. Copies in another group need the same device list.
// False: there is no room, or there are no more devices than copies.
func (f *Filler) PlaceCopy(primary Location, pages, rot int, others ...Location) (Location, bool) {
	taken := f.taken(others) | 1<<(primary.Device%MaxDevices)
	start, ok := f.untaken(int(primary.Device)+mod(rot, f.n), taken)
	if !ok {
		return Location{}, false
	}
	return f.place(pages, start, taken)
}

// PlacePacked gives a value of size bytes (1 to MaxPacked) a place in a page it
// shares with other values placed since the last Mark, or in a new one that begins on
// device start if it can be had, never on the devices of its other copies, avoid.
// False: no room, or size is outside its limits.
func (f *Filler) PlacePacked(size, start int, avoid ...Location) (Location, bool) {
	if loc, ok := f.Share(size, avoid...); ok {
		return loc, true
	}
	taken := f.taken(avoid)
	start, ok := f.untaken(start, taken)
	if !ok || size < 1 || size > MaxPacked {
		return Location{}, false
	}
	loc, ok := f.place(1, start, taken)
	if !ok {
		return Location{}, false
	}
	if len(f.packed) == maxPackedPages {
		f.packed = slices.Delete(f.packed, 0, 1)
	}
	f.packed = append(f.packed, packedPage{loc, ceil(size, SlotSize)})
	return loc, true
}

// Share is PlacePacked in a page that is shared already: what PlacePacked does first.
// False: none has so many free slots, and a new page is needed.
func (f *Filler) Share(size int, avoid ...Location) (Location, bool) {
	if size < 1 || size > MaxPacked {
		return Location{}, false
	}
	taken, slots := f.taken(avoid), ceil(size, SlotSize)
	for i := range f.packed {
		p := &f.packed[i]
		if taken>>p.loc.Device&1 == 0 && p.next+slots <= PageSize/SlotSize {
			loc := p.loc
			loc.Sub = uint8(p.next)
			p.next += slots
			return loc, true
		}
	}
	return Location{}, false
}

// Log gives pages of log on one device: the ones just below what it gave before.
// The first call for a device gets its segment's end.
func (f *Filler) Log(device, pages int) (page uint32, ok bool) {
	if device < 0 || device >= f.n || pages < 1 || pages > f.high[device]-f.low {
		return 0, false
	}
	f.high[device] -= pages
	f.stats.Log += pages
	return uint32(f.high[device]), true
}

// Mark is a state to go back to.
type Mark struct{ state }

// Mark begins a batch. Values placed after it share no page with values placed
// before: those pages may be on their way to a device already.
func (f *Filler) Mark() Mark {
	f.packed = f.packed[:0]
	return f.Point()
}

// Point is a state to go back to within a batch: what is placed after it may share
// pages with what was placed before.
func (f *Filler) Point() Mark { return Mark{f.state.clone()} }

// Rollback undoes everything placed since m was made. A Mark may be gone back to
// more than once, and only in the Filler that made it.
func (f *Filler) Rollback(m Mark) {
	if len(m.high) == f.n {
		f.state = m.state.clone()
	}
}

func (s state) clone() state {
	s.high, s.rows, s.packed = slices.Clone(s.high), slices.Clone(s.rows), slices.Clone(s.packed)
	return s
}

// Stats accounts for every page.
func (f *Filler) Stats() FillerStats {
	s := f.stats
	s.Pages, s.Header, s.OpenRows = f.n*f.pages, f.n, len(f.rows)
	for _, h := range f.high {
		s.Free += h - f.low
	}
	for _, r := range f.rows {
		s.Open += f.freeCells(r) * r.fit.height
	}
	return s
}

// Room reports whether a block of pages would find a place. It changes nothing.
func (f *Filler) Room(pages int) bool {
	units, u := UnitFor(pages, f.n)
	if units < 1 {
		return false
	}
	if f.room(u * ceil(units, f.n)) {
		return true
	}
	_, _, ok := f.anyRow(units, u, 0)
	return units < f.n && ok
}

// room is whether rows of the given height altogether fit under every device's log.
func (f *Filler) room(height int) bool { return height <= slices.Min(f.high)-f.low }

func (f *Filler) place(pages, start int, taken uint64) (Location, bool) {
	units, u := UnitFor(pages, f.n)
	if units < 1 {
		return Location{}, false
	}
	start = mod(start, f.n)
	if units >= f.n { // whole rows: every start is as good
		height := units / f.n * u
		if !f.room(height) {
			return Location{}, false
		}
		page := f.low
		f.low += height
		f.stats.Rows += units / f.n
		return f.give(page, start, pages, units*u), true
	}
	want := fit{u, units, start % units}
	if f.n%units != 0 {
		want.phase = 0 // there is a rest anyway
	}
	cells := f.cells(start, units)
	row := slices.IndexFunc(f.rows, func(r openRow) bool { return r.fit == want && r.used&cells == 0 })
	switch {
	case row >= 0:
	case f.room(u):
		row = f.openRow(want)
	default:
		var ok bool
		if row, start, ok = f.anyRow(units, u, taken); !ok {
			return Location{}, false
		}
		cells = f.cells(start, units)
	}
	r := &f.rows[row]
	r.used |= cells
	page, height := r.page, r.fit.height
	if f.freeCells(*r) == 0 {
		f.rows = slices.Delete(f.rows, row, row+1)
	}
	return f.give(page, start, pages, units*height), true
}

func (f *Filler) give(page, device, pages, given int) Location {
	f.stats.Payload += pages
	f.stats.Pad += given - pages
	return Location{Page: uint32(page), Device: uint8(device)}
}

// openRow begins a row and gives its index. The oldest is forgotten when there are
// too many: what is still free in it will never be used.
func (f *Filler) openRow(what fit) int {
	if len(f.rows) == maxOpenRows {
		f.stats.Lost += f.freeCells(f.rows[0]) * f.rows[0].fit.height
		f.rows = slices.Delete(f.rows, 0, 1)
	}
	f.rows = append(f.rows, openRow{page: f.low, fit: what})
	f.low += what.height
	f.stats.Rows++
	return len(f.rows) - 1
}

// anyRow is the lowest open row of height u or more with units free cells in a run
// that begins on a device not taken.
func (f *Filler) anyRow(units, u int, taken uint64) (row, start int, ok bool) {
	for i, r := range f.rows {
		if r.fit.height < u || ok && r.fit.height >= f.rows[row].fit.height {
			continue
		}
		for s := range f.n {
			if taken>>s&1 == 0 && r.used&f.cells(s, units) == 0 {
				row, start, ok = i, s, true
				break
			}
		}
	}
	return row, start, ok
}

// cells is the set of n cells from start on, around the row's end; n is below f.n.
func (f *Filler) cells(start, n int) uint64 {
	all := ^uint64(0) >> (64 - f.n)
	arc := uint64(1)<<n - 1
	return (arc<<start | arc>>(f.n-start)) & all
}

func (f *Filler) freeCells(r openRow) int { return f.n - bits.OnesCount64(r.used) }

// taken is the set of devices the given placements begin on.
func (f *Filler) taken(locs []Location) (set uint64) {
	for _, l := range locs {
		set |= 1 << (l.Device % MaxDevices)
	}
	return set
}

// untaken is the first device from start on that is not taken.
func (f *Filler) untaken(start int, taken uint64) (int, bool) {
	for i := range f.n {
		if d := mod(start+i, f.n); taken>>d&1 == 0 {
			return d, true
		}
	}
	return 0, false
}

// Rotation is by how many devices copy (1 for the first after the primary) is turned
// against the primary in a group of n devices: 1 to n-1, another one for each copy,
// and moving on from group to group, so that what a lost device held is spread over
// all others. It is 0, which PlaceCopy turns away from, when n < 2.
func Rotation(group uint32, copy, n int) int {
	if n < 2 {
		return 0
	}
	return 1 + int((int64(group)+int64(max(copy, 1))-1)%int64(n-1))
}
