package naming

import (
	"time"

	"github.com/skepkv/skep/store/internal/limits"
)

// Sweep takes what purges made unreachable out of the index. One goroutine does, for all that
// were made when it began a round.
func (m *Namer) Sweep() {
	for m.Context.Err() == nil && m.sweeping.CompareAndSwap(false, true) {
		ended := m.sweep()
		m.sweeping.Store(false)
		if ended || len(m.Index.Dead()) == 0 {
			return
		}
	}
}

// sweep is a round of Sweep. It says whether the store's end has cut it short.
func (m *Namer) sweep() (ended bool) {
	for dead := m.Index.Dead(); len(dead) > 0; dead = m.Index.Dead() {
		for wrapped := false; !wrapped; {
			began := time.Now()
			if _, wrapped = m.Index.SweepDead(sweepStep); !wrapped && !limits.Pause(m.Closing, 3*time.Since(began)) ||
				m.Context.Err() != nil {
				return true
			}
		}
		// What a put under way adds of them yet, the cleaner finds.
		m.Index.ForgetDead(dead...)
		m.Names.ForgetSalts()
	}
	return false
}

// sweepStep is how many slots are looked at in one go.
const sweepStep = 4096

// Sweeping says whether Sweep is at it.
func (m *Namer) Sweeping() bool { return m.sweeping.Load() }
