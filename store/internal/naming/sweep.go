package naming

import (
	"time"

	"github.com/skepkv/skep/store/internal/limits"
)

// Sweep takes what purges made unreachable out of the index. One goroutine does, for all that
// were made when it began a round.
func (m *Namer) Sweep() {
	for m.Context.Err() == nil && m.sweeping.CompareAndSwap(false, true) {
		for dead := m.Index.Dead(); len(dead) > 0 && m.Context.Err() == nil; dead = m.Index.Dead() {
			for wrapped := false; !wrapped && m.Context.Err() == nil; {
				began := time.Now()
				if _, wrapped = m.Index.SweepDead(sweepStep); !wrapped && !limits.Pause(m.Closing, 3*time.Since(began)) {
					return
				}
			}
			// What a put under way adds of them yet, the cleaner finds.
			m.Index.ForgetDead(dead...)
			m.Names.ForgetSalts()
		}
		m.sweeping.Store(false)
		if len(m.Index.Dead()) == 0 {
			return
		}
	}
}

// sweepStep is how many slots are looked at in one go.
const sweepStep = 4096

// Sweeping says whether Sweep is at it.
func (m *Namer) Sweeping() bool { return m.sweeping.Load() }
