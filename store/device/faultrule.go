package device

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"time"
)

// Kinds is a set of Kind; the empty set means all.
type Kinds uint8

const (
	Reads   Kinds = 1 << Read
	Writes  Kinds = 1 << Write
	Flushes Kinds = 1 << Flush
)

func (s Kinds) has(k Kind) bool { return s == 0 || s&(1<<k) != 0 }

// Action is what a Rule does to an op it meets.
type Action uint8

const (
	// Fail ends the op with Rule.Err (EIO if nil). The drive never sees it.
	Fail Action = iota + 1
	// Drop answers success and does nothing: a lost write, a lying flush. A
	// dropped read leaves the buffer as it was.
	Drop
	// Tear writes only the first Rule.Keep bytes (rounded down to 512) and
	// answers success.
	Tear
	// Misdirect moves the transfer by Rule.Shift bytes (a multiple of Align), and
	// answers success. An op it would take off the device is left alone.
	Misdirect
	// FlipBit flips a random bit of what a read returns; the drive's bytes stay.
	FlipBit
	// Hold keeps the op from the drive until Release, which lets it run then: a
	// hung drive that writes into the buffer minutes later.
	Hold
	// Withhold runs the op and keeps its completion back until Release.
	Withhold
	// Delay runs the op and keeps its completion back for Rule.Delay.
	Delay
)

var actionNames = [...]string{Fail: "fail", Drop: "drop", Tear: "tear", Misdirect: "misdirect",
	FlipBit: "flip bit", Hold: "hold", Withhold: "withhold", Delay: "delay"}

func (a Action) String() string {
	if a == 0 || int(a) >= len(actionNames) {
		return fmt.Sprintf("action(%d)", uint8(a))
	}
	return actionNames[a]
}

// kinds on which an action means something.
func (a Action) kinds() Kinds {
	switch a {
	case Tear:
		return Writes
	case FlipBit:
		return Reads
	case Misdirect:
		return Reads | Writes
	}
	return Reads | Writes | Flushes
}

// Rule injects a fault. An op matches when all of Kinds, From, To and Match agree;
// of the rules an op matches and that then fire, the one injected first wins.
type Rule struct {
	Action Action
	Kinds  Kinds // empty: all the action can be done to

	// From and To bound the bytes touched: an op matches when it overlaps
	// [From, To). To of 0 means no bound. Flushes match whatever the bounds.
	From, To int64

	Match func(*Op) bool // further condition; nil: none. Must not submit.

	Nth         int     // fire from the Nth match on, counted from 1; 0: from the first
	Times       int     // fire at most so often; 0: no limit
	Probability float64 // of firing on a match; 0: always

	Err   error         // of Fail
	Keep  int           // of Tear, bytes
	Shift int64         // of Misdirect, bytes
	Delay time.Duration // of Delay
}

func (r Rule) validate() error {
	bad := func(field string, value, limit any) error {
		return &ArgError{Op: -1, Field: "Rule." + field, Value: value, Limit: limit}
	}
	switch {
	case r.Action < Fail || r.Action > Delay:
		return bad("Action", uint8(r.Action), "Fail to Delay")
	case r.Kinds&^r.Action.kinds() != 0:
		return bad("Kinds", r.Kinds, fmt.Sprintf("kinds that can %s: %b", r.Action, r.Action.kinds()))
	case r.From < 0 || r.To < 0 || (r.To > 0 && r.To <= r.From):
		return bad("From, To", fmt.Sprintf("%d, %d", r.From, r.To), "0 <= From < To, or To 0")
	case r.Nth < 0 || r.Times < 0 || r.Keep < 0 || r.Delay < 0:
		return bad("Nth, Times, Keep, Delay", fmt.Sprint(r.Nth, r.Times, r.Keep, r.Delay), "not negative")
	case !(r.Probability >= 0 && r.Probability <= 1):
		return bad("Probability", r.Probability, "0 to 1")
	case r.Action == Misdirect && (r.Shift == 0 || !aligned(r.Shift)):
		return bad("Shift", r.Shift, fmt.Sprintf("a multiple of %d, not 0", Align))
	}
	return nil
}

// Injected is a Rule at work.
type Injected struct {
	f       *Fault
	rule    Rule
	matches int // under f.mu
	fired   atomic.Int64
}

// Fired is how often the rule has met an op and acted.
func (i *Injected) Fired() int { return int(i.fired.Load()) }

// Remove ends the rule. What it holds stays held until Release.
func (i *Injected) Remove() {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	for n, r := range i.f.mu.rules {
		if r == i {
			i.f.mu.rules = append(i.f.mu.rules[:n:n], i.f.mu.rules[n+1:]...)
			return
		}
	}
}

// meet counts the op and says whether the rule acts on it. REQUIRES: f.mu.
func (i *Injected) meet(op *Op, rng *rand.Rand) bool {
	r := &i.rule
	if !r.Action.kinds().has(op.Kind) || !r.Kinds.has(op.Kind) {
		return false
	}
	if op.Kind != Flush {
		if op.Offset+int64(op.total) <= r.From || (r.To > 0 && op.Offset >= r.To) {
			return false
		}
	}
	if r.Match != nil && !r.Match(op) {
		return false
	}
	i.matches++
	if i.matches < r.Nth || (r.Times > 0 && int(i.fired.Load()) >= r.Times) {
		return false
	}
	if r.Probability > 0 && rng.Float64() >= r.Probability {
		return false
	}
	i.fired.Add(1)
	return true
}

// ErrGone is what every op of a device that was pulled out ends with.
var ErrGone = fmt.Errorf("device gone: %w", syscall.ENXIO)

// The usual faults, as rules.

// ReadOnlyRule fails writes and flushes as a drive does that has used itself up.
func ReadOnlyRule() Rule { return Rule{Action: Fail, Kinds: Writes | Flushes, Err: syscall.EROFS} }

// GoneRule fails everything: the drive was pulled out.
func GoneRule() Rule { return Rule{Action: Fail, Err: ErrGone} }

// LyingFlushRule answers flushes without doing them.
func LyingFlushRule() Rule { return Rule{Action: Drop, Kinds: Flushes} }
