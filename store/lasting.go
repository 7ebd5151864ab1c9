package store

import "time"

// Time over restarts. Promises end with the process and go by Options.Clock, which is steady
// and knows no restart. What is kept with a time of its own, such as a Redis key's time to
// live, goes by Lasting: it begins at what the machine's clock says at an open, or at the
// latest time the store knew before, whichever is later, and goes on steadily. So what has
// expired once stays expired, however the machine's clock is set, running or not.

// Lasting is the time by which what is kept expires: it never goes back, over restarts neither.
func (s *Store) Lasting() time.Time { return s.options.Clock().Add(s.lead).Round(0) }

// lastingEvery is how often an idle store notes the time.
const lastingEvery = time.Minute

// setLead has Lasting begin where the machine's clock is, or at ms if that is later.
func (s *Store) setLead(ms uint64) {
	now, wall := s.options.Clock(), s.options.Wall()
	// Compared by what they show: both may carry a monotonic reading.
	s.lead = wall.Round(0).Sub(now.Round(0))
	known := time.UnixMilli(int64(min(ms, 1<<53)))
	if behind := known.Sub(wall.Round(0)); behind > 0 {
		s.lead += behind
		if behind > time.Second {
			s.log.Warn("the machine's clock is behind the latest time this store knew: what expires goes by the later",
				"clock", wall, "known", known, "behind", behind)
		}
	}
}

// noteTime keeps Lasting when nothing else has for a while. The cleaner's goroutine calls it.
func (s *Store) noteTime(last time.Time) time.Time {
	now := s.options.Clock()
	if now.Sub(last) < lastingEvery || s.root.Save(s.ctx, s.catalog, s.catalog.NewBatch(), false) != nil {
		return last
	}
	return now
}
