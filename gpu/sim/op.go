package sim

import (
	"math"
	"time"
)

type opKind uint8

const (
	opCopy opKind = iota
	opWait
	opSignal
	opCompute
)

// op is one piece of queued work.
type op struct {
	kind    opKind
	stream  *stream
	to      span
	from    span
	counter *counter
	value   uint64
	compute func()
	lasts   time.Duration // of a kernel

	started bool
	began   time.Duration
	link    *link
	counted bool // in link.active
	left    float64
	total   float64

	// touches are the moments, as shares of the way to the end, at which it touches memory:
	// of a copy alternately a read of a piece and the write of it.
	touches []float64
	held    []byte // read, not written yet
	done    int    // bytes written
	copied  int    // bytes read
	torn    int    // where the first piece ends
}

func (o *op) world() *World { return o.stream.device.w }

// instant says that the op takes no time.
func (o *op) instant() bool { return o.kind == opWait || o.kind == opSignal }

func (o *op) start() {
	w := o.world()
	o.started, o.began = true, w.now
	switch o.kind {
	case opCompute:
		o.touches = []float64{w.rng.Float64()}
	case opCopy:
		o.link = w.linkOf(o.from.place(), o.to.place())
		o.total = float64(o.from.len())
		o.left = o.total
		// Two pieces, each read and written at moments of its own.
		o.torn = int(o.total)
		if o.torn > 1 {
			o.torn = 1 + w.rng.IntN(o.torn-1)
		}
		cut := w.rng.Float64()
		o.touches = []float64{cut * w.rng.Float64(), cut, cut + (1-cut)*w.rng.Float64(), 1}
	}
}

// progress is how far the op is, from 0 to 1.
func (o *op) progress(now time.Duration) float64 {
	if o.kind == opCompute {
		if o.lasts <= 0 {
			return 1
		}
		return min(1, float64(now-o.began)/float64(o.lasts))
	}
	if now < o.began+o.link.Latency {
		return 0
	}
	if o.total == 0 || o.left <= 0.5 {
		return 1
	}
	return 1 - o.left/o.total
}

// onLink says that the transfer has its share of the link from now on.
func (o *op) onLink(now time.Duration) bool {
	return o.kind == opCopy && now >= o.began+o.link.Latency
}

func (o *op) due(now time.Duration) bool {
	return len(o.touches) > 0 && o.progress(now) >= o.touches[0]-1e-9
}

func (o *op) over(now time.Duration) bool { return len(o.touches) == 0 && o.progress(now) >= 1 }

// nextEvent is when the op next touches memory, gets on its link, or ends.
func (o *op) nextEvent(now time.Duration) time.Duration {
	if o.kind == opCompute {
		at := 1.0
		if len(o.touches) > 0 {
			at = o.touches[0]
		}
		return max(now, o.began+time.Duration(math.Ceil(at*float64(o.lasts))))
	}
	if on := o.began + o.link.Latency; now < on {
		return on
	}
	target := 1.0
	if len(o.touches) > 0 {
		target = o.touches[0]
	}
	bytes := o.left - (1-target)*o.total
	if bytes <= 0 {
		return now
	}
	seconds := bytes * float64(max(o.link.active, 1)) / o.link.BytesPerSecond
	return now + max(1, time.Duration(math.Ceil(seconds*1e9)))
}

// touch does the next thing to memory.
func (o *op) touch() {
	o.touches = o.touches[1:]
	d := o.stream.device
	if d.failed != nil {
		return
	}
	if o.kind == opCompute {
		if o.compute != nil {
			o.compute()
		}
		return
	}
	if err := o.reachable(); err != nil {
		d.failed = err
		return
	}
	src, dst := o.from.bytes(), o.to.bytes()
	if o.copied == o.done { // read a piece
		to := o.torn
		if o.copied > 0 {
			to = len(src)
		}
		o.held = append(o.held[:0], src[o.copied:to]...)
		o.copied = to
		return
	}
	if d.flip && len(o.held) > 0 {
		d.flip = false
		o.held[o.world().rng.IntN(len(o.held))] ^= 1 << o.world().rng.IntN(8)
	}
	copy(dst[o.done:o.copied], o.held)
	o.done = o.copied
}

// reachable says what keeps the copy from its memory, if anything does.
func (o *op) reachable() error {
	for _, s := range []span{o.from, o.to} {
		m := s.memory
		if m == nil {
			continue
		}
		switch {
		case m.freed:
			return sticky("freed memory")
		case m.device.failed != nil && m.device != o.stream.device:
			return sticky("memory of a device that failed")
		case !o.stream.device.peers[m.device.index]:
			return sticky("memory of a device that is no peer")
		case m.revoking && m.device != o.stream.device:
			if m.touches--; m.touches < 0 {
				return sticky("memory of a device that is no peer")
			}
		}
	}
	return nil
}

// end takes the op off its stream.
func (o *op) end() {
	if o.kind == opSignal && o.stream.device.failed == nil && o.value > o.counter.value {
		o.counter.value = o.value
	}
	if o.counted {
		o.link.active--
	}
	o.stream.queue = o.stream.queue[1:]
}
