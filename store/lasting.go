package store

import "time"

// Lasting is the time by which what is kept expires: it never goes back, over restarts neither.
func (s *Store) Lasting() time.Time { return s.lasting.Now() }
