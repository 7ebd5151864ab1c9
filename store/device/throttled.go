package device

import (
	"container/heap"
	"fmt"
	"github.com/skepkv/skep/store/internal/locks"
	"sync"
	"time"
)

// Model is the drive a Throttled device pretends to be. Zero fields do not limit.
//
// The drive is one server: ops take their turns in the order of submission, each
// for the longest of its bytes ÷ bandwidth and 1 ÷ IOPS, and are done Latency
// after their turn. Idle time is not saved up.
type Model struct {
	ReadBandwidth  int64 // bytes per second
	WriteBandwidth int64 // bytes per second
	IOPS           int64 // reads and writes per second
	Latency        time.Duration
	FlushLatency   time.Duration // after the ops submitted before the flush
}

func (m Model) validate() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Model.ReadBandwidth", m.ReadBandwidth},
		{"Model.WriteBandwidth", m.WriteBandwidth},
		{"Model.IOPS", m.IOPS},
		{"Model.Latency", int64(m.Latency)},
		{"Model.FlushLatency", int64(m.FlushLatency)},
	} {
		if f.value < 0 {
			return &ArgError{Op: -1, Field: f.name, Value: f.value, Limit: "not negative"}
		}
	}
	return nil
}

// cost is how long the op occupies the drive, and extra how much later than the
// end of its turn it is done.
func (m Model) cost(k Kind, bytes int) (turn, extra time.Duration) {
	bandwidth := m.ReadBandwidth
	switch k {
	case Flush:
		return 0, m.FlushLatency
	case Write:
		bandwidth = m.WriteBandwidth
	}
	if bandwidth > 0 {
		turn = time.Duration(float64(bytes) / float64(bandwidth) * float64(time.Second))
	}
	if m.IOPS > 0 {
		turn = max(turn, time.Duration(float64(time.Second)/float64(m.IOPS)))
	}
	return turn, m.Latency
}

// reserve gives an op submitted at time at its turn on a drive that is busy until
// busy, and returns when it is done and until when the drive is busy now.
func (m Model) reserve(at, busy int64, k Kind, bytes int) (due, busyUntil int64) {
	turn, extra := m.cost(k, bytes)
	busyUntil = max(at, busy) + int64(turn)
	return busyUntil + int64(extra), busyUntil
}

// Throttled is a device with the speed of a Model, or of the device underneath
// where that is slower. It is how several drives are studied on a machine with
// one; Info says Simulated.
type Throttled struct {
	core
	inner Device
	model Model
	links sync.Pool // of *throttledOp
	wake  chan struct{}

	mu struct {
		locks.Mutex[locks.DeviceThrottled]
		busy    int64 // the modelled drive is busy until then
		early   dueHeap
		running bool // a goroutine is delivering what is in early
	}
}

// throttledOp is what the inner device sees of an op.
type throttledOp struct {
	Op
	outer *Op
	due   int64
}

// NewThrottled slows inner down, and owns it: Close closes it.
func NewThrottled(inner Device, m Model) (*Throttled, error) {
	if err := m.validate(); err != nil {
		return nil, err
	}
	t := &Throttled{inner: inner, model: m, wake: make(chan struct{}, 1)}
	t.links.New = func() any {
		l := &throttledOp{}
		l.Op.Done = func(*Op) { t.arrive(l) }
		return l
	}
	info := inner.Info()
	info.Backend = "throttled " + info.Backend
	info.Reason = joinReasons(info.Reason, fmt.Sprintf("simulated: %+v", m))
	info.Simulated = true
	t.core.init(info, inner.Size(), closeTimeoutOf(inner))
	return t, nil
}

// closeTimeoutOf lets a wrapper wait as long as what it wraps.
func closeTimeoutOf(d Device) time.Duration {
	if c, ok := d.(interface{ timeout() time.Duration }); ok {
		return c.timeout()
	}
	return 0
}

func (c *core) timeout() time.Duration { return c.closeTimeout }

func (t *Throttled) Submit(ops []*Op) error {
	if len(ops) == 0 {
		return nil
	}
	if err := t.begin(ops); err != nil {
		return err
	}
	inner := make([]*Op, len(ops))
	t.mu.Lock()
	at, busy := now(), t.mu.busy
	for i, op := range ops {
		l := t.links.Get().(*throttledOp)
		l.outer, l.Kind, l.Offset, l.Bufs = op, op.Kind, op.Offset, op.Bufs
		l.due, busy = t.model.reserve(at, busy, op.Kind, op.total)
		inner[i] = &l.Op
	}
	t.mu.busy = busy
	t.mu.Unlock()
	if err := t.inner.Submit(inner); err != nil {
		t.abandon(ops) // the turns stay taken: a failing drive is not faster
		return err
	}
	return nil
}

// arrive is the inner device's Done.
func (t *Throttled) arrive(l *throttledOp) {
	if l.due <= now() {
		t.deliver(l)
		return
	}
	t.mu.Lock()
	heap.Push(&t.mu.early, l)
	first := t.mu.early[0] == l
	start := !t.mu.running
	t.mu.running = true
	t.mu.Unlock()
	if start {
		go t.run() // ends when nothing is early; counted in flight by its ops
	} else if first {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

func (t *Throttled) deliver(l *throttledOp) {
	op, err := l.outer, l.Op.Err
	l.outer, l.Bufs = nil, nil
	t.links.Put(l)
	t.finish(op, err)
}

// The runtime's timers may be late by about timerSlack; what is nearer is waited for by the system's clock, look
// at a time, in case something is due sooner meanwhile.
const (
	timerSlack = 1500 * time.Microsecond
	look       = 300 * time.Microsecond
)

// run delivers early completions when they are due.
func (t *Throttled) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		t.mu.Lock()
		if len(t.mu.early) == 0 {
			t.mu.running = false
			t.mu.Unlock()
			return
		}
		wait := t.mu.early[0].due - now()
		if wait <= 0 {
			l := heap.Pop(&t.mu.early).(*throttledOp)
			t.mu.Unlock()
			t.deliver(l)
			continue
		}
		t.mu.Unlock()
		if wait <= int64(timerSlack) {
			Pause(min(time.Duration(wait), look))
			continue
		}
		timer.Reset(time.Duration(wait) - timerSlack)
		select {
		case <-timer.C:
		case <-t.wake:
		}
	}
}

func (t *Throttled) Grow(size int64) error {
	if err := t.inner.Grow(size); err != nil {
		return err
	}
	t.size.Store(t.inner.Size())
	return nil
}

func (t *Throttled) Unwrap() Device { return t.inner }

func (t *Throttled) Close() error { return t.shutdown(nil, t.inner.Close, t) }

// dueHeap orders by due, soonest first.
type dueHeap []*throttledOp

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(*throttledOp)) }
func (h *dueHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}
