package store

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// works is the background work under way, for Stats, one line for each scrub and each task
// of tasks.go. Whoever does some says so with begin, add and end. A rebuild is none: nobody
// can ask before it is done, and it reports through its own callback.
type works struct {
	mu   sync.Mutex
	list []*work
}

// work is one piece of background work.
type work struct {
	of    *works
	name  string
	total int64 // bytes; 0: not known
	since time.Time
	done  atomic.Int64
}

// begin enters work that is under way until end.
func (w *works) begin(name string, total int64) *work {
	x := &work{of: w, name: name, total: total, since: time.Now()}
	w.mu.Lock()
	w.list = append(w.list, x)
	w.mu.Unlock()
	return x
}

// add says that n more bytes are done. Of nil it does nothing, and so does end.
func (x *work) add(n int64) {
	if x != nil {
		x.done.Add(n)
	}
}

func (x *work) end() {
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

func (w *works) snapshot() []skep.WorkStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]skep.WorkStats, len(w.list))
	for i, x := range w.list {
		out[i] = skep.WorkStats{Name: x.name, Unit: "bytes", Done: x.done.Load(), Total: x.total, Since: x.since}
	}
	return out
}

// liveBytes is what lives in groups, all copies together, in bytes.
func (s *Store) liveBytes(list []*group) (n int64) {
	for _, c := range s.groupCosts(list) {
		n += c.live * layout.PageSize
	}
	return n
}
