package observe

import (
	"github.com/skepkv/skep/store/internal/locks"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
)

// Works is the background work under way, for Stats: one line for each scrub and each task of the
// mover. Whoever does some says so with Begin, Add and End. A rebuild is none: nobody can ask before
// it is done, and it reports through its own callback.
type Works struct {
	mu   locks.Mutex[locks.Works]
	list []*Work
}

// Work is one piece of background work.
type Work struct {
	of    *Works
	name  string
	total int64 // bytes; 0: not known
	since time.Time
	done  atomic.Int64
}

// Begin enters work that is under way until End.
func (w *Works) Begin(name string, total int64) *Work {
	x := &Work{of: w, name: name, total: total, since: time.Now()}
	w.mu.Lock()
	w.list = append(w.list, x)
	w.mu.Unlock()
	return x
}

// Add says that n more bytes are done. Of nil it does nothing, and so does End.
func (x *Work) Add(n int64) {
	if x != nil {
		x.done.Add(n)
	}
}

// End takes the work off the list. It may be called twice.
func (x *Work) End() {
	if x == nil {
		return
	}
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	for i, y := range x.of.list {
		if y == x {
			x.of.list = append(x.of.list[:i], x.of.list[i+1:]...)
			return
		}
	}
}

// Snapshot is what is under way.
func (w *Works) Snapshot() []skep.WorkStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]skep.WorkStats, len(w.list))
	for i, x := range w.list {
		out[i] = skep.WorkStats{Name: x.name, Unit: "bytes", Done: x.done.Load(), Total: x.total, Since: x.since}
	}
	return out
}
