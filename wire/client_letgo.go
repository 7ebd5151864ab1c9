package wire

import (
	"time"

	"github.com/skepkv/skep/wire/frames"
)

// LetGo gives a session up without a wait for the server, and says whether nothing is written to its destinations from
// here on: false where drives of the server write there. What has not landed is delivered as misses, and what comes yet
// is read and dropped. The session is to be closed all the same.
func (s *clientSession) LetGo() bool {
	if s.ring != nil {
		return false
	}
	s.mu.Lock()
	s.late = true
	s.mu.Unlock()
	s.finish(frames.ErrStopped)
	s.signal()
	s.mu.Lock()
	if s.landing && s.calm == nil {
		s.calm = make(chan struct{})
	}
	calm := s.calm
	if calm == nil {
		s.mu.Unlock()
		return true
	}
	s.x.l.Conn.SetReadDeadline(time.Unix(1, 0)) // the reader sets its own before it reads on
	s.mu.Unlock()
	<-calm
	return true
}

// enter is called by the connection's reader before it writes to a destination; false: it may not. Else it leaves.
func (s *clientSession) enter(chain int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil || s.stopped[chain] { // the rest of a chunk may come behind the Stop's answer
		return false
	}
	s.landing = true
	return true
}

func (s *clientSession) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.landing = false; s.calm != nil {
		close(s.calm)
		s.calm = nil
	}
}

// going says that the session has not been let go.
func (s *clientSession) going() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended == nil
}
