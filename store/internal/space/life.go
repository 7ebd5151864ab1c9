package space

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// State is where in its life a group is.
type State int32

// The states of a group, in the order of a life, so that they compare. The package comment says what each means.
const (
	Preparing State = iota
	Spare
	Failed
	Open
	Sealed
	Claimed
	Emptied
	Freed
	Gone
)

var names = [...]string{"preparing", "spare", "failed", "open", "sealed", "claimed", "emptied", "freed", "gone"}

// String is the state's name, for people.
func (s State) String() string {
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("state %d", int32(s))
	}
	return names[s]
}

// after says which states may follow a state.
var after = [...][]State{
	Preparing: {Spare, Failed},
	Spare:     {Open, Failed},
	Open:      {Sealed},
	Sealed:    {Claimed},
	Claimed:   {Sealed, Emptied},
	Emptied:   {Freed},
	Freed:     {Gone},
	Failed:    {Gone},
	Gone:      {},
}

// Worker is who may claim a group.
type Worker int

// The workers.
const (
	Cleaner Worker = iota + 1 // empties the group
	Mover                     // writes its blocks again elsewhere
	Mender                    // makes its log say what the catalog says
)

// Claim says who has a group, and for what. The zero Claim is nobody's.
type Claim struct {
	By      Worker
	KeepAll bool // of Cleaner: nothing is dropped
	Asked   bool // of Cleaner: it is cleaned whatever is gained
}

// Life is the state of one group, and its claim. The zero value is a group that is being prepared. Changes are made
// under the lock of the groups; State may be asked for without it.
type Life struct {
	state atomic.Int32
	claim Claim // zero unless Claimed
}

// State is where the group is now.
func (l *Life) State() State { return State(l.state.Load()) }

// Found begins the life of a group that an open finds in the catalog: it is sealed, whatever it was.
func (l *Life) Found() { l.state.Store(int32(Sealed)) }

// Become takes the group to its next state. A claim is taken by Take and given back by Release.
func (l *Life) Become(to State) {
	was := l.State()
	other := to == Claimed || was == Claimed && to == Sealed // Take and Release do that
	if invariants && (other || !slices.Contains(after[was], to)) {
		panic(fmt.Sprintf("a group that is %v becomes %v", was, to))
	}
	l.change(to, Claim{})
}

// Take gives a sealed group to who claims it. REQUIRES: nothing of the group is under way.
func (l *Life) Take(c Claim) {
	if was := l.State(); invariants && (was != Sealed || c.By == 0) {
		panic(fmt.Sprintf("a group that is %v is claimed: %+v", was, c))
	}
	l.change(Claimed, c)
}

// Claim is who has the group. It is for who has it, and for who holds the lock.
func (l *Life) Claim() Claim { return l.claim }

// Release ends the claim of who has the group, and gives it.
func (l *Life) Release() Claim {
	if was := l.State(); invariants && was != Claimed {
		panic(fmt.Sprintf("a group that is %v is released", was))
	}
	c := l.claim
	l.change(Sealed, Claim{})
	return c
}

func (l *Life) change(to State, c Claim) {
	l.claim = c
	l.state.Store(int32(to))
}
