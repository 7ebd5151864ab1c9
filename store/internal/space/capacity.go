package space

import (
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/locks"
)

// capacity is how much the drives have room for. It is the only owner of what the index is
// told of that: whatever changes it (a drive added or drained, a file system that fills up or
// is freed, cleaning that finds less fits) goes through reroom and yieldRoom.
type capacity struct {
	mu    locks.Mutex[locks.Capacity]
	pages int64 // room for payload
	even  int64 // of it, what groups over all drives can have
	most  int64 // what lru and s3fifo may hold of it, as reckoned
	// fits is the part of most that cleaning has found to fit: what is left over in groups
	// cannot be reckoned.
	fits float64
}

// RoomBytes is what of the room for payload can be used: EvenPages; 0: not known.
func (t *Table) RoomBytes() int64 { return t.EvenPages() * layout.PageSize }

// EvenPages is the room for payload where every drive counts as much as the smallest, as it does in the long run: a
// group has a segment on each.
func (t *Table) EvenPages() int64 {
	c := &t.capacity
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.even
}

func (c *capacity) logicalLocked() int64 { return max(1, int64(float64(c.most)*c.fits)) }

// Reckon takes the drives as they are now. It returns what the index is to be told, in pages.
func (t *Table) Reckon() (pages, logical int64) {
	c := &t.capacity
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pages, c.even, c.most = t.room()
	if c.fits == 0 {
		c.fits = 1
	}
	return c.pages, c.logicalLocked()
}

// Reroom tells the index how much room there is now.
func (t *Table) Reroom() {
	t.Reckon()
	t.tellRoom()
}

// tellRoom gives the index what is known of it.
func (t *Table) tellRoom() {
	c := &t.capacity
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := t.Index.SetCapacity(c.pages*layout.SlotsPerPage, c.logicalLocked()*layout.SlotsPerPage); err != nil {
		t.Log.Warn("room not reckoned anew", "error", err)
	}
}

// What cleaning has found not to fit, and to fit after all: a part of what is held, and of a group.
const (
	yieldPart  = 512
	RegainPart = 8
)

// YieldRoom brings the cap of lru and s3fifo a little below what they hold.
func (t *Table) YieldRoom() {
	live := int64(t.Index.Stats().Pages) / layout.SlotsPerPage
	t.refit(func(now int64) int64 { now = min(now, live); return now - now/yieldPart - 1 })
}

// RegainRoom lets lru and s3fifo hold more again by a part of a group of so many slots: when
// that was cleaned, next to nothing lived in it.
func (t *Table) RegainRoom(slots int) {
	t.refit(func(now int64) int64 { return now + int64(slots)/layout.SlotsPerPage/RegainPart })
}

func (t *Table) refit(change func(logical int64) int64) {
	c := &t.capacity
	c.mu.Lock()
	c.fits = float64(min(max(change(c.logicalLocked()), 1), c.most)) / float64(max(c.most, 1))
	c.mu.Unlock()
	t.tellRoom()
}

// room is what the drives in use have, or would have once they have grown: pages for payload, those of them that are
// even, and the logical cap of the policies that have an exact order.
func (t *Table) room() (capacity, even, logical int64) {
	segPages := int64(t.SegmentBytes/layout.PageSize) - 2
	growth := t.growth(t.Uncapped())
	var segments, drives, least int64
	known := true
	t.mu.Lock()
	for _, d := range t.Drives() {
		if d.Retired.Load() {
			continue
		}
		n := d.Limit
		if n == Unlimited {
			more, ok := growth[d]
			n, known = d.Segments+more, known && ok
		}
		segments += int64(n)
		if drives++; drives == 1 || int64(n) < least {
			least = int64(n)
		}
	}
	t.mu.Unlock()
	capacity, even = segments*segPages, drives*least*segPages
	byBlocks := t.LogicalBlocks * t.BlockPages
	switch {
	case known:
		n := int64(max(1, t.UsableDrives()))
		// Three groups are never full: the one kept free and the two open ones.
		// What a row leaves over at a segment's end holds nothing.
		units, unit := layout.UnitFor(int(t.BlockPages), int(n))
		perGroup := n * (segPages / int64(unit)) / int64(units) * t.BlockPages
		if perGroup == 0 { // segments smaller than a typical block: what comes must be smaller
			perGroup = n * segPages
		}
		usable := max(1, segments/n-3) * perGroup
		logical = max(1, usable-usable/32)
		if t.LogicalBlocks > 0 {
			logical = min(logical, byBlocks)
		}
	case t.LogicalBlocks > 0:
		logical = byBlocks
	default:
		logical = 1 << 50 // none
	}
	return capacity, even, logical
}
