package index

import (
	"time"

	"github.com/skepkv/skep"
)

// Hint is what an engine knows about the future of a block. Pins are no hint but a
// promise: Grant them.
type Hint struct {
	// NextUse is when the block is expected to be used again.
	NextUse time.Time
	// Steps is how many agent steps come before the one that uses the block (KVFlow);
	// 0 is unknown. A step ranks like a minute of waiting. Needs Until.
	Steps uint16
	// Until is when the hint is void; alone it asks to keep the block that long
	// (Continuum's time to live). Without it a NextUse is believed for twice the wait.
	Until time.Time
	// Drop says that the block will not be used again.
	Drop bool
}

// hint is a row of Index.hints, times in Unix nanoseconds.
type hint struct {
	nextUse, until int64
	steps          uint16
	drop           bool
}

type opinion uint8

const (
	noHint opinion = iota
	hintKeep
	hintDrop
)

// judge is what a hint says at now, and the block's rank: minutes until its use.
func (h hint) judge(now int64, rank float64) (opinion, float64) {
	switch {
	case h.drop:
		return hintDrop, rank
	case now >= h.until:
		return noHint, rank
	case h.steps > 0:
		return hintKeep, float64(h.steps)
	case h.nextUse > now:
		return hintKeep, float64(h.nextUse-now) / float64(time.Minute)
	}
	return hintKeep, 0
}

// SetHint notes what is expected of a block; a later hint takes an earlier one's
// place, the zero Hint takes it away. NotFound is returned for a block that is not
// stored, Quota when its tenant's have their share of all hints, Full when too many blocks have them, Invalid for steps without an end.
func (x *Index) SetHint(now time.Time, fp Fingerprint, h Hint) error {
	const op = "hint"
	row := hint{nextUse: timeOf(h.NextUse), until: timeOf(h.Until), steps: h.Steps, drop: h.Drop}
	if h.Steps > 0 && h.Until.IsZero() {
		return skep.Invalidf(op, "until", "not given", "given with steps")
	}
	if row.nextUse != 0 && row.until == 0 {
		row.until = row.nextUse + max(0, row.nextUse-now.UnixNano())
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.live(&fp)
	if id == 0 {
		return &skep.Error{Op: op, Kind: skep.NotFound, Field: "block"}
	}
	s := x.slots.at(id)
	if h == (Hint{}) {
		x.forgetHint(id)
		return nil
	}
	if !s.has(flagHinted) && len(x.hints) >= x.cfg.MaxHints {
		return &skep.Error{Op: op, Kind: skep.Full, Field: "blocks with hints", Value: len(x.hints), Limit: x.cfg.MaxHints}
	}
	if !s.has(flagHinted) {
		has, left := x.owners.at(s.owner).usage.hints, x.cfg.MaxHints-len(x.hints)
		if !mayTake(has, left) {
			return overShare(op, "blocks with hints", has, left)
		}
		x.hinted(s, 1)
	}
	x.hints[ID(id)] = row
	s.flags |= flagHinted
	return nil
}

// expireHints forgets the hints that are void at now.
func (x *Index) expireHints(now int64) {
	for id, h := range x.hints {
		if !h.drop && now >= h.until {
			x.forgetHint(uint32(id))
		}
	}
}

// forgetHint takes a block's hint away, if it has one. REQUIRES: x.mu.
func (x *Index) forgetHint(id uint32) {
	if s := x.slots.at(id); s.has(flagHinted) {
		delete(x.hints, ID(id))
		s.flags &^= flagHinted
		x.hinted(s, -1)
	}
}
