package index

import (
	"fmt"
	"math"
	"time"

	"github.com/skepkv/skep"
)

// Leaving is a block that leaves DRAM, where it was accepted, and is on no drive.
type Leaving struct {
	Bytes   int64
	Used    bool // restored, or put again, since it was accepted
	Partial bool // a tail with fewer valid tokens than a block holds
	// ParentAway says that its parent is neither on a drive nor before it in the run:
	// written, it would be hidden.
	ParentAway bool
}

// Refusal says why a block was not written to a drive. Admitted is none.
type Refusal uint8

const (
	Admitted      Refusal = iota
	RefusedUnused         // nobody used it while it was in DRAM, and the budget has nothing to spare
	RefusedBudget         // it was used, and the budget is spent
	RefusedTail           // a partial tail: the chain's next turn has another block in its place
	RefusedParent         // its parent is on no drive
	RefusedFirst          // second touch: it was put for the first time
	Refusals              // how many there are
)

var refusalText = [Refusals]string{"admitted", "not used", "budget spent", "partial tail", "parent not stored", "first touch"}

func (r Refusal) String() string {
	if r < Refusals {
		return refusalText[r]
	}
	return fmt.Sprintf("refusal %d", uint8(r))
}

// surplus is the share of the saved-up budget above which blocks that nobody used are
// written too: what would be left unspent buys hits, and used blocks always find some.
const surplus = 0.5

// Admit decides on a run of a chain's blocks, first block first, that leaves DRAM
// together. level is the wear budget that is there ÷ all that may be saved up (above 1
// for a store without a budget); burst is that most, in bytes. It appends one verdict a
// block.
//
// A use of a block is one of its ancestors too, so everything before the deepest used
// block counts as used. What is written is a prefix of the run: a block whose parent
// is refused could not be found. Used blocks are written while there is budget;
// others while more than half of it is saved up.
//
// Why uses in DRAM and not a second put: on the conversation trace 76 % of the blocks are
// never asked for again, and what tells them apart when they are put (position, length of
// the prompt, how much of it was found) says little, but for partial tails. What tells is
// being used. Plain second touch waits for it outside, and so loses each block's first
// reuse; here that reuse is a hit in DRAM.
func Admit(run []Leaving, level, burst float64, dst []Refusal) []Refusal {
	used := -1
	for i := range run {
		if run[i].Used {
			used = i
		}
	}
	why := Admitted
	for i := range run {
		if why != Admitted || run[i].ParentAway {
			why = RefusedParent
			dst = append(dst, why)
			continue
		}
		switch {
		case i <= used && level <= 0:
			why = RefusedBudget
		case i > used && run[i].Partial && level < 1:
			why = RefusedTail
		case i > used && level <= surplus:
			why = RefusedUnused
		}
		if why == Admitted {
			level -= float64(run[i].Bytes) / max(burst, 1)
		}
		dst = append(dst, why)
	}
	return dst
}

// WearBudget is the bytes that may be written to the devices. It is told the time and
// what the devices say they have written, cleaning and logs included, and so cannot
// drift from the truth. It is not safe for concurrent use.
type WearBudget struct {
	rate     float64 // bytes a second; 0: no budget
	burst    float64
	least    float64 // of burst
	have     float64 // -burst to burst
	promised int64   // admitted and not yet written
	last     time.Time
	written  int64
}

// wearSaved is how much of the budget may be saved up, of a day's.
const wearSaved = 15 * time.Minute

// NewWearBudget allows perDay bytes a day over all devices, 0 for no limit. A quarter of
// an hour's budget may be saved up, at least least bytes; nothing of it is there at once,
// so that opening a store often does not wear it out.
func NewWearBudget(perDay, least int64, now time.Time, written int64) *WearBudget {
	b := &WearBudget{least: float64(least), last: now, written: written}
	b.Allow(perDay)
	return b
}

// Allow changes what is allowed, from the last Update on: devices have come or gone.
func (b *WearBudget) Allow(perDay int64) {
	b.rate = float64(perDay) / (24 * time.Hour).Seconds()
	b.burst = max(b.rate*wearSaved.Seconds(), b.least)
}

// Update takes the time and the bytes the devices have written so far into account.
// What was written beyond the budget is owed, up to as much as may be saved up.
func (b *WearBudget) Update(now time.Time, written int64) {
	if d := now.Sub(b.last); d > 0 {
		b.have += b.rate * d.Seconds()
		b.last = now
	}
	b.have -= float64(written - b.written)
	b.written = written
	b.have = min(b.burst, max(-b.burst, b.have))
}

// Promise takes bytes that were admitted out of the budget until Done says that the
// devices have counted them.
func (b *WearBudget) Promise(bytes int64) { b.promised += bytes }

// Done ends a promise.
func (b *WearBudget) Done(bytes int64) { b.promised -= bytes }

// Level is what is there ÷ what may be saved up, at most 1; above 1 without a budget.
func (b *WearBudget) Level() float64 {
	if b.rate == 0 {
		return 2
	}
	return (b.have - float64(b.promised)) / b.burst
}

// Burst is what may be saved up, in bytes; without a budget there is no end to it.
func (b *WearBudget) Burst() float64 {
	if b.rate == 0 {
		return math.Inf(1)
	}
	return b.burst
}

// Left is what may be written now, in bytes; 0 without a budget.
func (b *WearBudget) Left() int64 {
	if b.rate == 0 {
		return 0
	}
	return int64(b.have) - b.promised
}

// Ghosts remembers keys that were refused, so that it is known what refusing them
// cost. It takes 8 bytes a key, and the oldest of a set of eight goes for the newest.
// It is not safe for concurrent use.
type Ghosts struct {
	sets [][ghostWays]uint64
	mask uint64
}

const ghostWays = 8

// NewGhosts remembers up to keys keys, rounded up to a power of two, at least 8.
func NewGhosts(keys int) (*Ghosts, error) {
	const most = 1 << 28
	if keys < 1 || keys > most {
		return nil, skep.Invalidf("admission", "ghosts", keys, fmt.Sprintf("1 to %d", most))
	}
	n := 1
	for n*ghostWays < keys {
		n *= 2
	}
	return &Ghosts{make([][ghostWays]uint64, n), uint64(n - 1)}, nil
}

// tag is what is kept of a fingerprint: never 0, which is an empty place.
func (g *Ghosts) at(fp *Fingerprint) (set *[ghostWays]uint64, tag uint64) {
	f := cut(fp)
	return &g.sets[uint64(f[2])&g.mask], uint64(f[0])<<32 | uint64(f[1]) | 1
}

// Add remembers fp.
func (g *Ghosts) Add(fp Fingerprint) {
	set, tag := g.at(&fp)
	for i, have := range set {
		if have == tag || i == ghostWays-1 {
			copy(set[1:i+1], set[:i])
			break
		}
	}
	set[0] = tag
}

// Take says whether fp is remembered, and forgets it.
func (g *Ghosts) Take(fp Fingerprint) bool {
	set, tag := g.at(&fp)
	for i, have := range set {
		if have == tag {
			copy(set[i:], set[i+1:])
			set[ghostWays-1] = 0
			return true
		}
	}
	return false
}

// Bytes is the memory it takes.
func (g *Ghosts) Bytes() int64 { return int64(len(g.sets)) * ghostWays * 8 }
