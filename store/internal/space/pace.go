package space

import (
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/limits"
)

// Pace paces work in the background to rate bytes a second; 0 is as fast as the drives are idle.
func (t *Table) Pace(rate int64) *limits.Pace { return limits.NewPace(rate, t, t.Closing) }

// Restoring says whether a drive has reads of restores under way. With Queueing it is what work gives way to:
// limits.Traffic.
func (t *Table) Restoring() bool {
	for _, d := range t.Drives() {
		if d.Condition() == health.Dead {
			continue // what it has, it keeps
		}
		if d.Reads.Busy() {
			return true
		}
	}
	return false
}

// Queueing says whether reads of restores wait for a drive that has all it takes.
func (t *Table) Queueing() bool {
	for _, d := range t.Drives() {
		if d.Condition() == health.Dead {
			continue
		}
		if d.Reads.Waiting() > 0 {
			return true
		}
	}
	return false
}
