package restore

import "sync/atomic"

// readState is where a read is, between two that decide on it: the drive, which is done with it
// once, and the monitor, which may leave it to the drive or think better of that.
//
//	pending ──came──▶ done                           its chunk goes on
//	   │ ▲
//	 leave│
//	   ▼ stay
//	leaving ──came──▶ back ──stay──▶ done            its chunk goes on, by the monitor's hand
//	   │               └───part──▶ back              its chunk reads elsewhere
//	   └───part──▶ left ──came──▶ left               the same, and its memory comes back
//
// Whatever comes between two looks at the word, exactly one of the two ends the read, or none when its
// chunk reads elsewhere; and of a read that was left exactly one lets its memory go.
type readState struct {
	word atomic.Int32
	step func() // of tests: called before each look at the word
}

// States of a read.
const (
	readPending int32 = iota
	readDone
	readLeaving // being left to the drive
	readBack    // it came back while it was being left
	readLeft    // to the drive, with its memory: its chunk reads elsewhere
)

func (s *readState) is() int32 {
	if s.step != nil {
		s.step()
	}
	return s.word.Load()
}

func (s *readState) swap(from, to int32) bool {
	if s.step != nil {
		s.step()
	}
	return s.word.CompareAndSwap(from, to)
}

// came is called when the drive is done with the read: ended when that ends it, free when its
// memory, which it was left with, is nobody's any more.
func (s *readState) came() (ended, free bool) {
	for {
		switch s.is() {
		case readPending:
			if s.swap(readPending, readDone) {
				return true, false
			}
		case readLeaving:
			if s.swap(readLeaving, readBack) {
				return false, false
			}
		default:
			return false, true
		}
	}
}

// leave begins to leave the read: until stay or part it does not end. False: it is not pending.
func (s *readState) leave() bool { return s.swap(readPending, readLeaving) }

// stay takes leave back. True: it came back meanwhile, and ends now.
func (s *readState) stay() (ended bool) {
	return !s.swap(readLeaving, readPending) && s.swap(readBack, readDone)
}

// part leaves it for good. True: it came back meanwhile, and its memory is free.
func (s *readState) part() (free bool) { return !s.swap(readLeaving, readLeft) }
