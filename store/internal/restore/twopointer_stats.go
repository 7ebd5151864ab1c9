package restore

import (
	"time"

	"github.com/skepkv/skep"
)

// TwoPointers is what Stats says of two-pointer restores; what was put is not known here.
func (rs *Restorer) TwoPointers() (st skep.TwoPointerStats) {
	t := &rs.two
	t.mu.Lock()
	st.Declined, st.Judged, st.Right = t.declined, t.judged, t.right
	t.mu.Unlock()
	st.ByTokens, st.ByLayers, st.Crossover, st.Reckoned = t.ways()
	st.BoundaryBytes = rs.Count.BoundaryRestored.Load()
	return st
}

// Prefetch is what Stats says of reading ahead.
func (rs *Restorer) Prefetch() skep.PrefetchStats { return rs.prefetch.snapshot() }

// ways is by which way chains went that could go either, L_Δ as it was last reckoned, and how often it was.
func (t *twoPointers) ways() (byTokens, byLayers, crossover, reckoned int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sched == nil {
		return
	}
	turn, n := t.sched.Crossover()
	return t.byTokens, t.byLayers, int64(turn), int64(n)
}

// predicted is the bytes a session's chains have and how long loading them was expected to take
// when it began, as lookups estimate it.
func (ses *session) predicted() (bytes int64, d time.Duration) {
	for _, c := range ses.chains {
		if size := c.Size; size > 0 {
			share := float64(c.Layers.Len()) / float64(max(c.Geometry.Layers(), 1))
			if !c.Structured {
				share = 1
			}
			bytes += int64(float64(size) * share * float64(c.Blocks.Len()))
		}
	}
	return bytes, ses.rs.Estimate(bytes, 0)
}

// logPrediction compares what was predicted when the session began with what was measured.
// What was not loaded (claimed, missed) is taken off the prediction by its share of the bytes.
func (ses *session) logPrediction() {
	if ses.fromDevices == 0 || ses.willBytes == 0 {
		return
	}
	predicted := time.Duration(float64(ses.will) * float64(ses.fromDevices) / float64(ses.willBytes))
	measured := ses.lastLanding.Sub(ses.began)
	ses.rs.Log.Debug("restored", "bytes", ses.fromDevices, "predicted", predicted, "measured", measured)
}
