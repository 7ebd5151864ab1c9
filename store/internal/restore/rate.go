package restore

import (
	"time"

	"github.com/skepkv/skep/store/internal/locks"
)

// rate is a moving average of what restores got from drives, bytes a second.
type rate struct {
	mu  locks.Mutex[locks.Rate]
	bps float64
}

// firstRate is what drives are reckoned at before any restore was seen.
const firstRate = 2e9

func (r *rate) get() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bps == 0 {
		return firstRate
	}
	return r.bps
}

// saw takes a restore of bytes in d into account. Small ones say little.
func (r *rate) saw(bytes int64, d time.Duration) {
	if bytes < 1<<20 || d <= 0 {
		return
	}
	bps := float64(bytes) / d.Seconds()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bps == 0 {
		r.bps = bps
		return
	}
	r.bps += (bps - r.bps) / 8
}

// Estimate is how long restoring takes: what lies on drives at the rate they were
// seen to deliver, what lies in memory at that of copying. Both are in bytes.
func (rs *Restorer) Estimate(device, dram int64) time.Duration {
	rate := rs.rate.get()
	return time.Duration(float64(device)/rate*1e9 + float64(dram)/copyRate*1e9)
}

// copyRate is what copying from memory to memory is reckoned at, bytes a second.
const copyRate = 8e9
