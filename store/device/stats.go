package device

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// LatencyBuckets is the number of buckets of OpStats.Latency: bucket 0 counts
// ops under 1 µs, bucket i those in [2^(i-1), 2^i) µs, the last all slower ones
// (over 8 s).
const LatencyBuckets = 24

// LatencyBucket returns the bucket that counts d.
func LatencyBucket(d time.Duration) int {
	if d < 0 {
		d = 0
	}
	return min(bits.Len64(uint64(d/time.Microsecond)), LatencyBuckets-1)
}

// LatencyBound is the exclusive upper bound of a bucket; the last has none and
// answers 0.
func LatencyBound(bucket int) time.Duration {
	if bucket < 0 || bucket >= LatencyBuckets-1 {
		return 0
	}
	return time.Microsecond << bucket
}

// OpStats are the totals of one Kind since the device was opened.
type OpStats struct {
	Ops        uint64 // done, with or without error
	Errors     uint64 // of those, the ones that failed; not for memory the kernel could not get at (EFAULT)
	Bytes      uint64 // of ops without error
	LatencySum time.Duration
	Latency    [LatencyBuckets]uint64
	EWMA       time.Duration // moving average of latency, weight 1/16
}

// Stats is what Device.Stats returns.
type Stats struct {
	Reads, Writes, Flushes OpStats

	InFlight    int64 // submitted and not done, waiting ones included
	MaxInFlight int64 // the highest InFlight ever
	Submits     uint64

	// Unannounced is how many ops of an io_uring were done, and no signal said so: they were found by looking for
	// them, a second or two later. Reissued is how many the kernel took, never began, and gave back after some 3 s:
	// they were done by system calls. Both are 0 where all is well.
	Unannounced, Reissued uint64

	// ReadsStalled and WritesStalled are for how long no read, and no write or flush,
	// has been done although at least one is in flight; 0 when none is.
	ReadsStalled, WritesStalled time.Duration
	// LastError is what the last op that failed ended with, nil when none has.
	LastError error
}

// Errors is the number of ops of any kind that failed.
func (s Stats) Errors() uint64 { return s.Reads.Errors + s.Writes.Errors + s.Flushes.Errors }

type kindCounters struct {
	ops, errors, bytes, latencySum, ewma atomic.Uint64
	latency                              [LatencyBuckets]atomic.Uint64

	inFlight         atomic.Int64
	busySince, moved atomic.Int64 // when it became busy, and when an op was last done
}

// stalled is for how long nothing has moved.
func (k *kindCounters) stalled(now int64) time.Duration {
	if k.inFlight.Load() <= 0 {
		return 0
	}
	return time.Duration(max(0, now-max(k.busySince.Load(), k.moved.Load())))
}

func (k *kindCounters) snapshot() OpStats {
	s := OpStats{
		Ops:        k.ops.Load(),
		Errors:     k.errors.Load(),
		Bytes:      k.bytes.Load(),
		LatencySum: time.Duration(k.latencySum.Load()),
		EWMA:       time.Duration(k.ewma.Load()),
	}
	for i := range s.Latency {
		s.Latency[i] = k.latency[i].Load()
	}
	return s
}

type counters struct {
	kinds       [numKinds]kindCounters
	submits     atomic.Uint64
	inFlight    atomic.Int64
	maxInFlight atomic.Int64
	unannounced atomic.Uint64
	reissued    atomic.Uint64
	lastError   atomic.Pointer[error]
}

// began counts one op of a kind as in flight since at.
func (c *counters) began(k Kind, at int64) {
	if kc := &c.kinds[k]; kc.inFlight.Add(1) == 1 {
		kc.busySince.Store(at)
	}
}

// ended takes one back, done or refused.
func (c *counters) ended(k Kind, at int64) {
	kc := &c.kinds[k]
	kc.moved.Store(at)
	kc.inFlight.Add(-1)
}

func (c *counters) submitted(n int) {
	c.submits.Add(1)
	v := c.inFlight.Add(int64(n))
	for {
		m := c.maxInFlight.Load()
		if v <= m || c.maxInFlight.CompareAndSwap(m, v) {
			return
		}
	}
}

func (c *counters) done(k Kind, bytes int, latency int64, failed bool) {
	kc := &c.kinds[k]
	kc.ops.Add(1)
	if failed {
		kc.errors.Add(1)
	} else {
		kc.bytes.Add(uint64(bytes))
	}
	lat := uint64(max(latency, 0))
	kc.latencySum.Add(lat)
	kc.latency[LatencyBucket(time.Duration(lat))].Add(1)
	// Two completions at once may lose one sample of the average; it is a guide,
	// not a count.
	if old := kc.ewma.Load(); old == 0 {
		kc.ewma.Store(lat)
	} else {
		kc.ewma.Store(uint64(int64(old) + (int64(lat)-int64(old))/16))
	}
	c.inFlight.Add(-1)
}

func (c *counters) snapshot() Stats {
	at := now()
	var last error
	if e := c.lastError.Load(); e != nil {
		last = *e
	}
	return Stats{
		ReadsStalled:  c.kinds[Read].stalled(at),
		WritesStalled: max(c.kinds[Write].stalled(at), c.kinds[Flush].stalled(at)),
		LastError:     last,
		Unannounced:   c.unannounced.Load(),
		Reissued:      c.reissued.Load(),

		Reads:       c.kinds[Read].snapshot(),
		Writes:      c.kinds[Write].snapshot(),
		Flushes:     c.kinds[Flush].snapshot(),
		InFlight:    c.inFlight.Load(),
		MaxInFlight: c.maxInFlight.Load(),
		Submits:     c.submits.Load(),
	}
}
