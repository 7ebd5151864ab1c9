package health

import "sync/atomic"

// Streak counts failures in a row of what drives do, and tells when there are so many that it
// cannot wait for the next look. Its methods may be called at the same time.
type Streak struct{ n atomic.Int32 }

// FailuresInARow is how many failures in a row fence a drive: writes, as a Streak counts them one by one, and reads,
// writes or flushes, each for itself, as a Judge counts them from look to look (Rules.Errors).
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
