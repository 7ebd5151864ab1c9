package space

import (
	"sync/atomic"
	"time"

	"github.com/skepkv/skep/store/internal/locks"
)

// Inside is what the table's lock guards.
type Inside struct {
	locks.Mutex[locks.Space]
	table  *Table
	Groups Set[*Group]
	Open   [Streams]*Group
	Next   uint32        // number of the last group opened
	freed  chan struct{} // closed and replaced whenever segments come free
	// unopened are groups whose headers could not be written and are not under way any
	// more. The cleaner takes them back.
	Unopened []*Group
	Doubted  []*Group  // of whose row's commit it is not known whether it happened
	Spares   []*Group  // ready to be opened
	Sparing  int       // spares being made
	spared   time.Time // when the last of them was begun
	awaited  bool      // the cleaner waits for what Await found
	Making   []*Group  // whose headers are being written
	// spareFailed is when one could not be.
	spareFailed time.Time
	root        int       // SWARM's running pointer: the start device of the next chain
	last        lastStart // where the block placed last begins
	emptied     []*Group  // whose segments are not free yet: Regain. The cleaner's goroutine only changes it

	Fruitless atomic.Uint64 // rounds of cleaning that were needed and freed nothing; see patience
	LastRound atomic.Int64  // when the last such round ended, nanoseconds by skep.Steady
	still     atomic.Uint64 // what had stirred by then
}

// Inside is what the table's lock guards, for tests, which look and meddle: no other package may.
func (t *Table) Inside() *Inside { return &t.mu }

// SealFull ends the filling of a group as a block does that does not fit. For tests. REQUIRES: the lock.
func (in *Inside) SealFull(g *Group) { in.table.sealFullLocked(g) }
