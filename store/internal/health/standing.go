package health

import "sync/atomic"

// Standing is how a drive stands, for all who use it. The zero value is a drive that is well. Its methods may be
// called at the same time.
type Standing struct {
	Wrong  atomic.Int64 // reads with bytes that were not what was written
	Writes Streak       // writes that failed since the last one that did not

	state   atomic.Int32
	why     atomic.Pointer[string]
	forced  atomic.Pointer[error]
	noReads atomic.Bool
	lost    atomic.Bool
}

// State is what was found last; Healthy before anybody has looked.
func (s *Standing) State() State { return State(s.state.Load()) }

// Set is what it is from now on.
func (s *Standing) Set(state State) { s.state.Store(int32(state)) }

// Why says why it is in its state; empty: there is nothing to say.
func (s *Standing) Why() string {
	if why := s.why.Load(); why != nil {
		return *why
	}
	return ""
}

// Say is what Why says from now on.
func (s *Standing) Say(why string) { s.why.Store(&why) }

// Force has the next look find a write that failed with err: the drive is fenced for it.
func (s *Standing) Force(err error) { s.forced.Store(&err) }

// Forced is what Force said since it was asked for last.
func (s *Standing) Forced() error {
	if err := s.forced.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// Unreadable says whether what the drive holds cannot be read for now.
func (s *Standing) Unreadable() bool { return s.State() == Dead || s.noReads.Load() }

// Lost says whether it has been unreadable for so long that its copies are made again.
func (s *Standing) Lost() bool { return s.lost.Load() }

// Judge notes what a judge says of reads, and whether the drive counts as lost. True: that has changed.
func (s *Standing) Judge(j *Judge) (changed bool) {
	s.noReads.Store(j.Unreadable())
	return s.lost.Swap(j.Lost()) != j.Lost()
}
