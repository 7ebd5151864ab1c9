package health

import "sync/atomic"

// Streak counts failures in a row of what drives do, and tells when there are so many that it
// cannot wait for the next look. Its methods may be called at the same time.
type Streak struct{ n atomic.Int32 }

// FailuresInARow is how many writes in a row may fail before a drive gets no new groups.
const FailuresInARow = 3

// Note takes a result into account. True: this one was one too many.
func (s *Streak) Note(failed bool) bool {
	if !failed {
		s.n.Store(0)
		return false
	}
	return s.n.Add(1) == FailuresInARow
}

// Forget begins a new streak.
func (s *Streak) Forget() { s.n.Store(0) }
