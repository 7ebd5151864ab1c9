//go:build iouring && linux

package device

import (
	"fmt"

	"github.com/pawelgaczynski/giouring"
)

func (r *ring) Close() error {
	return r.shutdown(r.refuseWaiting, r.release, r)
}

// refuseWaiting ends the ops that never got a slot.
func (r *ring) refuseWaiting() {
	r.mu.Lock()
	var refused []outcome
	for op := r.mu.waiting.pop(); op != nil; op = r.mu.waiting.pop() {
		refused = append(refused, outcome{op, ErrClosed})
	}
	r.mu.Unlock()
	r.finishAll(refused)
}

// release runs when nothing is in flight: no entry is staged, no timer armed, and
// the kernel holds no address of ours but the registered ones, which the exit of
// the ring gives back.
func (r *ring) release() error {
	r.mu.Lock()
	r.mu.regions = nil
	r.mu.watch.over = true
	r.mu.Unlock()
	r.stop.Store(true)
	r.event.Close() // wakes the reaper
	<-r.reaped
	// With the descriptor still registered the ring would keep the file until the
	// kernel gets round to freeing it; see also openFile.
	if r.fixedFile {
		_ = r.register(giouring.UnregisterFiles, nil, 0)
	}
	r.ring.QueueExit()
	if err := r.file.close(); err != nil {
		return fmt.Errorf("device: close %s: %w", r.file.path, err)
	}
	return nil
}
