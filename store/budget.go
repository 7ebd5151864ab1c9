package store

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/limits"
)

// newBudget paces work in the background to rate bytes a second; 0 is as fast as the drives are idle.
func (s *Store) newBudget(rate int64) *limits.Pace {
	return limits.NewPace(rate, traffic{s}, s.closing)
}

// traffic is the restores of a store, for what gives way to them: limits.Traffic.
type traffic struct{ s *Store }

// Restoring says whether a drive has reads of restores under way.
func (t traffic) Restoring() bool {
	for _, d := range t.s.allDrives() {
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
func (t traffic) Queueing() bool {
	for _, d := range t.s.allDrives() {
		if d.Condition() == health.Dead {
			continue
		}
		if d.Reads.Waiting() > 0 {
			return true
		}
	}
	return false
}

var errNoRoom = &skep.Error{Op: "move blocks", Kind: skep.Full, Field: "free groups", Value: "none",
	Limit: "one beside those puts and the cleaner need"}
