package elastic

import (
	"fmt"

	"github.com/skepkv/skep"
)

// Side is one of the two models that share an arena.
type Side uint8

const (
	Lender Side = iota
	ToBorrower
)

func (s Side) String() string {
	if s == Lender {
		return "lender"
	}
	return "borrower"
}

// MaxUnits is the most units of an arena.
const MaxUnits = 1 << 28

// Arena is one lender's memory and the border in it. Blocks of a side are numbered from the
// arena's start; their bytes begin at Offset. The zero Arena is not usable; see New.
type Arena struct {
	unit   Unit
	units  int
	floor  int // units the lender always keeps
	border int // units below are the lender's
	epoch  uint64
	side   [2]side
}

// side is what one side uses.
type side struct {
	per   int   // blocks in a unit
	block int64 // bytes
	used  set   // blocks
	busy  set   // units with a block in use
	open  set   // units with a free block in which the other side uses none
	count []uint32
	total int // blocks in use
}

// New makes an arena of n units, all the lender's, of which it never lends floor.
func New(u Unit, n, floor int) (*Arena, error) {
	const op = "elastic arena"
	switch {
	case u.Bytes < 1 || u.Lender < 1 || u.Borrower < 1 || int64(u.Lender)*u.LenderBlock > u.Bytes || int64(u.Borrower)*u.BorrowerBlock > u.Bytes:
		return nil, skep.Invalidf(op, "unit", fmt.Sprintf("%+v", u), "at least a block of each side")
	case n < 1 || n > MaxUnits:
		return nil, skep.Invalidf(op, "units", n, fmt.Sprintf("1 to %d", MaxUnits))
	case floor < 0 || floor > n:
		return nil, skep.Invalidf(op, "floor in units", floor, fmt.Sprintf("0 to %d", n))
	case n > MaxUnits/max(u.Lender, u.Borrower):
		return nil, skep.Invalidf(op, "blocks", int64(n)*int64(max(u.Lender, u.Borrower)), fmt.Sprintf("at most %d", MaxUnits))
	}
	a := &Arena{unit: u, units: n, floor: floor, border: n}
	a.side[Lender] = newSide(n, u.Lender, u.LenderBlock)
	a.side[ToBorrower] = newSide(n, u.Borrower, u.BorrowerBlock)
	return a, nil
}

func newSide(units, per int, block int64) side {
	s := side{per: per, block: block, used: newSet(units * per), busy: newSet(units), open: newSet(units), count: make([]uint32, units)}
	for u := range units {
		s.open.put(u, true)
	}
	return s
}

// Border is how many units are the lender's; the rest is lent.
func (a *Arena) Border() int { return a.border }

// Units is how many there are, and Unit what one is.
func (a *Arena) Units() int { return a.units }

// Unit is what one unit is.
func (a *Arena) Unit() Unit { return a.unit }

// Epoch counts moves: what was agreed under another epoch is to be asked again.
func (a *Arena) Epoch() uint64 { return a.epoch }

// Used is how many blocks a side uses, stranded ones too.
func (a *Arena) Used(s Side) int { return a.side[s&1].total }

// Capacity is how many blocks a side may use where the border stands.
func (a *Arena) Capacity(s Side) int {
	if s == Lender {
		return a.border * a.unit.Lender
	}
	return (a.units - a.border) * a.unit.Borrower
}

// Offset is where a side's block begins, in bytes from the arena's start.
func (a *Arena) Offset(s Side, block int) int64 {
	d := &a.side[s&1]
	return int64(block/d.per)*a.unit.Bytes + int64(block%d.per)*d.block
}

// Move moves the border by n units: up gives them to the lender (the paper's scale-up),
// down lends them. At once the one side cannot allocate there any more and the other can,
// except in units where blocks of the first are still in use. Constant time. Invalid when
// the border would leave the arena or pass the lender's floor.
func (a *Arena) Move(n int) error {
	to := a.border + n
	if to < a.floor || to > a.units {
		return skep.Invalidf("move border", "units", n, fmt.Sprintf("%d to %d", a.floor-a.border, a.units-a.border))
	}
	if n != 0 {
		a.border = to
		a.epoch++
	}
	return nil
}

// Alloc takes a block: the lender's lowest free one, or the borrower's highest. False:
// there is none on its side of the border.
func (a *Arena) Alloc(s Side) (block int, ok bool) {
	s &= 1
	d := &a.side[s]
	if s == Lender {
		u := d.open.first(0)
		if u < 0 || u >= a.border {
			return 0, false
		}
		for block = u * d.per; d.used.has(block); block++ {
		}
	} else {
		u := d.open.last(a.units - 1)
		if u < a.border {
			return 0, false
		}
		for block = (u+1)*d.per - 1; d.used.has(block); block-- {
		}
	}
	a.use(s, block)
	return block, true
}

// use takes a free block whose unit is open. Scanning for it stays within one unit.
func (a *Arena) use(s Side, block int) {
	d, other := &a.side[s], &a.side[s^1]
	u := block / d.per
	d.used.put(block, true)
	d.total++
	d.count[u]++
	if d.count[u] == 1 {
		d.busy.put(u, true)
		other.open.put(u, false)
	}
	if int(d.count[u]) == d.per {
		d.open.put(u, false)
	}
}

// Free gives a block back. Invalid when it is not in use.
func (a *Arena) Free(s Side, block int) error {
	s &= 1
	d, other := &a.side[s], &a.side[s^1]
	if block < 0 || block >= d.used.n || !d.used.has(block) {
		return skep.Invalidf("free", s.String()+"'s block", block, "one in use")
	}
	u := block / d.per
	d.used.put(block, false)
	d.total--
	d.count[u]--
	if d.open.put(u, true); d.count[u] == 0 {
		d.busy.put(u, false)
		other.open.put(u, true)
	}
	return nil
}

// Stranded gives a side's used unit farthest beyond the border, and whether there is one:
// of the borrower after the lender took memory back, of the lender after it lent. Draining
// a side is asking until there is none.
func (a *Arena) Stranded(s Side) (unit int, ok bool) {
	d := &a.side[s&1]
	if s&1 == Lender {
		unit = d.busy.last(a.units - 1)
		return unit, unit >= a.border
	}
	unit = d.busy.first(0)
	return unit, unit >= 0 && unit < a.border
}

// Blocks appends the blocks a side uses in a unit.
func (a *Arena) Blocks(dst []int, s Side, unit int) []int {
	d := &a.side[s&1]
	if unit < 0 || unit >= a.units {
		return dst
	}
	for b := d.used.first(unit * d.per); b >= 0 && b < (unit+1)*d.per; b = d.used.first(b + 1) {
		dst = append(dst, b)
	}
	return dst
}

// Check looks for a broken invariant, in time linear in the arena.
func (a *Arena) Check() error {
	for u := range a.units {
		var count [2]int
		for s := range a.side {
			d := &a.side[s]
			for b := u * d.per; b < (u+1)*d.per; b++ {
				if d.used.has(b) {
					count[s]++
				}
			}
			if int(d.count[u]) != count[s] || d.busy.has(u) != (count[s] > 0) {
				return fmt.Errorf("elastic: unit %d: %d blocks of the %v in use, %d counted", u, count[s], Side(s), d.count[u])
			}
		}
		if count[0] > 0 && count[1] > 0 {
			return fmt.Errorf("elastic: unit %d has blocks of both sides", u)
		}
		for s := range a.side {
			d := &a.side[s]
			if want := count[s] < d.per && count[s^1] == 0; d.open.has(u) != want {
				return fmt.Errorf("elastic: unit %d is open for the %v: %v", u, Side(s), !want)
			}
		}
	}
	return nil
}
